package dev.chagres.trainer.command;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.io.SafetensorsFile;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.lang.foreign.MemorySegment;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import javax.imageio.ImageIO;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** {@code contacts} with a folder that transformers wrote, for its contact head. */
@Tag("L0")
class ContactsTest {
    private static final String FOLDER = "../models/src/test/resources/huggingface/token-dropout";

    @TempDir
    private Path temporary;

    private String told = "";

    private int run(String fasta, String... more) throws IOException {
        Path file = temporary.resolve("p.fasta");
        Files.writeString(file, fasta);
        var text = new ByteArrayOutputStream();
        PrintStream out = new PrintStream(text, true, StandardCharsets.UTF_8);
        String[] arguments = new String[more.length + 2];
        arguments[0] = "--model=" + FOLDER;
        arguments[1] = "--fasta=" + file;
        System.arraycopy(more, 0, arguments, 2, more.length);
        int status = Contacts.run(out, out, arguments);
        told = text.toString(StandardCharsets.UTF_8);
        return status;
    }

    @Test
    void oneProteinIsDrawnAndSeveralAreTensors() throws IOException {
        Path npy = temporary.resolve("c.npy");
        Path picture = temporary.resolve("c.png");
        assertEquals(0, run(">A\nMKTAYIAKQR\n", "--out=" + npy, "--plot=" + picture), () -> told);
        byte[] bytes = Files.readAllBytes(npy);
        assertTrue(new String(bytes, 10, 100, StandardCharsets.US_ASCII).contains("'shape': (10, 10)"));
        assertNotNull(ImageIO.read(new ByteArrayInputStream(Files.readAllBytes(picture))));
        Path several = temporary.resolve("c.safetensors");
        assertEquals(0, run(">A\nMKTAYIAKQR\n>B\nACD\n>A\nGG\n", "--out=" + several), () -> told);
        try (SafetensorsFile file = SafetensorsFile.open(several)) {
            byte[] own = new byte[400];
            file.entry("A").copyTo(MemorySegment.ofArray(own));
            assertArrayEquals(Arrays.copyOfRange(bytes, bytes.length - 400, bytes.length), own);
            assertArrayEquals(new long[] {3, 3}, file.entry("B").sizes());
            assertArrayEquals(new long[] {2, 2}, file.entry("A#2").sizes());
        }
        assertEquals(2, run(">A\nMK\n>B\nACD\n", "--out=" + npy));
        assertEquals(
                "contacts: --out: expected .safetensors for several proteins, got " + npy
                        + " for 2 (contacts --help lists the options)",
                told.strip());
        assertEquals(2, run(">A\n" + "A".repeat(3) + "\n", "--out=" + npy, "--context=4"));
        assertEquals(
                "contacts: --fasta: expected shorter proteins, or a larger --context, for --context 4 has room for 2"
                        + " residues and 1 of 1 proteins have more, the first A with 3 (contacts --help lists the options)",
                told.strip());
    }
}
