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
import dev.chagres.trainer.Trainer;
import dev.chagres.trainer.callback.Checkpoints;
import dev.chagres.trainer.callback.Evaluation;
import dev.chagres.trainer.command.Interruption;
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
import org.junit.jupiter.api.io.TempDir;

/** The command on a small model of transformers, and sequences whose labels follow from their residues. */
@Tag("L0")
class FineTuneTest {
    private static final Path MODEL =
            Path.of("..", "models", "src", "test", "resources", "huggingface", "token-dropout");
    private static final Pattern ACCURACY = Pattern.compile("saved: step \\d+: loss \\S+, accuracy (\\S+), macro F1");

    @TempDir
    private Path folder;

    private String out = "";
    private String err = "";

    private int run(String... arguments) {
        var outBytes = new ByteArrayOutputStream();
        var errBytes = new ByteArrayOutputStream();
        int status = FineTune.run(
                new PrintStream(outBytes, true, StandardCharsets.UTF_8),
                new PrintStream(errBytes, true, StandardCharsets.UTF_8),
                arguments);
        out = outBytes.toString(StandardCharsets.UTF_8);
        err = errBytes.toString(StandardCharsets.UTF_8);
        return status;
    }

    private int tune(String task, String save, String... further) {
        return run(options(task, save, further));
    }

    private String[] options(String task, String save, String... further) {
        List<String> all = new ArrayList<>(List.of(
                "--model",
                MODEL.toString(),
                "--task",
                task,
                "--train",
                folder.resolve("train.csv").toString(),
                "--eval",
                folder.resolve("eval.csv").toString(),
                "--save",
                folder.resolve(save).toString(),
                "--tokens-per-step",
                "512"));
        all.addAll(List.of(further));
        return all.toArray(String[]::new);
    }

    /** Of a label most residues are a letter of its own. */
    private void writeSequences(String name, int count, long seed) throws IOException {
        var random = new SplittableRandom(seed);
        StringBuilder text = new StringBuilder("id,label,sequence\n");
        for (int i = 0; i < count; i++) {
            int label = random.nextInt(3);
            StringBuilder sequence = new StringBuilder();
            for (int j = 10 + random.nextInt(20); j > 0; j--) {
                sequence.append(random.nextInt(4) > 0 ? "LKG".charAt(label) : "ARDE".charAt(random.nextInt(4)));
            }
            text.append(i)
                    .append(',')
                    .append(List.of("membrane", "\"nuc,leus\"", "x").get(label));
            text.append(',').append(sequence).append('\n');
        }
        Files.writeString(folder.resolve(name), text);
    }

    @Test
    void unknownLettersAreRefusedTakenOrLeftOut() throws IOException {
        String text =
                "label,sequence\na,MKJLVINGKTLKGEITVEA\nb,ACDEFGHIKLMNPQRSTVW\na,MKLVINGKTLKGEITVEAP\nb,AC*EFGHIKLMNPQRSTVW\n";
        Files.writeString(folder.resolve("train.csv"), text);
        Files.writeString(folder.resolve("eval.csv"), text);
        assertEquals(1, tune("classification", "refused"));
        assertTrue(err.contains("expected letters of residues, got J at position 3"), err);
        assertEquals(0, tune("classification", "taken", "--unknown=unk", "--epochs=1"), () -> err);
        assertTrue(out.startsWith("4 sequences of "), out);
        assertEquals(0, tune("classification", "left", "--unknown=skip", "--epochs=1"), () -> err);
        assertTrue(out.startsWith("2 sequences of ") && out.contains("2 with unknown letters left out"), out);
    }

    private void writeBoth() throws IOException {
        writeSequences("train.csv", 160, 1);
        writeSequences("eval.csv", 40, 2);
    }

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
        assertTrue(err.startsWith("finetune: --eval-fraction: expected a number between 0 and 1, got 1.0"), err);
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

    /** Ctrl-C when the first evaluation has been told: the run ends, and what was best is there. */
    @Test
    void writesTheBestStateWhenItIsInterrupted() throws IOException {
        writeBoth();
        assertEquals(0, interrupted("stopped"), err);
        assertTrue(
                Pattern.compile("(?s)step \\d+: .*, best so far\nsaved: step \\d+: .*")
                        .matcher(out)
                        .find(),
                out);
        assertEquals(List.of("membrane", "nuc,leus", "x"), Esm2Checkpoint.labels(folder.resolve("stopped")));
        assertTrue(Files.notExists(folder.resolve("stopped.best.safetensors")));
    }

    /** Before anything is computed. */
    @Test
    void aPlaceThatAnotherRunHasIsRefused() throws IOException {
        writeBoth();
        Path state = folder.resolve("twice.best.safetensors");
        try (Checkpoints other = Checkpoints.file(state)) {
            other.claim();
            assertEquals(1, tune("classification", "twice"));
            assertTrue(err.startsWith("finetune: " + state + ": cannot be written: "), err);
            assertEquals("", out);
        }
        assertEquals(1, tune("classification", "train.csv/below"));
        assertEquals("finetune: expected a folder or nothing, got a file: " + folder.resolve("train.csv"), err.strip());
    }

    /** A terminal that is closed, say, when the second evaluation is told. */
    @Test
    void writesTheBestStateWhenItFails() throws IOException {
        writeBoth();
        var told = new ArrayList<String>();
        var err = new PrintStream(new ByteArrayOutputStream());
        var out = new PrintStream(OutputStream.nullOutputStream()) {
            @Override
            public void println(String line) {
                told.add(line);
                if (told.stream().filter(one -> one.startsWith("step ")).count() == 2) {
                    throw new IllegalStateException("gone");
                }
            }
        };
        assertEquals(1, FineTune.run(new Interruption("finetune", err), out, err, options("classification", "failed")));
        String best = told.get(1);
        assertTrue(best.startsWith("step ") && best.endsWith(", best so far"), told::toString);
        assertEquals(List.of("membrane", "nuc,leus", "x"), Esm2Checkpoint.labels(folder.resolve("failed")));
        assertTrue(Files.notExists(folder.resolve("failed.best.safetensors")));
    }

    /** What is kept has the same steps before it as a run that nothing ends, and the same bytes in the end. */
    @Test
    void goesOnFromWhatAnInterruptedRunHasKept() throws IOException {
        writeBoth();
        assertEquals(0, tune("classification", "whole", "--epochs", "5"), err);
        String whole = out;
        Path kept = folder.resolve("parts.best.safetensors");
        assertEquals(0, interrupted("parts", "--resume-saved"), err);
        assertTrue(
                Pattern.compile("kept: step \\d+: .*, in " + Pattern.quote(kept.toString()))
                        .matcher(out)
                        .find(),
                out);
        assertTrue(Files.exists(kept) && Files.notExists(folder.resolve("parts")));
        assertEquals(1, tune("classification", "parts", "--epochs", "5"));
        assertEquals(
                "finetune: --save: expected no state of an earlier run, got " + kept
                        + "; go on from it by --resume-saved, or remove it\n",
                err);
        assertEquals(1, tune("classification", "parts", "--epochs", "5", "--seed", "4", "--resume-saved"));
        assertTrue(
                err.startsWith("finetune: --resume-saved: expected " + kept + " of the same data and options, "), err);
        assertEquals(0, tune("classification", "parts", "--epochs", "5", "--resume-saved"), err);
        assertTrue(out.startsWith("goes on from " + kept + "\n"), out);
        String last = whole.substring(whole.indexOf("best so far") + "best so far".length());
        assertTrue(out.endsWith(last), () -> whole + out);
        assertEquals(
                -1,
                Files.mismatch(folder.resolve("whole/model.safetensors"), folder.resolve("parts/model.safetensors")));
        assertTrue(Files.notExists(kept));
    }

    /** Runs until the first evaluation is told, which Ctrl-C follows. */
    private int interrupted(String save, String... further) {
        var errBytes = new ByteArrayOutputStream();
        var outBytes = new ByteArrayOutputStream();
        var err = new PrintStream(errBytes, true, StandardCharsets.UTF_8);
        var interruption = new Interruption("finetune", err);
        var out = new PrintStream(outBytes, true, StandardCharsets.UTF_8) {
            @Override
            public void println(String line) {
                super.println(line);
                if (line.endsWith("best so far")) {
                    Thread.ofVirtual().start(interruption::interrupt);
                    while (!interruption.isInterrupted()) {
                        Thread.onSpinWait();
                    }
                }
            }
        };
        int status = FineTune.run(
                interruption,
                out,
                err,
                options(
                        "classification",
                        save,
                        Stream.concat(Stream.of("--epochs", "5"), Stream.of(further))
                                .toArray(String[]::new)));
        this.out = outBytes.toString(StandardCharsets.UTF_8);
        this.err = errBytes.toString(StandardCharsets.UTF_8);
        return status;
    }

    /** Two ranks learn the same as one, apart from rounding and from how sequences are packed. */
    @Test
    void trainsTheHeadOnTwoRanks() throws IOException {
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

    /** The label of a sequence is 50 and 20 times its share of L, less 10 times that of K. */
    private void writeNumbers(String name, int count, long seed) throws IOException {
        var random = new SplittableRandom(seed);
        StringBuilder text = new StringBuilder("sequence,label\n");
        for (int i = 0; i < count; i++) {
            StringBuilder sequence = new StringBuilder();
            int length = 10 + random.nextInt(20);
            int leucines = random.nextInt(length + 1);
            double label = 50;
            for (int j = 0; j < length; j++) {
                char letter = j < leucines ? 'L' : "KARDE".charAt(random.nextInt(5));
                label += (letter == 'L' ? 20.0 : letter == 'K' ? -10.0 : 0) / length;
                sequence.append(letter);
            }
            text.append(sequence).append(',').append(label).append('\n');
        }
        Files.writeString(folder.resolve(name), text);
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

    @Test
    void tellsWhichNumbersAreWrong() throws IOException {
        writeNumbers("eval.csv", 4, 2);
        for (String label : List.of("high", "NaN", "1e300", "Infinity")) {
            Files.writeString(folder.resolve("train.csv"), "sequence,label\nAAA,1\nKKK," + label + "\n");
            assertEquals(1, tune("regression", "refused"));
            assertEquals(
                    "finetune: --train: train.csv: line 3: expected a finite number as the label, got " + label,
                    err.strip().replace(folder + "/", ""));
        }
        Files.writeString(folder.resolve("train.csv"), "sequence,label\nAAA,2\nKKK,2\n");
        assertEquals(1, tune("regression", "refused", "--standardize"));
        assertEquals(
                "finetune: --standardize: expected labels that differ, and whose spread is finite, got a standard"
                        + " deviation of 0.0",
                err.strip());
        Files.writeString(folder.resolve(TargetScale.FILE), "{\"mean\": 2, \"standard_deviation\": 0}");
        assertTrue(String.valueOf(assertThrows(RuntimeException.class, () -> TargetScale.read(folder))
                        .getMessage())
                .endsWith(TargetScale.FILE + ": expected the numbers mean and standard_deviation, above 0"));
        Files.writeString(folder.resolve(TargetScale.FILE), "{");
        assertTrue(String.valueOf(assertThrows(RuntimeException.class, () -> TargetScale.read(folder))
                        .getMessage())
                .endsWith("expected JSON, got something else"));
    }

    private String refusal(String csv, String... further) throws IOException {
        Files.writeString(folder.resolve("train.csv"), csv);
        assertTrue(tune("classification", "refused", further) > 0);
        return err.strip().replace(folder.toString() + "/", "");
    }

    @Test
    void tellsWhatIsWrong() throws IOException {
        writeBoth();
        String good = Files.readString(folder.resolve("train.csv"));
        assertEquals(
                "finetune: --train: train.csv: expected a first line with the columns sequence and label, got a,b",
                refusal("a,b\n1,2\n"));
        assertTrue(
                refusal(">protein\nAAA\n").endsWith(", got >protein; the labels of a FASTA file are --train-labels"),
                err);
        assertEquals(
                "finetune: --train: train.csv: line 2: expected letters of residues, got ! at position 2",
                refusal("sequence,label\nA!A,x\n"));
        assertEquals(
                "finetune: --train: train.csv: line 2: expected 2 columns, got 3",
                refusal("sequence,label\nAAA,x,y\n"));
        assertEquals(
                "finetune: --train: train.csv: line 3: expected a label, got none",
                refusal("sequence,label\nAAA,x\nAAA,\n"));
        assertEquals("finetune: --train: train.csv: expected sequences, got none", refusal("sequence,label\n"));
        assertEquals("finetune: --train: expected two labels or more, got [x]", refusal("sequence,label\nAAA,x\n"));
        assertTrue(refusal("sequence,label\nAAA,a\nKKK,b\n")
                .startsWith("finetune: --eval: eval.csv: line 2: expected one of the labels a, b, got "));
        assertEquals(
                "finetune: --train: train.csv: expected different columns, got label,sequence,label",
                refusal("label,sequence,label\na,AAA,b\n"));
        assertEquals(
                "finetune: --learning-rate: expected a finite number of at least 0, got NaN (finetune --help lists the"
                        + " options)",
                refusal(good, "--learning-rate", "NaN"));
        Files.write(folder.resolve("train.csv"), new byte[] {(byte) 0xff, (byte) 0xfe});
        assertEquals(1, tune("classification", "refused"));
        assertEquals(
                "finetune: --train: train.csv cannot be read: expected text in UTF-8, got other bytes",
                err.strip().replace(folder + "/", ""));
        Files.delete(folder.resolve("train.csv"));
        assertEquals(1, tune("classification", "refused"));
        assertEquals(
                "finetune: --train: train.csv cannot be read: there is no file train.csv",
                err.strip().replace(folder + "/", ""));
        assertEquals(
                "finetune: --frozen: expected none beside --lora, which freezes all but the head (finetune --help"
                        + " lists the options)",
                refusal(good, "--lora", "r=2", "--frozen", "trunk"));
        assertEquals(
                "finetune: --frozen: expected trunk, or last-n=2 or another number, got head (finetune --help lists"
                        + " the options)",
                refusal(good, "--frozen", "head"));
        assertEquals(
                "finetune: --frozen: expected last-n of at most 2 layers, got 9 (finetune --help lists the options)",
                refusal(good, "--frozen", "last-n=9"));
        assertTrue(refusal(good, "--lora", "r=2,target=q").contains("target: expected some of query, key,"), err);
        assertTrue(
                refusal(good, "--lora", "rank=2").contains("expected r=, alpha=, dropout=, scaling= or target="), err);
        assertTrue(
                refusal(good, "--metric", "auc")
                        .contains("expected one of loss, accuracy, micro-f1, macro-f1, matthews"),
                err);
        assertEquals(
                "finetune: --metric: expected loss, accuracy, macro-f1, matthews with --task classification, got mse"
                        + " (finetune --help lists the options)",
                refusal(good, "--metric", "mse"));
        assertEquals(
                "finetune: --standardize: expected --task regression, got classification (finetune --help lists the"
                        + " options)",
                refusal(good, "--standardize"));
    }
}
