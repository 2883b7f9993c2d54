package dev.chagres.trainer.command;

import dev.chagres.Device;
import dev.chagres.models.data.EsmVocabulary;
import dev.chagres.models.data.FastaReader;
import dev.chagres.models.esm.Esm2;
import dev.chagres.models.esm.Esm2Config;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;

/**
 * Says how probable an ESM-2 holds proteins, or their mutations.
 *
 * <p>Without mutations each residue is masked alone: {@code pseudo-perplexity = exp(-mean of log p(residue))}. With mutations all places of a
 * mutant are masked together, in the protein as it is: {@code score = sum of log p(new residue) - log p(the one that is there)}. Probabilities
 * are those of all 33 tokens.
 *
 * <p>Exit statuses: 0 done; 1 the data, a file or the machine failed, told in one line; 2 the options are wrong.
 *
 * <p>Threading: one thread at a time.
 *
 * <p>Source: Meier et al., "Language models enable zero-shot prediction of the effects of mutations on protein function", NeurIPS 2021.
 */
@Command(
        name = "score",
        mixinStandardHelpOptions = true,
        versionProvider = BuildVersion.class,
        sortOptions = false,
        description = "Scores proteins, or their mutations, by an ESM-2.",
        footer = {
            "",
            "FILE is JSON Lines, in the order of the proteins: protein, id, residues, taken,",
            "logLikelihood, pseudoPerplexity; or of the mutations: id, mutation, score.",
            "A file of mutations has lines ID MUTATION, such as P53_HUMAN R175H, or",
            "R175H:R248Q for a mutant with both.",
            "Exit status: 0 done, 1 failed, 2 wrong options."
        })
public final class Score extends ProteinCommand {
    @Mixin
    private ModelOptions model = new ModelOptions();

    @Mixin
    private RecipeOption recipe = new RecipeOption();

    @Mixin
    private JsonLines output = new JsonLines();

    @Option(
            names = "--mutation",
            paramLabel = "A42G",
            description = "score this mutation of each protein; may be given several times")
    private List<String> mutations = List.of();

    @Option(
            names = "--mutations",
            converter = FileChecks.FileOption.class,
            paramLabel = "FILE",
            description = "score the mutations of this file")
    private @Nullable Path mutationFile;

    /** What becomes a line, once its sequences are computed. */
    private static final class Asked {
        private final Map<String, Object> line;
        private final String key;
        /** Masked places, and the tokens that count there for and against. */
        private final int[] more;

        private final int[] less;
        private int left;
        private double sum;
        private int terms;

        Asked(Map<String, Object> line, String key, int[] more, int[] less, int left) {
            this.line = line;
            this.key = key;
            this.more = more;
            this.less = less;
            this.left = left;
        }
    }

    /** A sequence with masks at these places, which count for a line. */
    private record Masked(Asked asked, int[] tokens, int[] places) {}

    private final List<Masked> pending = new ArrayList<>();
    private long pendingTokens;
    private long computed;

    Score(PrintStream out, PrintStream err) {
        super(out, err);
    }

    /** Runs the command and ends the process with its exit status. */
    public static void main(String[] arguments) {
        System.exit(run(System.out, System.err, arguments));
    }

    /** Returns the exit status of the command. */
    static int run(PrintStream out, PrintStream err, String... arguments) {
        Score score = new Score(out, err);
        int status = CommandStart.of(score, out, err, arguments);
        return score.output.status(status, "score", out, err);
    }

    @Override
    void run() throws IOException {
        FastaOptions fasta = model.fasta();
        output.check(model);
        FileChecks.requireDifferent("--out", output.path(), "--mutations", mutationFile);
        mutations.forEach(text -> Mutation.of("--mutation", text));
        Map<String, List<String>> ofFile = mutationsOfFile();
        model.begin();
        recipe.requireWeights(model.precision());
        Esm2Config config = model.config();
        int most = config.context() - 2;
        Proteins proteins = output.proteins(fasta, config.context());
        checkMutations(proteins, ofFile, most);
        try (Device device = Device.open();
                Esm2 opened = model.open(device);
                PackedModel packed = PackedModel.logits(opened, recipe.recipe())) {
            output.write(this, proteins, "scores", (lines, progress) -> {
                score(proteins, packed, ofFile, most, lines, progress);
                return computed;
            });
        }
    }

    private Map<String, List<String>> mutationsOfFile() throws IOException {
        Map<String, List<String>> all = new LinkedHashMap<>();
        Path file = mutationFile;
        if (file == null) {
            return all;
        }
        int number = 0;
        for (String line : Files.readAllLines(file)) {
            number++;
            if (line.isBlank() || line.startsWith("#")) {
                continue;
            }
            String where = "--mutations: " + file + ":" + number;
            String[] words = line.strip().split("\\s+", -1);
            if (words.length != 2) {
                throw new CommandFailure(where + ": expected ID MUTATION, got " + words.length + " words");
            }
            ofData(() -> Mutation.of(where, words[1]));
            all.computeIfAbsent(words[0], _ -> new ArrayList<>()).add(words[1]);
        }
        return all;
    }

    /** A wrong file is no wrong option. */
    private static void ofData(Runnable check) {
        try {
            check.run();
        } catch (IllegalArgumentException e) {
            throw new CommandFailure(String.valueOf(e.getMessage()), e);
        }
    }

    /** Tells mutations that do not fit before anything is computed. */
    private void checkMutations(Proteins proteins, Map<String, List<String>> ofFile, int most) {
        Set<String> missing = new HashSet<>(ofFile.keySet());
        long number = 0;
        try (FastaReader reader = proteins.source().open()) {
            while (reader.advance()) {
                String id = Proteins.id(reader.header(), ++number);
                int length = Math.min(reader.length(), most);
                missing.remove(id);
                for (String text : mutationsOf(id, ofFile)) {
                    boolean option = mutations.contains(text);
                    String where = option ? "--mutation" : "--mutations";
                    ofData(() -> Mutation.of(where, text)
                            .forEach(one -> one.ensureFits(where, id, reader.residues(), length)));
                }
            }
        }
        if (!missing.isEmpty()) {
            throw new CommandFailure(
                    "--mutations: expected proteins of " + proteins.source().name() + ", got "
                            + missing.stream().sorted().findFirst().orElseThrow() + ", which it lacks");
        }
    }

    private List<String> mutationsOf(String id, Map<String, List<String>> ofFile) {
        List<String> all = new ArrayList<>(mutations);
        all.addAll(ofFile.getOrDefault(id, List.of()));
        return all;
    }

    private void score(
            Proteins proteins,
            PackedModel packed,
            Map<String, List<String>> ofFile,
            int most,
            JsonLines.Lines lines,
            ProgressLine progress)
            throws IOException {
        boolean mutants = !mutations.isEmpty() || mutationFile != null;
        long number = 0;
        long residues = 0;
        try (FastaReader reader = proteins.source().open()) {
            while (reader.advance()) {
                number++;
                residues += reader.length();
                String id = Proteins.id(reader.header(), number);
                int taken = Math.min(reader.length(), most);
                int[] tokens = PackedModel.tokens(reader.residues(), 0, taken);
                if (mutants) {
                    for (String text : mutationsOf(id, ofFile)) {
                        askMutant(id, text, tokens, packed, lines);
                    }
                } else {
                    askProtein(id, number, reader.length(), tokens, packed, lines);
                }
                double share = (double) residues / proteins.residues();
                progress.at(number, computed, share, 0);
            }
        }
        compute(packed, lines);
    }

    private void askMutant(String id, String text, int[] tokens, PackedModel packed, JsonLines.Lines lines)
            throws IOException {
        List<Mutation> together = Mutation.of("--mutation", text);
        int[] places = together.stream().mapToInt(Mutation::place).toArray();
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("id", id);
        line.put("mutation", text);
        int[] more = together.stream()
                .mapToInt(one -> EsmVocabulary.residueToken((byte) one.to()))
                .toArray();
        int[] less = Arrays.stream(places).map(place -> tokens[place]).toArray();
        ask(new Masked(new Asked(line, "score", more, less, 1), tokens, places), packed, lines);
    }

    private void askProtein(String id, long number, int length, int[] tokens, PackedModel packed, JsonLines.Lines lines)
            throws IOException {
        int taken = tokens.length - 2;
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("protein", number - 1);
        line.put("id", id);
        line.put("residues", length);
        line.put("taken", taken);
        Asked asked = new Asked(line, "logLikelihood", new int[0], new int[0], taken);
        for (int place = 1; place <= taken; place++) {
            ask(new Masked(asked, tokens, new int[] {place}), packed, lines);
        }
    }

    private void ask(Masked masked, PackedModel packed, JsonLines.Lines lines) throws IOException {
        int length = masked.tokens().length;
        if (!pending.isEmpty() && pendingTokens + length > model.batchTokens()) {
            compute(packed, lines);
        }
        pending.add(masked);
        pendingTokens += length;
    }

    private void compute(PackedModel packed, JsonLines.Lines lines) throws IOException {
        if (pending.isEmpty()) {
            return;
        }
        List<int[]> sequences = new ArrayList<>();
        for (Masked one : pending) {
            int[] tokens = one.tokens().clone();
            for (int place : one.places()) {
                tokens[place] = EsmVocabulary.MASK;
            }
            sequences.add(tokens);
        }
        float[] logits = packed.compute(sequences);
        int row = 0;
        for (Masked one : pending) {
            take(one, logits, row);
            row += one.tokens().length;
            if (--one.asked().left == 0) {
                tell(one.asked(), lines);
            }
        }
        computed += pendingTokens;
        pending.clear();
        pendingTokens = 0;
    }

    private static void take(Masked one, float[] logits, int row) {
        Asked asked = one.asked();
        for (int i = 0; i < one.places().length; i++) {
            int place = one.places()[i];
            double[] log = logProbabilities(logits, (row + place) * EsmVocabulary.PADDED_SIZE);
            boolean mutant = asked.more.length > 0;
            asked.sum += mutant ? log[asked.more[i]] - log[asked.less[i]] : log[one.tokens()[place]];
            asked.terms++;
        }
    }

    private static double[] logProbabilities(float[] logits, int begin) {
        double most = Double.NEGATIVE_INFINITY;
        for (int i = 0; i < EsmVocabulary.SIZE; i++) {
            most = Math.max(most, logits[begin + i]);
        }
        double sum = 0;
        for (int i = 0; i < EsmVocabulary.SIZE; i++) {
            sum += Math.exp(logits[begin + i] - most);
        }
        double[] log = new double[EsmVocabulary.SIZE];
        for (int i = 0; i < log.length; i++) {
            log[i] = logits[begin + i] - most - Math.log(sum);
        }
        return log;
    }

    private static void tell(Asked asked, JsonLines.Lines lines) throws IOException {
        asked.line.put(asked.key, asked.sum);
        if (asked.more.length == 0) {
            asked.line.put("pseudoPerplexity", Math.exp(-asked.sum / asked.terms));
        }
        lines.add(asked.line);
    }
}
