package dev.chagres.cudnn;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.bindings.CudnnException;
import dev.chagres.bindings.Provider;
import dev.chagres.conformance.OpenDevice;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.List;
import java.util.SplittableRandom;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.api.io.TempDir;

/** Engines that were measured: kept, taken again, and left out where a file is not what was written. */
@Tag("L0")
@Tag("L1")
class PlanChoicesTest {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    @TempDir
    private Path folder;

    private static OperationGraph graph(float factor) {
        GraphBuilder builder = OperationGraph.builder("scaled product");
        GraphTensor x = builder.tensor("x", DType.BFLOAT16, 1, 64, 32);
        GraphTensor w = builder.tensor("w", DType.BFLOAT16, 1, 32, 64);
        GraphTensor product = builder.matmul("product", x, w);
        builder.output(
                builder.pointwise("y", PointwiseMode.MUL, product, builder.scalar("factor", 3, factor)),
                DataType.BFLOAT16);
        return builder.build();
    }

    private static String explained(OperationGraph graph, PlanChoices choices) {
        try (ExecutionPlan plan = graph.plan(open.device(), PlanOptions.DEFAULT.measured(choices))) {
            return plan.explain();
        }
    }

    private static String engine(String explained) {
        return explained
                        .lines()
                        .filter(line -> line.startsWith("engine "))
                        .findFirst()
                        .orElseThrow()
                + explained
                        .lines()
                        .filter(line -> line.startsWith("knobs: "))
                        .findFirst()
                        .orElseThrow();
    }

    @Test
    void anEngineIsMeasuredOnceAndTakenAgain() throws IOException {
        Path file = folder.resolve("choices");
        String first;
        // @start region="choices"
        OperationGraph graph = graph(2);
        PlanOptions options = PlanOptions.DEFAULT.measured(PlanChoices.of(file));
        try (ExecutionPlan plan = graph.plan(open.device(), options)) {
            first = plan.explain();
        }
        // @end
        assertTrue(first.contains("\nmeasured: engine ") && first.contains(" us"), first);
        String again = explained(graph(2), PlanChoices.of(file));
        assertTrue(again.contains("\nmeasured: before, kept in " + file), again);
        assertEquals(
                engine(first).replaceFirst(" of heuristics (A|B|FALLBACK)", ""),
                engine(again).replace(" of kept choices", ""));
        List<String> lines = Files.readAllLines(file);
        assertEquals("chagres cudnn choices 1", lines.getFirst());
        assertEquals(3, lines.size());
        // Another number in the graph, and other options, are other choices.
        explained(graph(3), PlanChoices.of(file));
        PlanOptions other = PlanOptions.DEFAULT.withWorkspaceLimit(1 << 30).measured(PlanChoices.of(file));
        graph(2).plan(open.device(), other).close();
        assertEquals(5, Files.readAllLines(file).size());
    }

    @Test
    void withoutAFileChoicesLiveAsLongAsTheObject() {
        PlanChoices choices = PlanChoices.inMemory();
        assertFalse(explained(graph(2), choices).contains("measured: before"));
        assertTrue(explained(graph(2), choices).contains("measured: before, kept in memory"));
    }

    @Test
    void aDamagedFileIsLeftOutAndReplaced() throws IOException {
        Path file = folder.resolve("choices");
        explained(graph(2), PlanChoices.of(file));
        byte[] whole = Files.readAllBytes(file);
        SplittableRandom random = new SplittableRandom(OpenDevice.seed());
        for (int i = 0; i < 200; i++) {
            byte[] damaged = whole.clone();
            damaged[random.nextInt(damaged.length - 1)] ^= (byte) (1 << random.nextInt(7));
            Files.write(file, damaged);
            PlanChoices.of(file);
        }
        Files.writeString(file, "chagres cudnn choices 2\nsha256 0\n");
        assertFalse(explained(graph(2), PlanChoices.of(file)).contains("measured: before"));
        assertTrue(explained(graph(2), PlanChoices.of(file)).contains("measured: before"));
    }

    @Test
    void aFileThatOthersMayWriteIsNeitherReadNorWritten() throws IOException {
        Path file = folder.resolve("choices");
        explained(graph(2), PlanChoices.of(file));
        Files.setPosixFilePermissions(file, PosixFilePermissions.fromString("rw-rw-rw-"));
        byte[] before = Files.readAllBytes(file);
        assertFalse(explained(graph(2), PlanChoices.of(file)).contains("measured: before"));
        explained(graph(4), PlanChoices.of(file));
        assertEquals(before.length, Files.size(file));
    }

    @Test
    void aChoiceThatCudnnRefusesIsMeasuredAnew() {
        PlanChoices choices = PlanChoices.inMemory();
        OperationGraph graph = graph(2);
        PlanOptions options = PlanOptions.DEFAULT.measured(choices);
        choices.keep(choices.key(graph, open.device(), options), new PlanChoices.Choice(1 << 20, List.of()));
        String text = explained(graph, choices);
        assertTrue(
                text.contains("\nmeasured: engine ") && text.contains("\nnot taken: engine 1048576 of kept choices: "),
                text);
    }

    @Test
    void aPlanIsReadAgain() {
        String text;
        float[] expected;
        Tensor x = open.tensor(DType.BFLOAT16, open.normal(DType.BFLOAT16, 64 * 32, 1), 64, 32);
        Tensor w = open.tensor(DType.BFLOAT16, open.normal(DType.BFLOAT16, 32 * 64, 1), 32, 64);
        Tensor y = open.scope().tensor(DType.BFLOAT16, 64, 64);
        try (ExecutionPlan plan = graph(2).plan(open.device())) {
            plan.run(open.stream(), plan.variantPack().set("x", x).set("w", w).set("y", y));
            expected = open.read(y);
            text = plan.serialized();
        }
        y.zero(open.stream());
        try (ExecutionPlan plan = graph(2).restore(open.device(), text)) {
            plan.run(open.stream(), plan.variantPack().set("x", x).set("w", w).set("y", y));
            assertArrayEquals(expected, open.read(y));
            assertEquals(text, plan.serialized());
            assertTrue(plan.explain().contains("engine of a plan that was read"), plan.explain());
        }
        assertTrue(text.startsWith("chagres cudnn plan 1 "), text);
        for (String other : List.of("", "{}", text.substring(1), text + " ", text.replace("plan 1", "plan 2"))) {
            assertThrows(IllegalArgumentException.class, () -> graph(2).restore(open.device(), other));
        }
        String refusal = assertThrows(IllegalArgumentException.class, () -> graph(3).restore(open.device(), text))
                .getMessage();
        assertTrue(refusal.startsWith("serialized: expected a whole plan of graph \"scaled product\" for "), refusal);
    }

    /** The reference reads a changed text with a right checksum as what it says, or refuses it; cuDNN is never given one. */
    @Test
    void theReferenceReadsNoDamagedPlan() {
        if (Provider.current() != Provider.REFERENCE) {
            return;
        }
        String text;
        try (ExecutionPlan plan = graph(2).plan(open.device())) {
            text = plan.serialized();
        }
        int end = text.indexOf('\n');
        String header = text.substring(0, end - 64);
        SplittableRandom random = new SplittableRandom(OpenDevice.seed());
        int refused = 0;
        for (int i = 0; i < 3000; i++) {
            StringBuilder json = new StringBuilder(text.substring(end + 1));
            for (int change = random.nextInt(3); change >= 0; change--) {
                int at = random.nextInt(json.length());
                switch (random.nextInt(3)) {
                    case 0 -> json.setCharAt(at, "0123456789abcdef[]{},\"".charAt(random.nextInt(22)));
                    case 1 -> json.deleteCharAt(at);
                    default -> json.setLength(at + 1);
                }
            }
            String changed = header + PlanChoices.sha256(json.toString()) + "\n" + json;
            try {
                graph(2).restore(open.device(), changed).close();
            } catch (CudnnException expected) {
                refused++;
            }
        }
        assertTrue(refused > 2000, "refused: " + refused);
    }

    @Test
    void misuse() {
        Path file = folder.resolve("missing").resolve("choices");
        assertThrown(
                IllegalArgumentException.class,
                "file: expected one in a folder that is there, got " + file,
                () -> PlanChoices.of(file));
    }
}
