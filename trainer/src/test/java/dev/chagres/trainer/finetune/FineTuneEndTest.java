package dev.chagres.trainer.finetune;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.models.huggingface.Esm2Checkpoint;
import dev.chagres.trainer.callback.Checkpoints;
import dev.chagres.trainer.command.Interruption;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** However a run ends, its best state is kept, and what may not be replaced stays. */
@Tag("L0")
class FineTuneEndTest extends FineTuneCalls {
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
}
