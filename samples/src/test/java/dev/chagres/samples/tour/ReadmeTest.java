package dev.chagres.samples.tour;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.SplittableRandom;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** The README's example compiles, because it is a region of a sample, and runs. */
@Tag("L0")
class ReadmeTest {
    private static final Path PROJECT = Path.of("").toAbsolutePath().getParent();

    @Test
    void theReadmeShowsTheSample() throws IOException {
        String sample = find(
                "// @start region=\"readme\"\n(.*?) *// @end",
                PROJECT.resolve("samples/src/main/java/dev/chagres/samples/tour/Readme.java"));
        String shown = find("```java\n(.*?)```", PROJECT.resolve("README.md"));
        assertEquals(
                sample.stripTrailing().stripIndent() + "\n",
                shown,
                "README.md's example and the region in Readme.java");
    }

    @Test
    void theGuideShowsTheSamplesImportsAndTheProjectsVersion() throws IOException {
        String imports = find(
                "(import .*?;\n)\n", PROJECT.resolve("samples/src/main/java/dev/chagres/samples/tour/Readme.java"));
        Path guide = PROJECT.resolve("docs/using.md");
        assertEquals(imports, find("```java\n(.*?)```", guide), "docs/using.md's imports and those of Readme.java");
        String version = "<version>(.*?)</version>";
        assertEquals(find(version, PROJECT.resolve("pom.xml")), find(version, guide), "the version in docs/using.md");
    }

    @Test
    void theExampleRuns() {
        SplittableRandom random = new SplittableRandom(1);
        float[] values = new float[64 * 256];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) random.nextGaussian();
        }
        Readme.run(values);
    }

    private static String find(String pattern, Path file) throws IOException {
        Matcher matcher = Pattern.compile(pattern, Pattern.DOTALL).matcher(Files.readString(file));
        assertTrue(matcher.find(), () -> file + " has no " + pattern);
        return matcher.group(1);
    }
}
