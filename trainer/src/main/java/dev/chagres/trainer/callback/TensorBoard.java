package dev.chagres.trainer.callback;

import dev.chagres.trainer.Callback;
import dev.chagres.trainer.StepMetrics;
import dev.chagres.trainer.TrainingRun;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.zip.CRC32C;
import org.jspecify.annotations.Nullable;

/**
 * Writes numbers of steps and evaluations into a file that TensorBoard shows: {@code tensorboard --logdir DIR}.
 *
 * <p>Of each step {@code train/loss}, {@code train/gradient_norm}, {@code train/learning_rate} and {@code train/tokens_per_second}; of each
 * evaluation {@code eval/loss}, {@code eval/perplexity} and {@code eval/accuracy}. Each run has a file of its own, which lacks nothing but
 * the last steps when the program ends early.
 *
 * <p>Threading: confined to the thread that trains.
 *
 * <p>Source: TensorFlow's {@code record_writer.h}, {@code event.proto} and {@code summary.proto}.
 */
public final class TensorBoard implements Callback, AutoCloseable {
    private static final String VERSION = "brain.Event:2";
    /** Events that wait until they are written. */
    private static final int BUFFERED = 1 << 16;

    private static final int MASK = 0xa282ead8;

    // Fields of the messages, by their numbers.
    private static final int WALL_TIME = 1;
    private static final int STEP = 2;
    private static final int FILE_VERSION = 3;
    private static final int SUMMARY = 5;
    private static final int VALUE = 1;
    private static final int TAG = 1;
    private static final int SIMPLE_VALUE = 2;

    // How a field's value is written.
    private static final int VARINT = 0;
    private static final int DOUBLE = 1;
    private static final int BYTES = 2;
    private static final int FLOAT = 5;

    private final Path file;
    private final FileChannel channel;
    private final ByteArrayOutputStream waiting = new ByteArrayOutputStream();
    private final CRC32C checksum = new CRC32C();
    private boolean used;

    /**
     * Makes the folder, if it is not there, and a file in it.
     *
     * @throws UncheckedIOException when that is not possible
     */
    public TensorBoard(Path folder) {
        try {
            Files.createDirectories(folder);
            long seconds = System.currentTimeMillis() / 1000;
            int number = 0;
            Path made = name(folder, seconds, number);
            FileChannel opened = openNew(made);
            while (opened == null) {
                made = name(folder, seconds, ++number);
                opened = openNew(made);
            }
            file = made;
            channel = opened;
        } catch (IOException e) {
            throw failed(folder, e);
        }
        var event = begun();
        bytes(event, FILE_VERSION, VERSION.getBytes(StandardCharsets.US_ASCII));
        record(event.toByteArray());
    }

    /** TensorBoard knows its files by {@code tfevents}, and takes them in the order of their names. */
    private static Path name(Path folder, long seconds, int number) {
        return folder.resolve("events.out.tfevents." + seconds + ".chagres."
                + ProcessHandle.current().pid() + "." + number);
    }

    /** Null where another run has the name. */
    private static @Nullable FileChannel openNew(Path file) throws IOException {
        try {
            return FileChannel.open(file, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE);
        } catch (FileAlreadyExistsException e) {
            return null;
        }
    }

    private static UncheckedIOException failed(Path path, IOException e) {
        String why = e instanceof FileAlreadyExistsException ? "is no folder" : "cannot be written: " + e.getMessage();
        return new UncheckedIOException("TensorBoard: " + path + ": " + why, e);
    }

    /** Returns the file. */
    public Path file() {
        return file;
    }

    /**
     * {@inheritDoc}
     *
     * @throws UncheckedIOException when the file cannot be written
     */
    @Override
    public void onStep(TrainingRun run, StepMetrics step) {
        var summary = new ByteArrayOutputStream();
        scalar(summary, "train/loss", step.loss());
        scalar(summary, "train/gradient_norm", step.gradNorm());
        scalar(summary, "train/learning_rate", step.learningRate());
        scalar(summary, "train/tokens_per_second", step.tokensPerSecond());
        write(step.step(), summary);
    }

    /**
     * {@inheritDoc}
     *
     * @throws UncheckedIOException when the file cannot be written
     */
    @Override
    public void onEvaluation(TrainingRun run, Evaluation.Result result) {
        var summary = new ByteArrayOutputStream();
        scalar(summary, "eval/loss", result.loss());
        scalar(summary, "eval/perplexity", result.perplexity());
        if (!Double.isNaN(result.accuracy())) {
            scalar(summary, "eval/accuracy", result.accuracy());
        }
        write(result.step(), summary);
        flush();
    }

    /** Writes what waits. */
    @Override
    public void onEnd(TrainingRun run) {
        flush();
    }

    private void write(int step, ByteArrayOutputStream summary) {
        var event = begun();
        varint(event, STEP << 3 | VARINT);
        varint(event, step);
        bytes(event, SUMMARY, summary.toByteArray());
        record(event.toByteArray());
        used = true;
        if (waiting.size() >= BUFFERED) {
            flush();
        }
    }

    private static ByteArrayOutputStream begun() {
        var event = new ByteArrayOutputStream();
        varint(event, WALL_TIME << 3 | DOUBLE);
        event.writeBytes(ordered(Double.BYTES)
                .putDouble(System.currentTimeMillis() / 1e3)
                .array());
        return event;
    }

    private static void scalar(ByteArrayOutputStream summary, String tag, double value) {
        var one = new ByteArrayOutputStream();
        bytes(one, TAG, tag.getBytes(StandardCharsets.US_ASCII));
        varint(one, SIMPLE_VALUE << 3 | FLOAT);
        one.writeBytes(ordered(Float.BYTES).putFloat((float) value).array());
        bytes(summary, VALUE, one.toByteArray());
    }

    private static void bytes(ByteArrayOutputStream out, int field, byte[] value) {
        varint(out, field << 3 | BYTES);
        varint(out, value.length);
        out.writeBytes(value);
    }

    private static void varint(ByteArrayOutputStream out, int value) {
        int left = value;
        for (; left >>> 7 != 0; left >>>= 7) {
            out.write(left & 0x7f | 0x80);
        }
        out.write(left);
    }

    private static ByteBuffer ordered(int size) {
        return ByteBuffer.allocate(size).order(ByteOrder.LITTLE_ENDIAN);
    }

    /** Adds a record: its length and that number's checksum, then the data and their checksum. */
    private void record(byte[] data) {
        byte[] length = ordered(Long.BYTES).putLong(data.length).array();
        waiting.writeBytes(length);
        waiting.writeBytes(masked(length));
        waiting.writeBytes(data);
        waiting.writeBytes(masked(data));
    }

    private byte[] masked(byte[] data) {
        checksum.reset();
        checksum.update(data);
        int value = (int) checksum.getValue();
        return ordered(Integer.BYTES)
                .putInt(Integer.rotateRight(value, 15) + MASK)
                .array();
    }

    private void flush() {
        if (!channel.isOpen()) {
            return;
        }
        ByteBuffer left = ByteBuffer.wrap(waiting.toByteArray());
        try {
            while (left.hasRemaining()) {
                channel.write(left);
            }
        } catch (IOException e) {
            throw failed(file, e);
        } finally {
            waiting.reset();
        }
    }

    /**
     * Closes the file, and removes it if it has no step and no evaluation. A second call does nothing.
     *
     * @throws UncheckedIOException when it cannot be written
     */
    @Override
    public void close() {
        try {
            flush();
            channel.close();
            if (!used) {
                Files.deleteIfExists(file);
            }
        } catch (IOException e) {
            throw failed(file, e);
        }
    }
}
