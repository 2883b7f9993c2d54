package dev.chagres.trainer.command;

import dev.chagres.Device;
import dev.chagres.bindings.ForeignText;
import dev.chagres.models.data.FastaReader;
import dev.chagres.models.esm.Esm2Classifier;
import dev.chagres.models.esm.Esm2ClassifierConfig;
import dev.chagres.models.esm.Esm2ClassifierConfig.Problem;
import dev.chagres.models.esm.Esm2ClassifierConfig.Task;
import dev.chagres.models.huggingface.Esm2Checkpoint;
import dev.chagres.models.huggingface.PeftAdapters;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.IntStream;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;

/**
 * Says what a fine-tuned ESM-2 predicts of proteins.
 *
 * <p>Of one class: {@code p = softmax(logits)}; of several: {@code p = sigmoid(logits)}, and those above one half; of a number: {@code logit *
 * standard deviation + mean}, where the folder has these two.
 *
 * <p>Exit statuses: 0 done; 1 the data, a file or the machine failed, told in one line; 2 the options are wrong.
 *
 * <p>Threading: one thread at a time.
 */
@Command(
        name = "predict",
        mixinStandardHelpOptions = true,
        versionProvider = BuildVersion.class,
        sortOptions = false,
        description = "Predicts classes or numbers of proteins, or classes of residues, by a fine-tuned ESM-2.",
        footer = {
            "",
            "--model is a folder that finetune has saved, with adapters, too, whose model must still be there; or any other",
            "EsmForSequenceClassification or EsmForTokenClassification.",
            "FILE is JSON Lines, in the order of the proteins: protein, id, residues, taken, and of classification label and",
            "probabilities, of multi-label labels and probabilities, of regression value, of tokens labels and their",
            "probabilities.",
            "Exit status: 0 done, 1 failed, 2 wrong options."
        })
public final class Predict extends ProteinCommand {
    private static final String ADAPTERS = "adapter_config.json";

    @Mixin
    private ModelOptions model = new ModelOptions();

    @Mixin
    private JsonLines output = new JsonLines();

    /** A protein whose sequence waits for a batch. */
    private record Asked(Map<String, Object> line, int[] tokens) {}

    /** What numbers of the model mean. */
    private record Meaning(Esm2ClassifierConfig config, List<String> names, TargetScale scale) {}

    private final List<Asked> pending = new ArrayList<>();
    private long pendingTokens;
    private long computed;

    Predict(PrintStream out, PrintStream err) {
        super(out, err);
    }

    /** Runs the command and ends the process with its exit status. */
    public static void main(String[] arguments) {
        System.exit(run(System.out, System.err, arguments));
    }

    /** Returns the exit status of the command. */
    public static int run(PrintStream out, PrintStream err, String... arguments) {
        Predict predict = new Predict(out, err);
        int status = CommandStart.of(predict, out, err, arguments);
        return predict.output.status(status, "predict", out, err);
    }

    @Override
    void run() throws IOException {
        FastaOptions fasta = model.fasta();
        output.check(model);
        model.begin();
        Path folder = model.folder();
        boolean adapters = Files.exists(folder.resolve(ADAPTERS));
        Path whole = adapters ? base(folder) : folder;
        int context = context(whole);
        Proteins proteins = output.proteins(fasta, context);
        try (Device device = Device.open();
                Esm2Classifier opened = adapters
                        ? PeftAdapters.openMergedClassifier(device, whole, folder, model.dtype())
                        : Esm2Checkpoint.openClassifier(device, folder, model.dtype());
                PackedModel packed = PackedModel.logits(opened)) {
            List<String> names = adapters ? PeftAdapters.labels(folder) : Esm2Checkpoint.labels(folder);
            var meaning =
                    new Meaning(opened.config(), named(names, opened.config().labels()), TargetScale.read(folder));
            output.write(this, proteins, "predictions", (lines, progress) -> {
                predict(proteins, packed, meaning, context - 2, lines, progress);
                return computed;
            });
        }
    }

    /** Returns a name of each class. */
    private static List<String> named(List<String> names, int count) {
        if (names.isEmpty()) {
            return IntStream.range(0, count).mapToObj(i -> "LABEL_" + i).toList();
        }
        if (names.size() != count || Set.copyOf(names).size() != count) {
            throw new CommandFailure("--model: expected id2label with a name of its own for each of " + count
                    + " classes, got " + ForeignText.plain(names));
        }
        return names;
    }

    private static Path base(Path adapters) {
        Path base = PeftAdapters.base(adapters).orElse(null);
        if (base == null || !Files.isDirectory(base)) {
            throw new CommandFailure("--model: expected the model that the adapters of " + adapters + " name, got "
                    + (base == null ? "none" : base + ", which is not there")
                    + "; make one folder of both by convert --from " + adapters + " --base FOLDER");
        }
        return base;
    }

    private int context(Path whole) {
        int most = Esm2Checkpoint.config(whole).context();
        Integer asked = model.context();
        if (asked != null && asked > most) {
            throw new IllegalArgumentException(
                    "--context: expected at most " + most + ", max_position_embeddings of config.json, got " + asked);
        }
        return asked == null ? most : asked;
    }

    private void predict(
            Proteins proteins,
            PackedModel packed,
            Meaning meaning,
            int most,
            JsonLines.Lines lines,
            ProgressLine progress)
            throws IOException {
        long number = 0;
        long residues = 0;
        try (FastaReader reader = proteins.source().open()) {
            while (reader.advance()) {
                int taken = Math.min(reader.length(), most);
                Map<String, Object> line = new LinkedHashMap<>();
                line.put("protein", number++);
                line.put("id", Proteins.id(reader.header(), number));
                line.put("residues", reader.length());
                line.put("taken", taken);
                if (!pending.isEmpty() && pendingTokens + taken + 2 > model.batchTokens()) {
                    compute(packed, meaning, lines);
                }
                pending.add(new Asked(line, PackedModel.tokens(reader.residues(), 0, taken)));
                pendingTokens += taken + 2;
                residues += reader.length();
                progress.at(number, computed, (double) residues / proteins.residues(), 0);
            }
        }
        if (!pending.isEmpty()) {
            compute(packed, meaning, lines);
        }
    }

    private void compute(PackedModel packed, Meaning meaning, JsonLines.Lines lines) throws IOException {
        Rows rows = new Rows(
                packed.compute(pending.stream().map(Asked::tokens).toList()),
                packed.columns(),
                meaning.config().labels());
        int row = 0;
        for (Asked each : pending) {
            tell(each, rows, row, meaning);
            row += each.tokens().length;
            lines.add(each.line());
        }
        computed += pendingTokens;
        pending.clear();
        pendingTokens = 0;
    }

    /** Scores of tokens, of each the first numbers of a row. */
    private record Rows(float[] logits, int columns, int count) {
        double logit(int row, int label) {
            return logits[row * columns + label];
        }

        /** Returns the class with the highest score, of equal ones the first. */
        int best(int row) {
            return IntStream.range(0, count)
                    .reduce((a, b) -> logit(row, b) > logit(row, a) ? b : a)
                    .orElseThrow();
        }

        /** Returns e^logit / the sum of all. */
        double[] softmax(int row) {
            double most = logit(row, best(row));
            double[] parts = IntStream.range(0, count)
                    .mapToDouble(label -> Math.exp(logit(row, label) - most))
                    .toArray();
            double sum = IntStream.range(0, count).mapToDouble(i -> parts[i]).sum();
            return IntStream.range(0, count).mapToDouble(i -> parts[i] / sum).toArray();
        }

        double[] sigmoid(int row) {
            return IntStream.range(0, count)
                    .mapToDouble(label -> 1 / (1 + Math.exp(-logit(row, label))))
                    .toArray();
        }
    }

    private static void tell(Asked asked, Rows rows, int first, Meaning meaning) {
        Map<String, Object> line = asked.line();
        List<String> names = meaning.names();
        if (meaning.config().task() == Task.TOKENS) {
            int[] residues = IntStream.range(first + 1, first + asked.tokens().length - 1)
                    .toArray();
            List<String> labels = IntStream.of(residues)
                    .mapToObj(row -> names.get(rows.best(row)))
                    .toList();
            boolean letters = names.stream().allMatch(name -> name.length() == 1);
            line.put("labels", letters ? String.join("", labels) : labels);
            line.put(
                    "probabilities",
                    IntStream.of(residues)
                            .mapToDouble(row -> rows.softmax(row)[rows.best(row)])
                            .boxed()
                            .toList());
            return;
        }
        Problem problem = meaning.config().problem();
        if (problem == Problem.REGRESSION && names.size() == 1) {
            line.put("value", meaning.scale().plain(rows.logit(first, 0)));
            return;
        }
        switch (problem) {
            case SINGLE_LABEL -> {
                line.put("label", names.get(rows.best(first)));
                line.put("probabilities", named(names, rows.softmax(first)));
            }
            case MULTI_LABEL -> {
                line.put(
                        "labels",
                        IntStream.range(0, names.size())
                                .filter(label -> rows.logit(first, label) > 0)
                                .mapToObj(names::get)
                                .toList());
                line.put("probabilities", named(names, rows.sigmoid(first)));
            }
            case REGRESSION ->
                line.put(
                        "values",
                        named(
                                names,
                                IntStream.range(0, names.size())
                                        .mapToDouble(label -> rows.logit(first, label))
                                        .toArray()));
        }
    }

    private static Map<String, Double> named(List<String> names, double[] numbers) {
        Map<String, Double> all = new LinkedHashMap<>();
        for (int i = 0; i < numbers.length; i++) {
            all.put(names.get(i), numbers[i]);
        }
        return all;
    }
}
