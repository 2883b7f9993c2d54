package dev.chagres.trainer.command;

import dev.chagres.Device;
import dev.chagres.models.data.FastaReader;
import dev.chagres.models.esm.Esm2Base;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.trainer.command.EmbeddingFile.Rows;
import dev.chagres.trainer.command.LongSequences.Window;
import dev.chagres.trainer.command.PackedModel.Spans;
import dev.chagres.trainer.command.PackedModel.States;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.FileSystemException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;

/**
 * Writes the hidden states that an ESM-2 has of the proteins of a FASTA file: their mean, that of {@code <cls>}, or each residue's.
 *
 * <p>Exit statuses: 0 done; 1 the data, a file or the machine failed, told in one line; 2 the options are wrong.
 *
 * <p>Threading: one thread at a time.
 */
@Command(
        name = "embed",
        mixinStandardHelpOptions = true,
        versionProvider = BuildVersion.class,
        sortOptions = false,
        description = "Writes what an ESM-2 knows of proteins: numbers of its last layer, behind its norm.",
        footer = {
            "",
            "FILE has the rows in the order of the FASTA file, in FP32. FILE.jsonl has, after",
            "a line of the options, a line a protein: protein, id, residues, taken, windows,",
            "row, rows. In .npy all rows lie in one array; .safetensors has a tensor mean or",
            "cls, or with --rows tokens one for each protein, named by its id. .parquet has",
            "columns protein, id, with --rows tokens residue, and embedding.",
            "A command that was killed goes on when it is started again.",
            "Exit status: 0 done, 1 failed, 2 wrong options."
        })
public final class Embed extends ProteinCommand {
    @Mixin
    private ModelOptions model = new ModelOptions();

    @Mixin
    private RecipeOption recipe = new RecipeOption();

    @Option(
            names = "--out",
            required = true,
            converter = FileChecks.FileOption.class,
            paramLabel = "FILE.safetensors|FILE.npy|FILE.parquet",
            description = "the file to write")
    private Path output = Path.of("");

    @Option(
            names = "--rows",
            converter = Rows.Words.class,
            paramLabel = "mean|cls|tokens",
            description =
                    "a row a protein: the mean of its residues, or the state of <cls>; or a row a residue (default:"
                            + " mean)")
    private Rows rows = Rows.MEAN;

    @Option(
            names = "--long",
            converter = LongSequences.Words.class,
            paramLabel = "refuse|cut|windows",
            description = "what becomes of proteins longer than --context: refused before anything is computed, cut, or"
                    + " computed in windows that overlap by half, whose states are averaged (default: refuse)")
    private LongSequences longer = LongSequences.REFUSE;

    Embed(PrintStream out, PrintStream err) {
        super(out, err);
    }

    /** Runs the command and ends the process with its exit status. */
    public static void main(String[] arguments) {
        System.exit(run(System.out, System.err, arguments));
    }

    /** Runs the command and returns its exit status. */
    static int run(PrintStream out, PrintStream err, String... arguments) {
        return CommandStart.of(new Embed(out, err), out, err, arguments);
    }

    @Override
    void run() throws IOException {
        long begun = System.nanoTime();
        EmbeddingFile.requireFormat(output, ".safetensors", ".npy", ".parquet");
        FastaOptions fasta = model.fasta();
        model.requireOthers("--out", output);
        model.begin();
        recipe.requireWeights(model.precision());
        Esm2Config config = model.config();
        int most = config.context() - 2;
        Proteins proteins =
                Proteins.of(fasta.source(), config.context(), longer, LongSequences.CUT, LongSequences.WINDOWS);
        try (EmbeddingFile file = new EmbeddingFile(output, rows, config.hidden(), options(proteins, config))) {
            int before = file.proteins();
            if (before > 0) {
                out().printf(Locale.ROOT, "going on after %,d of %,d proteins%n", before, proteins.count());
            }
            Took took;
            try (Device device = Device.open();
                    Esm2Base opened = model.openBase(device);
                    PackedModel packed = PackedModel.hidden(opened, recipe.recipe(), sequences(proteins));
                    ProgressLine progress = new ProgressLine(err(), "proteins", proteins.count())) {
                double opening = (System.nanoTime() - begun) / 1e9;
                Pending pending = embed(proteins, packed, file, most, progress);
                took = new Took(pending.computed, opening, pending.firstSeconds, progress.seconds());
            }
            tell(file, proteins, took);
        } catch (FileSystemException e) { // names a file
            throw e;
        } catch (IOException e) {
            throw new CommandFailure(output + " cannot be written: " + e.getMessage(), e);
        }
    }

    /** Returns how many proteins a batch has as a rule, without those that are longer than others. */
    private int sequences(Proteins proteins) {
        long length = proteins.residues() / Math.max(1, proteins.count()) + 2;
        return Math.toIntExact(model.batchTokens() / length);
    }

    /**
     * How long the command took.
     *
     * @param opening seconds until the model was there
     * @param first seconds from then on until the first batch was computed
     * @param seconds from when the model was there until the last batch was written, the first one among them
     */
    private record Took(long tokens, double opening, double first, double seconds) {}

    private Map<String, Object> options(Proteins proteins, Esm2Config config) throws IOException {
        Map<String, Object> options = new LinkedHashMap<>();
        options.put("command", "embed");
        options.put("version", BuildVersion.text());
        options.put("model", model.folder().toString());
        options.put("modelContent", model.content());
        options.put("fasta", proteins.source().name());
        options.put("fastaContent", proteins.source().content());
        options.put("proteins", proteins.count());
        options.put("residues", proteins.residues());
        options.put("rowsOf", EnumOption.word(rows));
        options.put("columns", config.hidden());
        options.put("context", config.context());
        options.put("long", EnumOption.word(longer));
        options.put("dtype", model.precision());
        options.put("recipe", recipe.word(model.precision()));
        return options;
    }

    private void tell(EmbeddingFile file, Proteins proteins, Took took) throws IOException {
        Map<String, Object> totals = new LinkedHashMap<>();
        totals.put("done", proteins.count());
        totals.put("tokens", took.tokens());
        totals.put("seconds", took.seconds());
        totals.put("secondsOfOpening", took.opening());
        totals.put("secondsOfFirstBatch", took.first());
        proteins.putUnknown(totals);
        Path index = file.publish(totals);
        out().printf(
                        Locale.ROOT,
                        "%s, %,d tokens in %.1f s, %,.0f tokens/s; the first batch took %.1f s of them, opening the model %.1f s before%n",
                        proteins.text(),
                        took.tokens(),
                        took.seconds(),
                        took.tokens() / took.seconds(),
                        took.first(),
                        took.opening());
        proteins.tellUnknown(out());
        out().println("embeddings: " + output);
        out().println("index: " + index);
    }

    /** Neighbouring tokens of a window, of whose mean a protein's row gets {@code weight} times. */
    private record Run(int first, int count, double weight) {}

    /** A protein some of whose windows are computed. */
    private final class Pooled {
        private final String id;
        private final int residues;
        private final int taken;
        private final List<Window> windows;
        private final int[] covered;
        /** Of a single row; empty where each residue has one. */
        private final double[] sums;

        private final float[] numbers;
        private final float[] state;
        private int done;

        Pooled(String id, int residues, List<Window> windows, int hidden) {
            this.id = id;
            this.residues = residues;
            this.windows = windows;
            state = new float[hidden];
            Window last = windows.getLast();
            taken = last.begin() + last.count();
            covered = new int[taken];
            for (Window window : windows) {
                for (int i = 0; i < window.count(); i++) {
                    covered[window.begin() + i]++;
                }
            }
            sums = new double[rows == Rows.TOKENS ? 0 : hidden];
            numbers = new float[Math.multiplyExact(rows == Rows.TOKENS ? taken : 1, hidden)];
        }

        /** Returns the runs of a window's tokens that count alike: {@code <cls>}, or residues that as many windows have; none for tokens. */
        List<Run> runs(Window window) {
            if (rows == Rows.TOKENS) {
                return List.of();
            }
            if (rows == Rows.CLS) {
                return List.of(new Run(0, 1, 1.0 / windows.size()));
            }
            List<Run> runs = new ArrayList<>();
            int end = window.begin() + window.count();
            for (int begin = window.begin(), next; begin < end; begin = next) {
                next = begin + 1;
                while (next < end && covered[next] == covered[begin]) {
                    next++;
                }
                double weight = (double) (next - begin) / covered[begin] / taken;
                runs.add(new Run(1 + begin - window.begin(), next - begin, weight));
            }
            return runs;
        }

        /** Adds the states of the next window: those of its runs, or of its tokens, from row {@code first}. */
        void add(States states, int first, List<Run> runs) {
            Window window = windows.get(done++);
            int row = first;
            if (rows != Rows.TOKENS) {
                for (Run run : runs) {
                    states.read(row++, state);
                    for (int i = 0; i < state.length; i++) {
                        sums[i] += run.weight() * state[i];
                    }
                }
                return;
            }
            for (int i = 0; i < window.count(); i++) {
                int residue = window.begin() + i;
                states.read(++row, state);
                for (int j = 0; j < state.length; j++) {
                    numbers[residue * state.length + j] += state[j] / covered[residue];
                }
            }
        }

        float[] numbers() {
            for (int i = 0; i < sums.length; i++) {
                numbers[i] = (float) sums[i];
            }
            return numbers;
        }

        boolean isWhole() {
            return done == windows.size();
        }
    }

    /** A window of a protein, which is computed with others. */
    private record Piece(Pooled owner, List<Run> runs, int[] tokens) {}

    /** A window whose states begin at a row. */
    private record Placed(int row, List<Run> runs) {}

    /** Windows of proteins, in order: those of the next batch, and those of the batch that the device computes meanwhile. */
    private final class Pending {
        private final PackedModel packed;
        private final EmbeddingFile file;
        private final ProgressLine progress;
        private List<Piece> next = new ArrayList<>();
        private List<Piece> underway = List.of();
        private @Nullable States states;
        private long count;
        private long computed;
        private double firstSeconds;

        Pending(PackedModel packed, EmbeddingFile file, ProgressLine progress) {
            this.packed = packed;
            this.file = file;
            this.progress = progress;
        }

        void add(Pooled owner, Window window, int[] tokens) throws IOException {
            if (!next.isEmpty() && count + tokens.length > model.batchTokens()) {
                compute();
            }
            next.add(new Piece(owner, owner.runs(window), tokens));
            count += tokens.length;
        }

        /** Starts the next batch, and writes what the one before has given. */
        void compute() throws IOException {
            List<Piece> before = underway;
            States statesBefore = states;
            underway = next;
            states = next.isEmpty()
                    ? null
                    : packed.start(next.stream().map(Piece::tokens).toList(), spans());
            next = new ArrayList<>();
            count = 0;
            if (statesBefore != null) {
                write(before, statesBefore);
            }
        }

        /** Returns what the device averages of the next batch; null if each token's states are written. */
        private @Nullable Spans spans() {
            if (rows == Rows.TOKENS) {
                return null;
            }
            IntStream.Builder firsts = IntStream.builder();
            IntStream.Builder counts = IntStream.builder();
            int token = 0;
            for (Piece piece : next) {
                for (Run run : piece.runs()) {
                    firsts.add(token + run.first());
                    counts.add(run.count());
                }
                token += piece.tokens().length;
            }
            return new Spans(firsts.build().toArray(), counts.build().toArray());
        }

        private void write(List<Piece> pieces, States states) throws IOException {
            states.await();
            if (computed == 0) {
                firstSeconds = progress.seconds();
            }
            Map<Pooled, List<Placed>> windowsOf = new LinkedHashMap<>();
            int row = 0;
            for (Piece piece : pieces) {
                windowsOf
                        .computeIfAbsent(piece.owner(), any -> new ArrayList<>())
                        .add(new Placed(row, piece.runs()));
                row += rows == Rows.TOKENS
                        ? piece.tokens().length
                        : piece.runs().size();
                computed += piece.tokens().length;
            }
            // A core alone takes as long for the rows of tokens as a GPU for the batch; proteins are apart, and windows
            // of one stay in their order.
            windowsOf.entrySet().parallelStream()
                    .forEach(protein -> protein.getValue()
                            .forEach(window -> protein.getKey().add(states, window.row(), window.runs())));
            for (Pooled owner : windowsOf.keySet()) {
                if (owner.isWhole()) {
                    file.add(owner.id, owner.residues, owner.taken, owner.windows.size(), owner.numbers());
                }
            }
            file.flush();
        }
    }

    /** Returns what was computed, of which nothing is pending. */
    private Pending embed(Proteins proteins, PackedModel packed, EmbeddingFile file, int most, ProgressLine progress)
            throws IOException {
        Pending pending = new Pending(packed, file, progress);
        int hidden = file.columns();
        int before = file.proteins();
        long number = 0;
        long residues = 0;
        long residuesBefore = 0;
        try (FastaReader reader = proteins.source().open()) {
            while (reader.advance()) {
                number++;
                residues += reader.length();
                if (number <= before) {
                    residuesBefore = residues;
                    continue;
                }
                List<Window> windows = longer.windows(reader.length(), most);
                Pooled owner = new Pooled(Proteins.id(reader.header(), number), reader.length(), windows, hidden);
                for (Window window : windows) {
                    pending.add(owner, window, PackedModel.tokens(reader.residues(), window.begin(), window.count()));
                }
                progress.at(
                        number,
                        pending.computed,
                        (double) residues / proteins.residues(),
                        (double) residuesBefore / proteins.residues());
            }
        }
        pending.compute();
        pending.compute(); // Nothing is left to start; the last batch is written.
        return pending;
    }
}
