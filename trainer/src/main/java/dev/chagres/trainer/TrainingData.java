package dev.chagres.trainer;

import dev.chagres.batch.TokenSequences;
import dev.chagres.models.data.FastaSequences;
import dev.chagres.models.data.FastaSource;
import dev.chagres.models.data.MaskedProteins;
import dev.chagres.models.data.UnknownLetters;
import dev.chagres.models.text.TextSource;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * What a run learns from, or is evaluated on.
 *
 * <p>Threading: thread-safe.
 */
interface TrainingData {
    /** Returns the name of the option that gives it, {@code fasta}, which is also its key in files. */
    String option();

    /** Returns what errors and lines begin with. */
    String name();

    /** Returns a text that tells this content from another one. */
    String content();

    /** Checks that it can be read several times. */
    void ensureRepeatable();

    /**
     * Opens the sequences without end, in an order drawn from the seed.
     *
     * @param window residues, or tokens, that are in memory
     */
    TokenSequences shuffled(long seed, int window);

    /** Opens the sequences once, as an evaluation does. */
    TokenSequences once();

    /** Returns what is predicted, {@code masked residues}. */
    String predicted();

    /** Returns in a line what was counted while it was read; empty for nothing. */
    String countedText();

    /** Returns what was counted while it was read. */
    Map<String, Object> counted();

    /** Proteins of FASTA files, masked. */
    record Proteins(FastaSource source) implements TrainingData {
        @Override
        public String option() {
            return "fasta";
        }

        @Override
        public String name() {
            return source.name();
        }

        @Override
        public String content() {
            return source.content();
        }

        @Override
        public void ensureRepeatable() {
            source.ensureRepeatable();
        }

        @Override
        public TokenSequences shuffled(long seed, int window) {
            return new MaskedProteins(source.shuffled(seed, window), source.letters());
        }

        @Override
        public TokenSequences once() {
            return new MaskedProteins(new FastaSequences(source), source.letters());
        }

        @Override
        public String predicted() {
            return "masked residues";
        }

        @Override
        public String countedText() {
            return source.unknownText();
        }

        @Override
        public Map<String, Object> counted() {
            UnknownLetters.Count count = source.unknown();
            Map<String, Object> counted = new LinkedHashMap<>();
            if (count.letters() > 0) {
                counted.put("unknownLetters", count.letters());
                counted.put("sequencesWithUnknownLetters", count.sequences());
                counted.put("unknown", source.unknownLetters().toString());
            }
            return counted;
        }
    }

    /** Texts, each of whose tokens predicts the next one. */
    record Texts(TextSource source) implements TrainingData {
        @Override
        public String option() {
            return "text";
        }

        @Override
        public String name() {
            return source.name();
        }

        @Override
        public String content() {
            return source.content();
        }

        @Override
        public void ensureRepeatable() {}

        @Override
        public TokenSequences shuffled(long seed, int window) {
            return source.shuffled(seed, window);
        }

        @Override
        public TokenSequences once() {
            return source.once();
        }

        @Override
        public String predicted() {
            return "tokens";
        }

        @Override
        public String countedText() {
            return "";
        }

        @Override
        public Map<String, Object> counted() {
            return Map.of();
        }
    }
}
