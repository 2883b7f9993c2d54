package dev.chagres.te;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assertions.fail;

import dev.chagres.conformance.ChildJvm;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.te.ComputedBytes.Part;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/**
 * What the provider computes in eight bits beside what the reference computes in a process of its own, or, with {@code
 * -Dchagres.test.bytes=FILE}, beside what {@link WriteBytes} wrote elsewhere.
 */
@Tag("L0")
@Tag("L1")
class BytesOfProvidersTest {
    private static final String FILE = "chagres.test.bytes";
    private static final long MOST_BYTES = 4L << 20;

    private static ComputedBytes computed;

    @TempDir
    private Path folder;

    /** Each function has a scope of its own. */
    @BeforeAll
    static void compute() {
        OpenDevice open = new OpenDevice();
        open.open();
        try {
            computed = ComputedBytes.compute(open);
        } finally {
            open.close();
        }
    }

    @Test
    void agree() throws IOException, InterruptedException {
        String given = System.getProperty(FILE);
        Path file = given == null ? writtenByReference() : Path.of(given);
        assertTrue(Files.size(file) < MOST_BYTES, () -> file + ": expected less than 4 MiB");
        ByteComparison comparison = new ByteComparison(computed, BytesFile.read(file));
        System.out.println("beside the bytes of " + BytesFile.provider(file) + ":");
        System.out.print(comparison.report());
        if (!comparison.failures().isEmpty()) {
            fail(String.join(System.lineSeparator(), comparison.failures()));
        }
    }

    /** Two providers cannot share a process. */
    private Path writtenByReference() throws IOException, InterruptedException {
        Path file = folder.resolve("reference.safetensors");
        Path output = folder.resolve("output.txt");
        Process process = ChildJvm.of(WriteBytes.class, file.toString())
                .redirectErrorStream(true)
                .redirectOutput(output.toFile())
                .start();
        assertEquals(0, process.waitFor(), () -> text(output));
        return file;
    }

    private static String text(Path file) {
        try {
            return Files.readString(file);
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }

    /** One disturbance a rule, and one for each way in which a file may not fit. */
    @Test
    void disturbedBytesAreFound() {
        Map<String, byte[]> bytes = BytesFile.bytes(computed);
        assertEquals(List.of(), new ByteComparison(computed, bytes).failures());
        for (ByteRule rule : ByteRule.values()) {
            String name = firstOf(rule);
            byte[] whole = bytes.get(name);
            byte[] disturbed = whole.clone();
            disturb(rule, disturbed);
            bytes.put(name, disturbed);
            assertOneFailure(name + ": expected ", bytes);
            bytes.put(name, whole);
        }
        String name = firstOf(ByteRule.EXACT);
        byte[] whole = bytes.remove(name);
        assertOneFailure(name + ": expected " + whole.length + " bytes in the file, got none", bytes);
        bytes.put(name, new byte[whole.length - 1]);
        assertOneFailure(name + ": expected " + whole.length + " bytes in the file, got ", bytes);
        bytes.put(name, whole);
        bytes.put("nvte_other", new byte[1]);
        assertOneFailure("nvte_other: is in the file, but was not computed here", bytes);
    }

    /** One step in 0.05 % of the numbers passes, in 0.5 % it does not. */
    @Test
    void shareOfStepsIsLimited() {
        Map<String, byte[]> bytes = BytesFile.bytes(computed);
        Map<String, byte[]> few = BytesFile.bytes(computed);
        computed.parts().forEach((name, part) -> {
            if (part.rule() == ByteRule.ROUNDED && part.function().equals("nvte_gelu")) {
                few.put(name, stepped(part.bytes(), 2000));
                bytes.put(name, stepped(part.bytes(), 200));
            }
        });
        assertEquals(List.of(), new ByteComparison(computed, few).failures());
        assertOneFailure("nvte_gelu: expected 99.9 % of the FP8 numbers equal, got ", bytes);
    }

    private static byte[] stepped(byte[] bytes, int stride) {
        byte[] stepped = bytes.clone();
        for (int i = stride - 1; i < bytes.length; i += stride) {
            stepped[i] ^= 1; // an even and the odd number above it
        }
        return stepped;
    }

    private static void disturb(ByteRule rule, byte[] bytes) {
        switch (rule) {
            case EXACT -> bytes[bytes.length / 2] ^= 1;
            case ROUNDED -> bytes[bytes.length / 2] ^= 2;
            case COMPUTED, SUMMED -> bytes[bytes.length - 1] ^= (byte) 0x80;
        }
    }

    private static String firstOf(ByteRule rule) {
        for (Map.Entry<String, Part> entry : computed.parts().entrySet()) {
            if (entry.getValue().rule() == rule) {
                return entry.getKey();
            }
        }
        throw new IllegalStateException("no part of rule " + rule);
    }

    private static void assertOneFailure(String begins, Map<String, byte[]> bytes) {
        List<String> failures = new ByteComparison(computed, bytes).failures();
        assertEquals(1, failures.size(), failures::toString);
        assertTrue(failures.getFirst().startsWith(begins), failures.getFirst());
    }
}
