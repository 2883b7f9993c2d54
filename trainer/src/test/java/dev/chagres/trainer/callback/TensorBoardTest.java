package dev.chagres.trainer.callback;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.models.data.FastaSequences;
import dev.chagres.models.data.FastaSource;
import dev.chagres.models.data.HeldOut;
import dev.chagres.models.data.MaskedProteins;
import dev.chagres.models.data.ShuffledSequences;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.trainer.Callback;
import dev.chagres.trainer.StepMetrics;
import dev.chagres.trainer.Trainer;
import dev.chagres.trainer.TrainingRun;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

@Tag("L0")
@Timeout(60)
class TensorBoardTest {
    @TempDir
    private Path folder;

    /** What a file says of one event. */
    private record Event(double wallTime, long step, String version, Map<String, Float> scalars) {}

    /** CRC-32C bit by bit (the polynomial of iSCSI, reflected), which shares nothing with the JDK's. */
    private static int crc32c(byte[] data) {
        int crc = -1;
        for (byte one : data) {
            crc ^= one & 0xff;
            for (int bit = 0; bit < 8; bit++) {
                crc = (crc & 1) == 0 ? crc >>> 1 : crc >>> 1 ^ 0x82f63b78;
            }
        }
        return ~crc;
    }

    private static int masked(byte[] data) {
        int crc = crc32c(data);
        return (crc >>> 15 | crc << 17) + 0xa282ead8;
    }

    static List<Event> read(Path file) throws IOException {
        ByteBuffer all = ByteBuffer.wrap(Files.readAllBytes(file)).order(ByteOrder.LITTLE_ENDIAN);
        List<Event> events = new ArrayList<>();
        while (all.hasRemaining()) {
            byte[] length = new byte[8];
            all.get(length);
            assertEquals(masked(length), all.getInt(), "checksum of a length");
            byte[] data = new byte
                    [(int) ByteBuffer.wrap(length)
                            .order(ByteOrder.LITTLE_ENDIAN)
                            .getLong()];
            all.get(data);
            assertEquals(masked(data), all.getInt(), "checksum of an event");
            events.add(event(ByteBuffer.wrap(data).order(ByteOrder.LITTLE_ENDIAN)));
        }
        return events;
    }

    private static Event event(ByteBuffer in) {
        double wallTime = 0;
        long step = 0;
        String version = "";
        Map<String, Float> scalars = new TreeMap<>();
        while (in.hasRemaining()) {
            switch ((int) varint(in)) {
                case 1 << 3 | 1 -> wallTime = in.getDouble();
                case 2 << 3 -> step = varint(in);
                case 3 << 3 | 2 -> version = text(message(in));
                case 5 << 3 | 2 -> summary(message(in), scalars);
                default -> throw new AssertionError("a field that no event here has");
            }
        }
        return new Event(wallTime, step, version, scalars);
    }

    private static void summary(ByteBuffer in, Map<String, Float> scalars) {
        while (in.hasRemaining()) {
            assertEquals(1 << 3 | 2, varint(in));
            ByteBuffer value = message(in);
            assertEquals(1 << 3 | 2, varint(value));
            String tag = text(message(value));
            assertEquals(2 << 3 | 5, varint(value));
            scalars.put(tag, value.getFloat());
        }
    }

    private static long varint(ByteBuffer in) {
        long value = 0;
        for (int shift = 0; ; shift += 7) {
            byte next = in.get();
            value |= (next & 0x7fL) << shift;
            if (next >= 0) {
                return value;
            }
        }
    }

    private static ByteBuffer message(ByteBuffer in) {
        ByteBuffer part = in.slice(in.position() + lengthBytes(in), length(in)).order(ByteOrder.LITTLE_ENDIAN);
        in.position(in.position() + lengthBytes(in) + part.remaining());
        return part;
    }

    private static int length(ByteBuffer in) {
        return (int) varint(in.duplicate());
    }

    private static int lengthBytes(ByteBuffer in) {
        ByteBuffer copy = in.duplicate();
        varint(copy);
        return copy.position() - in.position();
    }

    private static String text(ByteBuffer in) {
        return StandardCharsets.UTF_8.decode(in).toString();
    }

    @Test
    void theChecksumIsCastagnolis() {
        assertEquals(0xe3069283, crc32c("123456789".getBytes(StandardCharsets.US_ASCII)));
    }

    @Test
    void stepsAndEvaluationsAreWritten() throws Exception {
        List<Float> losses = new ArrayList<>();
        List<Float> rates = new ArrayList<>();
        List<Evaluation.Result> results = new ArrayList<>();
        var monitor = new LearningRateMonitor(2);
        Callback noting = new Callback() {
            @Override
            public void onStep(TrainingRun run, StepMetrics step) {
                losses.add((float) step.loss());
                rates.add(step.learningRate());
            }

            @Override
            public void onEvaluation(TrainingRun run, Evaluation.Result result) {
                results.add(result);
            }
        };
        FastaSource all = FastaSource.shipped();
        var heldOut = new HeldOut(0.02);
        Path file;
        Path lines = folder.resolve("lines.jsonl");
        try (var board = new TensorBoard(folder.resolve("runs/1"))) {
            file = board.file();
            Trainer.of(new Esm2Config(1, 32, 2, 64), new BatchShape(BatchLayout.PACKED, 128, 64))
                    .withCallback(noting)
                    .withCallback(monitor)
                    .withCallback(board)
                    .withCallback(Callback.jsonLines(lines))
                    .withEvaluation(Evaluation.of(
                            () -> new MaskedProteins(new FastaSequences(all.only(heldOut))),
                            new BatchShape(BatchLayout.PACKED, 128, 64)))
                    .train(() -> new MaskedProteins(new ShuffledSequences(all.without(heldOut), 7, 1 << 20)), 200);
        }
        List<Event> events = read(file);
        assertEquals("brain.Event:2", events.getFirst().version());
        assertTrue(Math.abs(System.currentTimeMillis() / 1e3 - events.getFirst().wallTime()) < 600);
        assertEquals(202, events.size());
        for (int i = 0; i < 200; i++) {
            Event step = events.get(i + 1);
            assertEquals(i + 1, step.step());
            assertEquals(losses.get(i), step.scalars().get("train/loss"));
            assertEquals(rates.get(i), step.scalars().get("train/learning_rate"));
            assertEquals(4, step.scalars().size());
        }
        Event evaluation = events.getLast();
        assertEquals(200, evaluation.step());
        assertEquals((float) results.getFirst().loss(), evaluation.scalars().get("eval/loss"));
        assertEquals(
                (float) results.getFirst().perplexity(), evaluation.scalars().get("eval/perplexity"));
        assertEquals((float) results.getFirst().accuracy(), evaluation.scalars().get("eval/accuracy"));
        assertEquals(100, monitor.rates().size());
        assertEquals(
                new LearningRateMonitor.Rate(4, rates.get(3)), monitor.rates().get(1));
        List<String> written = Files.readAllLines(lines);
        assertEquals(201, written.size());
        assertTrue(written.getLast().startsWith("{\"evaluation\":200,\"loss\":"), written.getLast());
    }

    @Test
    void aFileWithoutStepsIsRemovedAndPlacesThatCannotBeWrittenAreRefused() throws IOException {
        var board = new TensorBoard(folder.resolve("runs"));
        var other = new TensorBoard(folder.resolve("runs"));
        assertTrue(Files.exists(board.file()) && !board.file().equals(other.file()));
        board.close();
        board.close();
        other.close();
        assertTrue(Files.notExists(board.file()));
        Path file = Files.createFile(folder.resolve("file"));
        assertEquals(
                "TensorBoard: " + file + ": is no folder",
                assertThrows(UncheckedIOException.class, () -> new TensorBoard(file))
                        .getMessage());
        assertEquals(
                "every: expected at least 1, got 0",
                assertThrows(IllegalArgumentException.class, () -> new LearningRateMonitor(0))
                        .getMessage());
    }
}
