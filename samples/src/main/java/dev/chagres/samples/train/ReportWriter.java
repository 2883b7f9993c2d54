package dev.chagres.samples.train;

import com.fasterxml.jackson.jr.ob.JSON;
import com.fasterxml.jackson.jr.ob.JSONComposer;
import com.fasterxml.jackson.jr.ob.comp.ObjectComposer;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.math.BigDecimal;
import java.math.MathContext;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.TreeMap;

/**
 * Writes the report: JSON Lines, first what was trained, then one object a step.
 *
 * <p>Lines go to {@code FILE.part}, each in one piece as soon as its step is known, and {@link #finish} gives the file its
 * name. A file of that name is therefore never a torso: what a failure leaves behind is called {@code .part} and holds whole
 * lines. A pipe or device is written to directly.
 *
 * <p>Threading: one thread at a time.
 */
final class ReportWriter implements AutoCloseable {
    /** FP32 has 7.2 decimal digits. */
    private static final MathContext RATE_DIGITS = new MathContext(7);

    private final Path target;
    /** The target, or the file that it is a link to. */
    private final Path whole;

    private final Path written;
    private final FileChannel channel;
    private final ByteArrayOutputStream line = new ByteArrayOutputStream(512);
    private long wholeBytes;
    private boolean finished;

    /**
     * Opens the file to write.
     *
     * @param target the report's name
     * @throws TrainingException when the file cannot be made
     */
    ReportWriter(Path target) {
        this.target = target;
        if (Files.isDirectory(target)) {
            throw new TrainingException(target + ": is a directory; --report expects a file");
        }
        boolean direct = OutputFiles.isDirect(target);
        if (direct && Files.isRegularFile(target)) {
            // Two writers, each with its own place in the file, would write over each other.
            throw new TrainingException(
                    target + ": is a second name of a file that may be in use; --report expects that"
                            + " file's own name, another file, or a pipe");
        }
        whole = direct ? target : OutputFiles.behindLink(target);
        written = direct ? target : OutputFiles.part(whole);
        try {
            channel = direct
                    ? FileChannel.open(written, StandardOpenOption.WRITE, StandardOpenOption.APPEND)
                    : FileChannel.open(
                            written,
                            StandardOpenOption.WRITE,
                            StandardOpenOption.CREATE,
                            StandardOpenOption.TRUNCATE_EXISTING);
        } catch (IOException e) {
            throw OutputFiles.unwritable(target, e);
        }
    }

    /** Writes the first line. */
    void begin(RunDescription run) {
        write(json -> {
            json.put("provider", run.provider()).put("device", run.device());
            ObjectComposer<?> libraries = json.startObjectField("libraries");
            for (var library : new TreeMap<>(run.libraries()).entrySet()) {
                libraries.put(library.getKey(), library.getValue());
            }
            libraries.end();
            TrainingPlan plan = run.plan();
            json.put("model", plan.size().label())
                    .put("parameters", run.parameters())
                    .put("seed", plan.seed())
                    .put("recipe", plan.recipe().toString())
                    .put("steps", plan.steps())
                    .put("packing", plan.packing())
                    .put("context", plan.shape().context())
                    .put("tokensPerStep", plan.shape().tokensPerStep())
                    .put("learningRate", rate(plan.schedule().peak()))
                    .put("fasta", plan.source().name())
                    .put("version", Train.VERSION);
        });
    }

    /** Writes a step's line. */
    void step(StepMetrics step) {
        write(json -> {
            json.put("step", step.step())
                    .put("loss", shortest(step.loss()))
                    .put("tokens", step.tokens())
                    .put("paddedTokens", step.paddedTokens())
                    .put("stepMillis", shortest(step.stepMillis()))
                    .put("tokensPerSecond", step.tokensPerSecond())
                    .put("gradNorm", shortest(step.gradNorm()))
                    .put("learningRate", rate(step.learningRate()))
                    .put("memoryBytes", step.memoryBytes());
            if (Double.isNaN(step.mfu())) {
                json.putNull("mfu");
            } else {
                json.put("mfu", step.mfu());
            }
        });
    }

    /** Returns the file that holds the lines until {@link #finish}. */
    Path written() {
        return written;
    }

    /** Gives the file its name; nothing can be written after. */
    void finish() {
        if (finished) {
            return;
        }
        try {
            channel.close();
            if (!written.equals(whole)) {
                Files.move(written, whole, StandardCopyOption.REPLACE_EXISTING);
            }
            finished = true;
        } catch (IOException e) {
            throw OutputFiles.unwritable(target, e);
        }
    }

    /** Closes the file and removes it, for a run that failed before its first step. */
    void discard() {
        close();
        if (!written.equals(whole)) {
            try {
                Files.deleteIfExists(written);
            } catch (IOException e) {
                throw OutputFiles.unwritable(target, e);
            }
        }
    }

    /** Closes the file; without {@link #finish} before, it keeps its {@code .part} name. */
    @Override
    public void close() {
        try {
            channel.close();
        } catch (IOException e) {
            throw OutputFiles.unwritable(target, e);
        }
    }

    /** The number, where it is a float that with the fewest digits which tell it from other floats. */
    private static double shortest(double value) {
        float narrow = (float) value;
        return narrow == value ? Double.parseDouble(Float.toString(narrow)) : value;
    }

    /** A rate without its rounding error: 2.0E-4 where FP32 has 2.0000001E-4. */
    private static double rate(float value) {
        return new BigDecimal(value).round(RATE_DIGITS).doubleValue();
    }

    private interface Fields {
        void putInto(ObjectComposer<JSONComposer<OutputStream>> json) throws IOException;
    }

    private void write(Fields fields) {
        try {
            line.reset();
            var composer = JSON.std.composeTo((OutputStream) line);
            var object = composer.startObject();
            fields.putInto(object);
            object.end();
            composer.finish();
            line.write('\n');
            ByteBuffer bytes = ByteBuffer.wrap(line.toByteArray());
            while (bytes.hasRemaining()) {
                channel.write(bytes);
            }
            wholeBytes += bytes.limit();
        } catch (IOException e) {
            throw cut(e);
        }
    }

    /** Takes away the half of a line that a full disk left. */
    private TrainingException cut(IOException e) {
        TrainingException failure = OutputFiles.unwritable(target, e);
        if (!written.equals(whole)) {
            try {
                channel.truncate(wholeBytes);
            } catch (IOException second) {
                failure.addSuppressed(second);
            }
        }
        return failure;
    }
}
