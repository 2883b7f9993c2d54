package dev.chagres.trainer.finetune;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.jr.ob.JSON;
import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.models.data.HeldOut;
import dev.chagres.models.data.UnknownLetters;
import dev.chagres.models.esm.Esm2Classifier;
import dev.chagres.models.esm.Esm2ClassifierConfig;
import dev.chagres.models.esm.Esm2ClassifierConfig.Problem;
import dev.chagres.models.esm.Esm2ClassifierConfig.Task;
import dev.chagres.models.huggingface.Esm2Checkpoint;
import dev.chagres.models.huggingface.PeftAdapters;
import dev.chagres.optim.LearningRateSchedule;
import dev.chagres.parameter.LoraConfig;
import dev.chagres.trainer.Callback;
import dev.chagres.trainer.DevicesNeeded;
import dev.chagres.trainer.Trainer;
import dev.chagres.trainer.callback.Evaluation;
import dev.chagres.trainer.command.Predict;
import dev.chagres.trainer.command.TargetScale;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.SplittableRandom;
import java.util.function.UnaryOperator;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** What the command learns, on one rank and on several, and what is read back of it. */
@Tag("L0")
class FineTuneTest extends FineTuneCalls {
    private static final Pattern ACCURACY = Pattern.compile("saved: step \\d+: loss \\S+, accuracy (\\S+), macro F1");

    private double accuracy() {
        Matcher matcher = ACCURACY.matcher(out);
        assertTrue(matcher.find(), out + err);
        return Double.parseDouble(matcher.group(1));
    }

    @Test
    void trainsAWholeModel() throws IOException {
        writeBoth();
        assertEquals(0, tune("classification", "whole", "--learning-rate", "0.003", "--metric", "accuracy"), err);
        assertTrue(accuracy() > 0.9, out);
        assertTrue(err.matches("(?s)(.*\n)?step 1/\\d+  loss \\d\\.\\d{4}  [\\d,]+ tokens/s\n.*"), err);
        assertEquals(List.of("membrane", "nuc,leus", "x"), Esm2Checkpoint.labels(folder.resolve("whole")));
        assertEquals(
                Task.SEQUENCES,
                Esm2Checkpoint.classifierConfig(folder.resolve("whole")).task());
        predictsAsEvaluated("whole");
        predictRefusesDamage(folder.resolve("whole"));
    }

    /** Changes a file of the model, and expects what predict says of it. */
    private void refusesChanged(Path file, UnaryOperator<String> change, String expected) throws IOException {
        String before = Files.exists(file) ? Files.readString(file) : "";
        String changed = change.apply(before);
        assertNotEquals(before, changed);
        Files.writeString(file, changed);
        assertPredictRefuses(Objects.requireNonNull(file.getParent()), expected);
        if (before.isEmpty()) {
            Files.delete(file);
        } else {
            Files.writeString(file, before);
        }
    }

    private void assertPredictRefuses(Path model, String expected, String... further) {
        var bytes = new ByteArrayOutputStream();
        int status = Predict.run(
                new PrintStream(OutputStream.nullOutputStream()),
                new PrintStream(bytes, true, StandardCharsets.UTF_8),
                Stream.concat(
                                Stream.of("--model=" + model, "--fasta=" + folder.resolve("eval.fasta"), "--long=cut"),
                                Stream.of(further))
                        .toArray(String[]::new));
        String told = bytes.toString(StandardCharsets.UTF_8);
        assertTrue(status > 0 && told.contains(expected), told);
        assertEquals(
                1, told.lines().filter(line -> line.startsWith("predict: ")).count(), told);
        assertFalse(told.contains("\tat "), told);
    }

    private void predictRefusesDamage(Path model) throws IOException {
        Path config = model.resolve("config.json");
        refusesChanged(
                config,
                text -> text.replaceAll(": ?\"membrane\"", ": \"x\""),
                "predict: --model: expected id2label with a name of its own for each of 3 classes, got [x, nuc,leus, x]");
        refusesChanged(
                config,
                text -> text.replaceAll("\"max_position_embeddings\": *\\d+", "\"max_position_embeddings\": 2"),
                "predict: --model: expected max_position_embeddings of at least 3 (<cls>, one residue, <eos>), got 2");
        refusesChanged(config, _ -> "{", "config.json: expected a JSON file: Unexpected end-of-input");
        refusesChanged(
                model.resolve("targets.json"),
                _ -> "null",
                "targets.json: expected the numbers mean and standard_deviation, above 0");
        String whole = Files.readString(config);
        assertPredictRefuses(model, "config.json is in the folder of --model already", "--out=" + config);
        assertEquals(whole, Files.readString(config));
        Path weights = model.resolve("model.safetensors");
        byte[] all = Files.readAllBytes(weights);
        byte[] damaged = all.clone();
        Arrays.fill(damaged, damaged.length - 4_000, damaged.length, (byte) 0xff);
        Files.write(weights, damaged);
        assertPredictRefuses(model, "predict: --model: expected finite numbers of protein a, got NaN");
        Files.write(weights, all);
    }

    /** Peptides: the padding of a step is longer than the longest of them. */
    @Test
    void learnsOfSequencesShorterThanThePadding() throws IOException {
        String text = "sequence,label\nAKL,a\nGGL,b\nAAL,a\n";
        Files.writeString(folder.resolve("train.csv"), text);
        Files.writeString(folder.resolve("eval.csv"), text);
        assertEquals(0, tune("classification", "peptides", "--epochs", "1"), err);
    }

    @Test
    void trainsAdaptersAlone() throws IOException {
        writeBoth();
        assertEquals(
                0,
                tune(
                        "classification",
                        "lora",
                        "--lora",
                        "r=4,alpha=8,target=query,value,fc1",
                        "--learning-rate",
                        "0.01"),
                err);
        assertTrue(accuracy() > 0.9, out);
        LoraConfig lora = PeftAdapters.config(MODEL, folder.resolve("lora"));
        assertEquals(List.of("membrane", "nuc,leus", "x"), PeftAdapters.labels(folder.resolve("lora")));
        assertEquals(4, lora.rank());
        assertEquals(6, lora.targets().size(), "three products of each of two layers");
        predictsAsEvaluated("lora");
        try (Device device = Device.open();
                Esm2Classifier model =
                        PeftAdapters.openClassifier(device, MODEL, folder.resolve("lora"), DType.FLOAT32)) {
            PeftAdapters.merge(device, MODEL, folder.resolve("lora"), folder.resolve("merged"));
            assertEquals(List.of("membrane", "nuc,leus", "x"), Esm2Checkpoint.labels(folder.resolve("merged")));
            float[] b = model.parameters()
                    .get("layers.0.attention.qkv.linear.lora_B")
                    .weight()
                    .toFloats(device.stream());
            boolean learned = false;
            for (float value : b) {
                learned |= value != 0;
            }
            assertTrue(learned);
        }
    }

    /** Returns what the command says of each sequence of the file that was evaluated, beside what the file says. */
    private List<Map.Entry<Map<String, Object>, String>> predicted(String save) throws IOException {
        Path csv = folder.resolve("eval.csv");
        List<LabelledProteins.Row> rows = LabelledProteins.read(
                        "--eval", csv, null, Predicted.MULTI_LABEL, UnknownLetters.REFUSE)
                .rows();
        StringBuilder fasta = new StringBuilder();
        rows.forEach(row -> fasta.append(">a\n").append(row.sequence()).append('\n'));
        Files.writeString(folder.resolve("eval.fasta"), fasta);
        Path told = folder.resolve(save + ".jsonl");
        var errBytes = new ByteArrayOutputStream();
        int status = Predict.run(
                new PrintStream(OutputStream.nullOutputStream()),
                new PrintStream(errBytes, true, StandardCharsets.UTF_8),
                "--model=" + folder.resolve(save),
                "--fasta=" + folder.resolve("eval.fasta"),
                "--batch-tokens=200",
                "--out=" + told);
        assertEquals(0, status, () -> errBytes.toString(StandardCharsets.UTF_8));
        List<String> lines = Files.readAllLines(told);
        assertEquals(rows.size(), lines.size());
        List<Map.Entry<Map<String, Object>, String>> all = new ArrayList<>();
        for (int i = 0; i < lines.size(); i++) {
            all.add(Map.entry(JSON.std.mapFrom(lines.get(i)), rows.get(i).label()));
        }
        return all;
    }

    /** The share of proteins, or of residues, whose predicted label is that of the file. */
    private void predictsAsEvaluated(String save) throws IOException {
        int right = 0;
        int count = 0;
        for (var each : predicted(save)) {
            String label = String.valueOf(each.getKey().getOrDefault("label", ""));
            if (label.isEmpty()) {
                String labels = String.valueOf(each.getKey().get("labels"));
                assertEquals(labels.length(), each.getValue().length());
                for (int i = 0; i < labels.length(); i++, count++) {
                    right += labels.charAt(i) == each.getValue().charAt(i) ? 1 : 0;
                }
            } else {
                count++;
                right += label.equals(each.getValue()) ? 1 : 0;
                assertTrue(each.getKey().get("probabilities") instanceof Map<?, ?> all
                        && all.get(label) instanceof Double most
                        && all.values().stream().allMatch(other -> other instanceof Double less && less <= most)
                        && Math.abs(all.values().stream()
                                                .mapToDouble(one -> (Double) one)
                                                .sum()
                                        - 1)
                                < 1e-9);
            }
        }
        assertEquals(accuracy(), (double) right / count, 1e-4);
    }

    @Test
    void predictTellsWhatIsWrong() throws IOException {
        Files.writeString(folder.resolve("a.fasta"), ">a\nMKTAYIAKQR\n");
        Files.createDirectory(folder.resolve("adapters"));
        Files.writeString(
                folder.resolve("adapters/adapter_config.json"),
                "{\"peft_type\": \"LORA\", \"target_modules\": [\"query\"], \"base_model_name_or_path\": \"gone\"}");
        for (var options : Map.of(
                        List.of("--model=" + MODEL),
                        "field architectures: expected [EsmForTokenClassification, EsmForSequenceClassification], got",
                        List.of("--model=" + MODEL, "--context=5000"),
                        "--context: expected at most ",
                        List.of("--model=" + MODEL, "--long=windows"),
                        "--long: expected refuse or cut, got windows",
                        List.of("--model=" + folder.resolve("adapters")),
                        "name, got gone, which is not there; make one folder of both by convert --from ")
                .entrySet()) {
            var bytes = new ByteArrayOutputStream();
            int status = Predict.run(
                    new PrintStream(OutputStream.nullOutputStream()),
                    new PrintStream(bytes, true, StandardCharsets.UTF_8),
                    Stream.concat(options.getKey().stream(), Stream.of("--fasta=" + folder.resolve("a.fasta")))
                            .toArray(String[]::new));
            String told = bytes.toString(StandardCharsets.UTF_8);
            assertTrue(status > 0 && told.contains(options.getValue()), told);
        }
    }

    /** Each sequence is on one side, and the classes are those of both. */
    @Test
    void holdsOutAPartOfTheSequences() throws IOException {
        writeSequences("train.csv", 160, 1);
        String[] options = {
            "--model=" + MODEL,
            "--task=classification",
            "--train=" + folder.resolve("train.csv"),
            "--save=" + folder.resolve("part"),
            "--epochs=1"
        };
        assertEquals(2, run(options));
        assertTrue(err.startsWith("finetune: --eval: expected a file to evaluate on, or --eval-fraction 0.1, "), err);
        assertEquals(
                2,
                run(Stream.concat(Stream.of(options), Stream.of("--eval-fraction=1"))
                        .toArray(String[]::new)));
        assertTrue(
                err.startsWith(
                        "finetune: Invalid value for option '--eval-fraction': expected a number between 0 and 1, got 1"),
                err);
        assertEquals(
                0,
                run(Stream.concat(Stream.of(options), Stream.of("--eval-fraction=0.2"))
                        .toArray(String[]::new)),
                err);
        Matcher counts = Pattern.compile("^(\\d+) sequences of \\S+, (\\d+) sequences of \\S+, held out, 3 labels; ")
                .matcher(out);
        assertTrue(counts.find(), out);
        int held = Integer.parseInt(counts.group(2));
        assertEquals(160, Integer.parseInt(counts.group(1)) + held);
        assertTrue(held > 15 && held < 55, out);
        assertEquals(2, tune("classification", "both", "--eval-fraction", "0.2"));
        assertTrue(err.startsWith("finetune: --eval-fraction: expected none beside --eval, "), err);
        LabelledProteins two = LabelledProteins.read(
                "--train", folder.resolve("train.csv"), null, Predicted.CLASSIFICATION, UnknownLetters.REFUSE);
        String none = String.valueOf(assertThrows(DataException.class, () -> two.only(new HeldOut(1e-9)))
                .getMessage());
        assertEquals(
                "--eval-fraction: expected sequences to train on and to evaluate, got 160 in all, none of them to evaluate",
                none);
    }

    /** Two ranks learn the same as one, apart from rounding and from how sequences are packed. */
    @Test
    void trainsTheHeadOnTwoRanks() throws IOException {
        DevicesNeeded.assume(2);
        writeBoth();
        assertEquals(
                0,
                tune(
                        "classification",
                        "head",
                        "--frozen",
                        "trunk",
                        "--ranks",
                        "2",
                        "--learning-rate",
                        "0.03",
                        "--eval-every",
                        "3",
                        "--early-stopping",
                        "40"),
                err);
        assertTrue(accuracy() > 0.8, out);
        try (Device device = Device.open();
                var before = Esm2Checkpoint.open(device, MODEL, DType.FLOAT32);
                var after = Esm2Checkpoint.openClassifier(device, folder.resolve("head"), DType.FLOAT32)) {
            for (String name : List.of("embedding.weight", "layers.1.mlp.fc2.weight", "norm.bias")) {
                assertArrayEquals(
                        before.parameters().get(name).weight().toFloats(device.stream()),
                        after.parameters().get(name).weight().toFloats(device.stream()),
                        name + " is frozen");
            }
        }
    }

    @Test
    void classifiesResidues() throws IOException {
        for (String name : List.of("train.csv", "eval.csv")) {
            var random = new SplittableRandom(name.length());
            StringBuilder text = new StringBuilder("sequence,label\n");
            for (int i = 0; i < 80; i++) {
                StringBuilder sequence = new StringBuilder();
                StringBuilder label = new StringBuilder();
                for (int j = 8 + random.nextInt(20); j > 0; j--) {
                    int letter = random.nextInt(6);
                    sequence.append("LAGKDE".charAt(letter));
                    label.append(letter < 3 ? 'H' : 'P');
                }
                text.append(sequence).append(',').append(label).append('\n');
            }
            Files.writeString(folder.resolve(name), text);
        }
        assertEquals(
                0,
                tune(
                        "tokens",
                        "tokens",
                        "--frozen",
                        "last-n=1",
                        "--learning-rate",
                        "0.01",
                        "--metric",
                        "matthews",
                        "--epochs",
                        "8"),
                err);
        assertTrue(accuracy() > 0.95, out);
        assertEquals(List.of("H", "P"), Esm2Checkpoint.labels(folder.resolve("tokens")));
        predictsAsEvaluated("tokens");
    }

    @Test
    void readsFastaAndItsLabels() throws IOException {
        Files.writeString(folder.resolve("a.fasta"), ">1\nLLKK\nGG\n>2\nAAAA\n");
        Files.writeString(folder.resolve("a.txt"), "yes\nno\n");
        LabelledProteins read = LabelledProteins.read(
                "--train",
                folder.resolve("a.fasta"),
                folder.resolve("a.txt"),
                Predicted.CLASSIFICATION,
                UnknownLetters.REFUSE);
        var classes = new ClassLabels(Predicted.CLASSIFICATION, List.of(), read);
        assertEquals(List.of("no", "yes"), classes.names());
        var sequences = read.labelled("--train", classes).once();
        assertTrue(sequences.advance());
        assertEquals(8, sequences.length());
        int[] ids = new int[6];
        int[] labels = new int[6];
        assertEquals(1, sequences.write(ids, labels, 0, 6), "a shorter context");
        assertArrayEquals(new int[] {0, 4, 4, 15, 15, 2}, ids);
        assertArrayEquals(new int[] {1, -100, -100, -100, -100, -100}, labels);
        Files.writeString(folder.resolve("a.txt"), "yes\n");
        assertEquals(
                1,
                run(
                        "--model",
                        MODEL.toString(),
                        "--task",
                        "classification",
                        "--train",
                        folder.resolve("a.fasta").toString(),
                        "--train-labels",
                        folder.resolve("a.txt").toString(),
                        "--eval",
                        folder.resolve("a.fasta").toString(),
                        "--save",
                        folder.resolve("none").toString()));
        assertTrue(err.endsWith("labels, 1, got more\n".replace("labels", "has labels")), err);
    }

    private double saved(String metric) {
        Matcher matcher =
                Pattern.compile("saved: .*" + metric + " (\\S+?),?(\\s|$)").matcher(out);
        assertTrue(matcher.find(), out + err);
        return Double.parseDouble(matcher.group(1));
    }

    @Test
    void learnsANumber() throws IOException {
        writeNumbers("train.csv", 160, 1);
        writeNumbers("eval.csv", 40, 2);
        String[] options = {"--standardize", "--learning-rate", "0.003", "--metric", "spearman", "--epochs", "4"};
        assertEquals(0, tune("regression", "one", options), err);
        String enqueued = out;
        String[] captured =
                Stream.concat(Stream.of(options), Stream.of("--graph=on")).toArray(String[]::new);
        assertEquals(0, tune("regression", "captured", captured), err);
        assertEquals(enqueued, out, "captured steps learn the same");
        assertTrue(out.contains("40 sequences of " + folder.resolve("eval.csv") + ", a number each; "), out);
        assertTrue(saved("Spearman") > 0.9, out);
        assertTrue(saved("Pearson") > 0.9, out);
        TargetScale scale = TargetScale.read(folder.resolve("one"));
        assertEquals(58, scale.mean(), 3);
        // The loss is that of standardised labels, MSE that of the data's.
        assertEquals(saved("loss") * scale.deviation() * scale.deviation(), saved("MSE"), 0.01);
        var config = Esm2Checkpoint.classifierConfig(folder.resolve("one"));
        assertEquals(Problem.REGRESSION, config.problem());
        assertEquals(1, config.labels());
        double squares = 0;
        var values = predicted("one");
        for (var each : values) {
            double value = (Double) each.getKey().get("value");
            squares += Math.pow(value - Double.parseDouble(each.getValue()), 2);
        }
        assertEquals(saved("MSE"), squares / values.size(), 1e-3);
        goesOn(scale);
    }

    /** With the head and the scale of the saved folder: the first evaluation is as good as the best one before. */
    private void goesOn(TargetScale scale) throws IOException {
        double before = saved("MSE");
        String first = MODEL.toString();
        assertEquals(
                0,
                run(
                        "--model",
                        folder.resolve("one").toString(),
                        "--task",
                        "regression",
                        "--train",
                        folder.resolve("train.csv").toString(),
                        "--eval",
                        folder.resolve("eval.csv").toString(),
                        "--save",
                        folder.resolve("more").toString(),
                        "--lora",
                        "r=2",
                        "--learning-rate",
                        "1e-7",
                        "--epochs",
                        "1"),
                err);
        assertEquals(before, saved("MSE"), 0.01 * before, first);
        assertEquals(scale, TargetScale.read(folder.resolve("more")), "beside adapters, too");
    }

    /** The same micro-batches on one rank and on two. */
    @Test
    void ranksLearnTheSameNumbers() throws IOException, InterruptedException {
        DevicesNeeded.assume(2);
        writeNumbers("train.csv", 60, 1);
        var read = LabelledProteins.read(
                "--train", folder.resolve("train.csv"), null, Predicted.REGRESSION, UnknownLetters.REFUSE);
        var labels = new NumberLabels(new TargetScale(58, 6));
        LabelledSequences data = read.labelled("--train", labels);
        var config = new Esm2ClassifierConfig(
                Esm2Checkpoint.config(MODEL).withContext(32), Task.SEQUENCES, 1, Problem.REGRESSION);
        List<List<Double>> losses = new ArrayList<>();
        List<Metrics> metrics = new ArrayList<>();
        for (int ranks : new int[] {1, 2}) {
            List<Double> own = new ArrayList<>();
            Predictions predictions = labels.predictions();
            Trainer.of(predictions.counting(labels.factory(config)), new BatchShape(BatchLayout.PACKED, 256, 32, 2))
                    .withRanks(ranks)
                    .withSeed(3)
                    .withSchedule(new LearningRateSchedule(3e-3f, 1, 6, LearningRateSchedule.Decay.LINEAR, 0))
                    .withEvaluation(Evaluation.of(data::once, new BatchShape(BatchLayout.PACKED, 64, 32)))
                    .withCallback(Callback.eachStep(step -> own.add(step.loss())))
                    .train(() -> data.epochs(2, 5), 6);
            losses.add(own);
            metrics.add(predictions.take());
        }
        for (int i = 0; i < 6; i++) {
            assertEquals(
                    losses.get(0).get(i),
                    losses.get(1).get(i),
                    1e-4 * losses.get(0).get(i),
                    "step " + i);
        }
        for (Metric metric : metrics.get(0).values().keySet()) {
            assertEquals(metrics.get(0).of(metric), metrics.get(1).of(metric), 1e-3, metric.text());
        }
    }

    /** Of each letter that is there at least three times a class. */
    @Test
    void learnsSeveralClasses() throws IOException {
        for (String name : List.of("train.csv", "eval.csv")) {
            var random = new SplittableRandom(name.length());
            StringBuilder text = new StringBuilder("sequence,label\n");
            for (int i = 0; i < 160; i++) {
                boolean leucine = random.nextBoolean();
                boolean lysine = random.nextBoolean();
                text.append("AGAVAG".repeat(1 + random.nextInt(2)))
                        .append(leucine ? "LLLLL" : "")
                        .append(lysine ? "KKKKK" : "")
                        .append(',')
                        .append(leucine ? "greasy" : "")
                        .append(leucine && lysine ? "; " : "")
                        .append(lysine ? "charged" : "")
                        .append('\n');
            }
            Files.writeString(folder.resolve(name), text);
        }
        assertEquals(
                0,
                tune("multi-label", "sets", "--learning-rate", "0.01", "--metric", "micro-f1", "--epochs", "6"),
                err);
        assertTrue(saved("micro F1") > 0.95, out);
        assertTrue(saved("accuracy") > 0.9, out);
        assertEquals(List.of("charged", "greasy"), Esm2Checkpoint.labels(folder.resolve("sets")));
        var sets = predicted("sets");
        long right = sets.stream()
                .filter(each -> each.getKey().get("labels") instanceof List<?> labels
                        && Set.copyOf(labels)
                                .equals(Stream.of(each.getValue().split(";"))
                                        .map(String::strip)
                                        .filter(name -> !name.isEmpty())
                                        .collect(Collectors.toSet())))
                .count();
        assertEquals(saved("accuracy"), (double) right / sets.size(), 1e-4);
        assertEquals(
                Problem.MULTI_LABEL,
                Esm2Checkpoint.classifierConfig(folder.resolve("sets")).problem());
    }
}
