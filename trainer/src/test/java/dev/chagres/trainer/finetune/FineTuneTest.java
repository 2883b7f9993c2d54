package dev.chagres.trainer.finetune;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.models.esm.Esm2Classifier;
import dev.chagres.models.esm.Esm2ClassifierConfig.Task;
import dev.chagres.models.huggingface.Esm2Checkpoint;
import dev.chagres.models.huggingface.PeftAdapters;
import dev.chagres.parameter.LoraConfig;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
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
        return run(all.toArray(String[]::new));
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
        assertEquals(List.of("membrane", "nuc,leus", "x"), Esm2Checkpoint.labels(folder.resolve("whole")));
        assertEquals(
                Task.SEQUENCES,
                Esm2Checkpoint.classifierConfig(folder.resolve("whole")).task());
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
        assertEquals(4, lora.rank());
        assertEquals(6, lora.targets().size(), "three products of each of two layers");
        try (Device device = Device.open();
                Esm2Classifier model =
                        PeftAdapters.openClassifier(device, MODEL, folder.resolve("lora"), DType.FLOAT32)) {
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
                        "--patience",
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
    }

    @Test
    void readsFastaAndItsLabels() throws IOException {
        Files.writeString(folder.resolve("a.fasta"), ">1\nLLKK\nGG\n>2\nAAAA\n");
        Files.writeString(folder.resolve("a.txt"), "yes\nno\n");
        LabelledProteins read =
                LabelledProteins.read("--train", folder.resolve("a.fasta"), folder.resolve("a.txt"), Task.SEQUENCES);
        assertEquals(List.of("no", "yes"), read.classes());
        var sequences = read.numbered("--train", read.classes()).once();
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
                "finetune: --frozen: expected none beside --lora, which freezes all but the head (finetune --help lists the"
                        + " options)",
                refusal(good, "--lora", "r=2", "--frozen", "trunk"));
        assertEquals(
                "finetune: --frozen: expected trunk, or last-n=2 or another number, got head (finetune --help lists the options)",
                refusal(good, "--frozen", "head"));
        assertEquals(
                "finetune: --frozen: expected last-n of at most 2 layers, got 9 (finetune --help lists the options)",
                refusal(good, "--frozen", "last-n=9"));
        assertTrue(refusal(good, "--lora", "r=2,target=q").contains("target: expected some of query, key,"), err);
        assertTrue(
                refusal(good, "--lora", "rank=2").contains("expected r=, alpha=, dropout=, scaling= or target="), err);
        assertTrue(
                refusal(good, "--metric", "auc").contains("expected one of loss, accuracy, macro-f1, matthews"), err);
    }
}
