package dev.chagres.samples.tour;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

@Tag("L0")
@Tag("L1")
class TourTest {
    @ParameterizedTest
    @ValueSource(
            strings = {
                "device",
                "layernorm",
                "product",
                "attention",
                "layer",
                "allreduce",
                "epilogue",
                "fusedattention",
                "ownlayer",
                "float8",
                "ownmodel",
                "cudnngraph",
                "ownscores",
                "embeddings"
            })
    void everySampleVerifiesItsResult(String name) throws Exception {
        Tour.main(new String[] {name});
    }

    @Test
    void nothingRunsWhereAWordNamesNoSample() throws Exception {
        var out = new ByteArrayOutputStream();
        var err = new ByteArrayOutputStream();
        PrintStream before = System.out;
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        try {
            assertEquals(2, Tour.run(new PrintStream(err, true, StandardCharsets.UTF_8), "1", "layernorm", "nope"));
        } finally {
            System.setOut(before);
        }
        assertEquals(
                "sample: none is called \"nope\"; without an argument they are listed\n",
                err.toString(StandardCharsets.UTF_8));
        assertEquals("", out.toString(StandardCharsets.UTF_8));
    }

    /** The columns of the list begin at the same place in each line, whatever the lengths of numbers and names. */
    @Test
    void theListIsAligned() throws Exception {
        var out = new ByteArrayOutputStream();
        PrintStream before = System.out;
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        try {
            assertEquals(0, Tour.run(System.err));
        } finally {
            System.setOut(before);
        }
        List<String> lines = out.toString(StandardCharsets.UTF_8).lines().toList();
        assertEquals(14, lines.size());
        for (String line : lines) {
            assertTrue(line.matches("[ 1]\\d  [a-z0-9 ]{14}  \\S.*"), line);
        }
    }
}
