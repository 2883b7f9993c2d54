package dev.chagres.samples.tour;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Shape;
import dev.chagres.io.SafetensorsFile;
import dev.chagres.launch.Ranks;
import dev.chagres.models.esm.Esm2;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.esm.Esm2Form;
import dev.chagres.models.huggingface.Esm2Checkpoint;
import dev.chagres.models.huggingface.SaveConfig;
import dev.chagres.samples.tour.FineTuneProgram.Protein;
import dev.chagres.trainer.callback.EarlyStopping;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The README's example and the first program of the documentation compile, because they are sources of a sample, and run. */
@Tag("L0")
class ReadmeTest {
    private static final Path PROJECT = Path.of("").toAbsolutePath().getParent();

    @Test
    void theReadmeShowsTheSample() throws IOException {
        String sample = region("readme", "samples/src/main/java/dev/chagres/samples/tour/Readme.java");
        String shown = find("learns to count.*?```java\n(.*?)```", PROJECT.resolve("README.md"));
        assertEquals(sample, shown, "README.md's example and the region in Readme.java");
    }

    @Test
    void theReadmeOpensAPublishedModel() throws IOException {
        String tested =
                region("readme", "models/src/test/java/dev/chagres/models/huggingface/HuggingFaceExampleTest.java");
        assertEquals(
                tested.replace("folder", "Path.of(\"esm2_t6_8M_UR50D\")"),
                find("```java\n(.*?)```", PROJECT.resolve("README.md")));
    }

    @Test
    void theGuideShowsTheSamplesImportsAndTheProjectsVersion() throws IOException {
        String imports = find(
                "(import .*?;\n)\n", PROJECT.resolve("samples/src/main/java/dev/chagres/samples/tour/Readme.java"));
        Path guide = PROJECT.resolve("docs/using.md");
        assertEquals(imports, find("```java\n(.*?)```", guide), "docs/using.md's imports and those of Readme.java");
        assertEquals(
                find("<revision>(.*?)(?:-SNAPSHOT)?</revision>", PROJECT.resolve("pom.xml")),
                find("<artifactId>chagres</artifactId>\\s*<version>(.*?)</version>", guide),
                "the version in docs/using.md");
    }

    /** Short enough to copy: under 25 lines. */
    @Test
    void theProductByHandIsTheSamples() throws IOException {
        String sample = region("product", "samples/src/main/java/dev/chagres/samples/tour/Sample10Float8Product.java");
        String shown = find("## By hand\n.*?```java\n(.*?)```", PROJECT.resolve("docs/recipes-products.md"));
        assertEquals(
                sample,
                shown,
                "docs/recipes-products.md's product by hand and the region in Sample10Float8Product.java");
        assertTrue(shown.lines().count() < 25, shown);
    }

    /** It prints what the README says, but for digits of the losses, which fall. */
    @Test
    void theExampleLearns() throws IOException {
        PrintStream out = System.out;
        var printed = new ByteArrayOutputStream();
        System.setOut(new PrintStream(printed, true, StandardCharsets.UTF_8));
        try {
            Readme.run();
        } finally {
            System.setOut(out);
        }
        List<String> lines = printed.toString(StandardCharsets.UTF_8).lines().toList();
        List<String> shown = find("It prints.*?```\n(.*?)```", PROJECT.resolve("README.md"))
                .lines()
                .toList();
        assertEquals(withoutDigits(shown), withoutDigits(lines));
        double first = loss(lines.getFirst());
        double last = loss(lines.getLast());
        assertTrue(last < first / 50, lines::toString);
    }

    private static List<String> withoutDigits(List<String> lines) {
        return lines.stream().map(line -> line.replaceAll("loss .*", "loss")).toList();
    }

    private static double loss(String line) {
        return Double.parseDouble(line.substring(line.indexOf("loss ") + 5).replace(',', '.'));
    }

    @Test
    void theFirstProgramIsTheOneOfItsPage() throws IOException {
        String program = find(
                "(import .*)", PROJECT.resolve("samples/src/main/java/dev/chagres/samples/tour/FirstProgram.java"));
        assertEquals(
                program,
                find("```java\n(.*?)```", PROJECT.resolve("docs/first-program.md")),
                "docs/first-program.md and FirstProgram.java");
    }

    @Test
    void theProgramThatFineTunesIsTheOneOfItsPage() throws IOException {
        String program = find(
                "(import .*)", PROJECT.resolve("samples/src/main/java/dev/chagres/samples/tour/FineTuneProgram.java"));
        assertEquals(
                program,
                find("```java\n(.*?)```", PROJECT.resolve("docs/fine-tuning-program.md")),
                "docs/fine-tuning-program.md and FineTuneProgram.java");
    }

    /** Of each class half of the residues are a letter of its own. */
    @Test
    void theProgramThatFineTunesTellsClassesApart(@TempDir Path folder) throws IOException, InterruptedException {
        try (Device device = Device.open();
                Esm2 model = new Esm2(
                        device, new Esm2Config(2, 32, 4, 1026).withForm(Esm2Form.published()), DType.FLOAT32, 5)) {
            Esm2Checkpoint.save(model, folder.resolve("esm2"), SaveConfig.standard());
        }
        Map<String, String> letters = Map.of("kinase", "K", "membrane", "L");
        List<Protein> all = new ArrayList<>();
        for (int i = 0; i < 60; i++) {
            for (var each : letters.entrySet()) {
                all.add(new Protein(each.getValue().repeat(9 + i % 7) + "ACDEFGHIK".substring(i % 5), each.getKey()));
            }
        }
        Path run = folder.resolve("run");
        var program = new FineTuneProgram(folder.resolve("esm2"), List.of("kinase", "membrane"));
        EarlyStopping stopping = program.train(all.subList(0, 100), all.subList(100, 120), run);
        assertTrue(stopping.best() < 0.3, () -> "loss of held-out proteins: " + stopping.best());
        Path tuned = folder.resolve("tuned");
        program.save(run, stopping.bestStep(), tuned);
        assertEquals(List.of("kinase", "membrane"), Esm2Checkpoint.labels(tuned));
        for (var each : letters.entrySet()) {
            assertEquals(each.getKey(), program.classify(tuned, each.getValue().repeat(12) + "DEFGH"));
        }
    }

    @Test
    void theFirstProgramLearnsAndSaves(@TempDir Path folder) {
        Path file = folder.resolve("first.safetensors");
        float loss = new FirstProgram().train(file);
        assertTrue(loss < 0.05, () -> "loss of new sequences: expected below 0.05, got " + loss);
        try (SafetensorsFile saved = SafetensorsFile.open(file)) {
            assertEquals(Shape.of(32, 64), saved.entry("top.head.weight").shape());
        }
    }

    @Test
    void theFirstCollectiveIsTheTests() throws IOException {
        String tested = region("ranks", "api/src/test/java/dev/chagres/sharding/CollectivesExampleTest.java");
        assertEquals(
                tested,
                find("```java\nimport .*?;\n\n(.*?)```", PROJECT.resolve("docs/collectives.md")),
                "docs/collectives.md's first example and the region in CollectivesExampleTest.java");
    }

    @Test
    void theStepGraphIsTheTests() throws IOException {
        String tested = region("stepGraph", "api/src/test/java/dev/chagres/batch/StepGraphExampleTest.java");
        assertEquals(
                tested,
                find("# Whole training steps\n.*?```java\n(.*?)```", PROJECT.resolve("docs/step-graphs.md")),
                "docs/step-graphs.md's step graph and the region in StepGraphExampleTest.java");
    }

    @Test
    void theProgramOfSeveralRanksIsTheOneOfItsPage() throws IOException {
        String program = find(
                "(import .*)", PROJECT.resolve("samples/src/main/java/dev/chagres/samples/tour/RanksProgram.java"));
        assertEquals(
                program,
                find("## A whole program\n.*?```java\n(.*?)```", PROJECT.resolve("docs/strategies.md")),
                "docs/strategies.md and RanksProgram.java");
    }

    /** The loss of an even guess is ln 32 = 3.5. */
    @Test
    void theProgramOfSeveralRanksLearns() {
        assumeTrue(Device.count() >= 2, "skipped: it needs two devices");
        List<Float> losses = Ranks.local(2).run(rank -> new RanksProgram().train(rank));
        assertTrue(losses.getFirst() < 0.5, () -> "loss: expected below 0.5, got " + losses);
        assertEquals(losses.get(0), losses.get(1), "what ranks sum is the same on each");
    }

    /** Returns a region of a source file, as a page shows it. */
    private static String region(String name, String file) throws IOException {
        String lines = find("// @start region=\"" + name + "\"\n(.*?) *// @end", PROJECT.resolve(file));
        return lines.stripTrailing().stripIndent() + "\n";
    }

    private static String find(String pattern, Path file) throws IOException {
        Matcher matcher = Pattern.compile(pattern, Pattern.DOTALL).matcher(Files.readString(file));
        assertTrue(matcher.find(), () -> file + " has no " + pattern);
        return matcher.group(1);
    }
}
