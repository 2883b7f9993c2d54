package dev.chagres.models.data;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.Random;
import java.util.zip.GZIPOutputStream;

/** FASTA texts and sources for the tests. */
final class Fasta {
    private static final String LETTERS = "LAGVSERTIDPKQNFYMHWC";

    private Fasta() {}

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.ISO_8859_1);
    }

    static byte[] gzip(byte[] plain) {
        var out = new ByteArrayOutputStream();
        try (var gz = new GZIPOutputStream(out)) {
            gz.write(plain);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        return out.toByteArray();
    }

    static FastaSource source(byte[] content) {
        return new FastaSource("x.fasta", true, () -> new ByteArrayInputStream(content));
    }

    static FastaSource source(String text) {
        return source(bytes(text));
    }

    /** Sequences of drawn lengths, each beginning with its own number in base 20, so that it can be told. */
    static String drawn(Random random, int count, int longest) {
        var text = new StringBuilder();
        for (int i = 0; i < count; i++) {
            text.append(">s").append(i).append('\n');
            int length = 3 + random.nextInt(longest - 2);
            for (int r = 0, number = i; r < length; r++, number /= 20) {
                text.append(LETTERS.charAt(r < 3 ? number % 20 : random.nextInt(20)));
            }
            text.append('\n');
        }
        return text.toString();
    }
}
