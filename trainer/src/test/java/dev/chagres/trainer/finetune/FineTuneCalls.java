package dev.chagres.trainer.finetune;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import org.junit.jupiter.api.io.TempDir;

/** Calls of the command on a small model of transformers, with sequences whose labels follow from their residues. */
abstract class FineTuneCalls {
    static final Path MODEL = Path.of("..", "models", "src", "test", "resources", "huggingface", "token-dropout");

    @TempDir
    Path folder;

    String out = "";
    String err = "";

    int run(String... arguments) {
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

    int tune(String task, String save, String... further) {
        return run(options(task, save, further));
    }

    String[] options(String task, String save, String... further) {
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
    void writeSequences(String name, int count, long seed) throws IOException {
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

    void writeBoth() throws IOException {
        writeSequences("train.csv", 160, 1);
        writeSequences("eval.csv", 40, 2);
    }

    /** The label of a sequence is 50 and 20 times its share of L, less 10 times that of K. */
    void writeNumbers(String name, int count, long seed) throws IOException {
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
}
