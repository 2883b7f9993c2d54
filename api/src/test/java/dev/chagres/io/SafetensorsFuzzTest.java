package dev.chagres.io;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.Shape;
import java.io.IOException;
import java.io.InputStream;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.Random;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/**
 * Right files with something changed: each is read, and then every byte of it is accounted for, or refused with a
 * {@link SafetensorsException}.
 *
 * <p>{@code -Dchagres.seed=N} changes them in another way.
 */
@Tag("L0")
class SafetensorsFuzzTest {
    private static final int CASES = 20_000;

    /** Of the files that are read, one in so many is written again: each waits for the disk. */
    private static final int WRITTEN = 20;

    private static final long SEED = Long.getLong("chagres.seed", 20_260_101);

    @TempDir
    private Path folder;

    @Test
    void aChangedFileIsReadWholeOrRefused() throws IOException {
        List<byte[]> originals = originals();
        Path copy = folder.resolve("copy.safetensors");
        int read = 0;
        int refused = 0;
        for (int number = 0; number < CASES; number++) {
            Random random = new Random(SEED + number);
            byte[] bytes = Mutation.some(originals.get(number % originals.size()), random);
            Path file = Files.write(folder.resolve(number + ".safetensors"), bytes);
            try (SafetensorsFile opened = SafetensorsFile.open(file)) {
                assertAccountsFor(opened, bytes);
                if (read++ % WRITTEN == 0) {
                    writeAgain(opened, copy);
                }
            } catch (SafetensorsException expected) {
                assertTrue(String.valueOf(expected.getMessage()).startsWith(file + ": "), expected.toString());
                refused++;
            } catch (Throwable other) {
                throw new AssertionError("seed " + SEED + ", case " + number + " of " + Arrays.toString(bytes), other);
            }
        }
        System.out.println("seed " + SEED + ": " + read + " changed files read, " + refused + " refused");
        assertTrue(read > CASES / 20, "hardly any was read: " + read);
        assertTrue(refused > CASES / 2, "hardly any was refused: " + refused);
    }

    private static List<byte[]> originals() throws IOException {
        List<byte[]> originals = new ArrayList<>();
        for (String vector : List.of("tensors", "tensors_other")) {
            try (InputStream bytes =
                    SafetensorsFuzzTest.class.getResourceAsStream("/vectors/" + vector + ".safetensors")) {
                originals.add(Objects.requireNonNull(bytes).readAllBytes());
            }
        }
        originals.add(RawFile.bytes("{}"));
        originals.add(RawFile.bytes(
                "{\"__metadata__\":{\"a\":\"\\u00e4\",\"b\":\"\"}," + RawFile.tensor("b", "F16", "[2,0,3]", 1, 1) + ","
                        + RawFile.tensor("c", "I16", "[1,2]", 1, 5) + "," + RawFile.tensor("a", "U8", "[]", 0, 1)
                        + "}  ",
                new byte[] {1, 2, 3, 4, 5}));
        return originals;
    }

    /** Holds type × shape, and the place of each tensor, against the bytes of the file, without the reader's own code. */
    private static void assertAccountsFor(SafetensorsFile file, byte[] bytes) {
        long headerSize = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN).getLong(0);
        int position = Math.toIntExact(8 + headerSize);
        for (SafetensorsEntry entry : file.entries().values()) {
            BigInteger bits = BigInteger.valueOf(entry.type().bitSize());
            for (long size : entry.sizes()) {
                bits = bits.multiply(BigInteger.valueOf(size));
            }
            assertEquals(BigInteger.valueOf(8 * entry.byteSize()), bits);
            int end = position + Math.toIntExact(entry.byteSize());
            byte[] expected = Arrays.copyOfRange(bytes, position, end);
            assertArrayEquals(expected, entry.bytes().toArray(ValueLayout.JAVA_BYTE));
            byte[] copied = new byte[expected.length];
            entry.copyTo(MemorySegment.ofArray(copied));
            assertArrayEquals(expected, copied);
            position = end;
        }
        assertEquals(bytes.length, position);
    }

    /** What was read and can be a tensor here is written, and read again the same. */
    private static void writeAgain(SafetensorsFile file, Path copy) {
        List<TensorSource> sources = new ArrayList<>();
        for (SafetensorsEntry entry : file.entries().values()) {
            if (entry.type().dtype().isPresent() && entry.sizes().length <= Shape.MAX_RANK) {
                sources.add(TensorSource.of(new TensorSpec(entry.name(), entry.dtype(), entry.shape()), entry.bytes()));
            }
        }
        SafetensorsWriter.write(copy, sources, file.metadata());
        try (SafetensorsFile written = SafetensorsFile.open(copy)) {
            assertEquals(file.metadata(), written.metadata());
            for (SafetensorsEntry entry : written.entriesExactly(
                    sources.stream().map(TensorSource::spec).toList())) {
                assertEquals(-1, entry.bytes().mismatch(file.entry(entry.name()).bytes()));
            }
        }
    }
}
