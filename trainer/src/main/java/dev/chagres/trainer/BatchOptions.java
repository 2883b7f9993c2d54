package dev.chagres.trainer;

import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.PackingOrder;
import dev.chagres.models.data.MaskedProteins;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Option;

/** Options of {@code train} that say how many tokens a step has, and how they are laid out. */
final class BatchOptions {
    /** Values of {@code --packing}. */
    enum Packing {
        ON,
        BEST_FIT,
        OFF
    }

    @Option(
            names = "--tokens-per-step",
            paramLabel = "N",
            description =
                    "token budget of a step, a multiple of 16 (default: 16384 on a GPU, 2048 on a CPU, or as many more as"
                            + " the micro-batches of all ranks need, each for a sequence of --context)")
    private @Nullable Integer tokensPerStep;

    @Option(
            names = "--accumulate",
            paramLabel = "N",
            description = "divide a step into N micro-batches and sum their gradients, which takes less memory"
                    + " (default: 1)")
    private int accumulate = 1;

    @Option(
            names = "--context",
            paramLabel = "N",
            description = "tokens of the longest sequence; of a longer one a random stretch is used (default: 1024)")
    private int context = 1024;

    @Option(
            names = "--packing",
            converter = OptionWords.OfPacking.class,
            paramLabel = "on|best-fit|off",
            description =
                    "on: sequences packed without padding, as they come; best-fit: the rest of a micro-batch is filled with the"
                            + " longest of the next 32 sequences that fits; off: one sequence a row, padded to --context"
                            + " (default: on)")
    private Packing packing = Packing.ON;

    /**
     * Checks what depends on no other option.
     *
     * @throws IllegalArgumentException when an option has no usable value; the text names it
     */
    void check() {
        if (tokensPerStep != null) {
            TrainOptions.requireAtLeast("--tokens-per-step", tokensPerStep, BatchShape.TOKEN_MULTIPLE);
        }
        TrainOptions.requireAtLeast("--accumulate", accumulate, 1);
    }

    /**
     * Checks that micro-batches of all ranks can be counted.
     *
     * @throws IllegalArgumentException when they cannot
     */
    void check(RankOptions ranks) {
        int copies = ranks.layout().dataRanks();
        if ((long) accumulate * copies > Integer.MAX_VALUE) {
            throw new IllegalArgumentException("--accumulate, --ranks: expected at most " + Integer.MAX_VALUE
                    + " micro-batches in all, got " + accumulate + " on each of " + copies);
        }
    }

    /**
     * Checks that a sequence fits.
     *
     * @throws IllegalArgumentException when none does
     */
    void checkContext() {
        if (context < MaskedProteins.SHORTEST_CONTEXT) {
            throw new IllegalArgumentException("--context: expected at least " + MaskedProteins.SHORTEST_CONTEXT
                    + " (<cls>, one residue, <eos>), got " + context);
        }
    }

    /**
     * Checks the tokens of a step that were given, if they were.
     *
     * @throws IllegalArgumentException when they do not fit the other options
     */
    void checkShape(RankOptions ranks) {
        if (tokensPerStep != null) {
            var _ = shape(tokensPerStep, ranks);
        }
    }

    /**
     * Returns the most that a step has.
     *
     * @param defaultTokens of a step, where they were not given
     * @throws IllegalArgumentException when options do not fit each other
     */
    BatchShape shape(int defaultTokens, RankOptions ranks) {
        if (tokensPerStep == null && context > roundUp(context)) {
            throw new IllegalArgumentException("--context: expected at most " + roundUp(context)
                    + ", as many tokens as a step can have, got " + context);
        }
        int budget = tokensPerStep != null ? tokensPerStep : enough(defaultTokens, ranks);
        requireShares(budget, ranks);
        try {
            return new BatchShape(
                    layout(), budget, context, accumulate * ranks.layout().dataRanks());
        } catch (IllegalArgumentException e) {
            String text = String.valueOf(e.getMessage());
            throw new IllegalArgumentException(
                    text.replace("tokensPerStep", "--tokens-per-step").replace("context:", "--context:"), e);
        }
    }

    /** Returns at least {@code tokens}, as many as micro-batches with room for the longest sequence can share, if that is an int. */
    private int enough(int tokens, RankOptions ranks) {
        long microBatches = (long) accumulate * ranks.layout().dataRanks();
        long multiple = microBatches * BatchShape.TOKEN_MULTIPLE;
        long least = Math.max(tokens, microBatches * roundUp(context));
        long shared = (least + multiple - 1) / multiple * multiple;
        return shared <= Integer.MAX_VALUE ? (int) shared : Math.max(tokens, roundUp(context));
    }

    /** Checks that the tokens of a step can be divided into micro-batches that each have room for the longest sequence. */
    private void requireShares(int budget, RankOptions ranks) {
        int copies = ranks.layout().dataRanks();
        long microBatches = (long) accumulate * copies;
        long multiple = microBatches * BatchShape.TOKEN_MULTIPLE;
        long least = microBatches * roundUp(context);
        if (microBatches == 1 || (budget % multiple == 0 && budget >= least)) {
            return;
        }
        boolean counted = copies == ranks.count() && !ranks.countOption().equals("--mesh");
        String among = counted ? ranks.countOption() + " " + copies : copies + " copies of --mesh";
        String shared = copies == 1
                ? "--accumulate " + accumulate
                : accumulate == 1 ? among : "--accumulate " + accumulate + " on each of " + among;
        long fitting = Math.max(least, budget / multiple * multiple);
        String lower = lower(budget < least, copies == 1 ? "" : counted ? ranks.countOption() : "the copies of --mesh");
        throw new IllegalArgumentException("--tokens-per-step: expected a multiple of " + multiple + " from " + least
                + " on, for " + microBatches + " micro-batches share it (" + shared + "), each with a multiple of "
                + BatchShape.TOKEN_MULTIPLE + " tokens and room for a sequence of --context " + context + "; got "
                + budget
                + (tokensPerStep == null ? ", the default" : "") + "; "
                + (fitting <= Integer.MAX_VALUE ? "give --tokens-per-step " + fitting + ", or " : "") + lower);
    }

    /** Says what else can be lowered so that the tokens of a step suffice: sequences, and micro-batches that share them. */
    private String lower(boolean tooFew, String ranks) {
        List<String> options = new ArrayList<>();
        if (tooFew) {
            options.add("--context");
        }
        if (accumulate > 1) {
            options.add("--accumulate");
        }
        if (!ranks.isEmpty()) {
            options.add(ranks);
        }
        String last = options.removeLast();
        return "lower " + (options.isEmpty() ? "" : String.join(", ", options) + " or ") + last;
    }

    /** Returns how batches are laid out. */
    BatchLayout layout() {
        return packing == Packing.OFF ? BatchLayout.PADDED : BatchLayout.PACKED;
    }

    /** Returns in which order sequences are packed. */
    PackingOrder order() {
        return packing == Packing.BEST_FIT ? PackingOrder.BEST_FIT : PackingOrder.AS_GIVEN;
    }

    private static int roundUp(int context) {
        int multiple = BatchShape.TOKEN_MULTIPLE;
        return (int) Math.min(
                (context + (long) multiple - 1) / multiple * multiple, Integer.MAX_VALUE / multiple * multiple);
    }
}
