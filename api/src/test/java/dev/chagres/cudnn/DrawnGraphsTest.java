package dev.chagres.cudnn;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.bindings.Provider;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerance;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.SplittableRandom;
import java.util.TreeMap;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** 1,000 drawn graphs of 2 to 8 operations against double precision. */
@Tag("L0")
@Tag("L1")
class DrawnGraphsTest {
    private static final int GRAPHS = 1000;
    /** Times that each kind of operation is drawn at least. */
    private static final int LEAST = 50;

    /** Some roundings to FP32 for each of 8 operations; a GPU multiplies in TF32 and has its own exp and tanh. */
    private static final Tolerance REFERENCE = new Tolerance("drawn graph", 5e-6, 5e-5);

    private static final Tolerance CUDA = new Tolerance("drawn graph (TF32)", 1e-2, 1e-1);

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private final TreeMap<String, Integer> counts = new TreeMap<>();

    @Test
    void drawn() {
        int computed = 0;
        List<String> wrong = new ArrayList<>();
        for (int i = 0; i < GRAPHS; i++) {
            SplittableRandom random = new SplittableRandom(OpenDevice.seed() + i);
            GraphWitness graph = new GraphWitness(open, "drawn " + i);
            draw(graph, random);
            try {
                computed += graph.check(1, Provider.current() == Provider.CUDA ? CUDA : REFERENCE) ? 1 : 0;
            } catch (AssertionError other) {
                wrong.add(String.valueOf(other.getMessage()));
            }
            open.scope().restart();
        }
        assertEquals(List.of(), wrong);
        System.out.println(computed + " of " + GRAPHS + " drawn graphs have an engine; operations: " + counts);
        assertTrue(computed > 0, "no graph has an engine");
        counts.forEach((kind, count) -> assertTrue(count >= LEAST, kind + ": " + count));
    }

    private void draw(GraphWitness graph, SplittableRandom random) {
        long[] dims = {1 + random.nextInt(3), 1 + random.nextInt(9), 1 + random.nextInt(17)};
        GraphTensor last = input(graph, random, "x", dims);
        int operations = 2 + random.nextInt(7);
        List<GraphTensor> results = new ArrayList<>();
        for (int i = 0; i < operations; i++) {
            last = next(graph, random, "o" + i, last);
            results.add(last);
        }
        DType stored = random.nextInt(4) == 0 ? DType.BFLOAT16 : DType.FLOAT32;
        graph.builder.output(last, DataType.of(stored));
        if (stored == DType.BFLOAT16) {
            graph.rounded(last, stored);
        }
        GraphTensor middle = results.get(random.nextInt(results.size()));
        if (middle.isVirtual()) {
            graph.builder.output(middle);
        }
    }

    private static GraphTensor input(GraphWitness graph, SplittableRandom random, String name, long... dims) {
        DType dtype = random.nextInt(3) == 0 ? DType.FLOAT16 : DType.FLOAT32;
        if (dims.length == 3 && random.nextInt(4) == 0) {
            long[] strides = {dims[1] * dims[2], 1, dims[1]};
            GraphTensor turned = graph.builder.tensor(name, dtype, dims, strides);
            return graph.input(turned, open.normal(dtype, (int) GraphWitness.count(dims), 1));
        }
        return graph.normal(name, dtype, dims);
    }

    private GraphTensor next(GraphWitness graph, SplittableRandom random, String name, GraphTensor x) {
        int kind = random.nextInt(9);
        counts.merge(
                List.of(
                                "unary",
                                "binary",
                                "product",
                                "reduction",
                                "transpose",
                                "concatenate",
                                "softmax",
                                "select",
                                "scalar")
                        .get(kind),
                1,
                Integer::sum);
        long[] dims = x.dims();
        return switch (kind) {
            case 0 -> unary(graph, random, name, x);
            case 1 -> binary(graph, random, name, x, input(graph, random, name + ".b", broadcast(random, dims)));
            case 2 ->
                graph.matmul(
                        name,
                        x,
                        input(
                                graph,
                                random,
                                name + ".w",
                                random.nextInt(2) == 0 ? 1 : dims[0],
                                dims[2],
                                1 + random.nextInt(12)));
            case 3 -> reduction(graph, random, name, x);
            case 4 -> graph.transpose(name, x, random.nextInt(2) == 0 ? new int[] {0, 2, 1} : new int[] {1, 0, 2});
            case 5 -> concatenate(graph, random, name, x);
            case 6 -> graph.softmax(name, x, random.nextInt(3));
            case 7 -> select(graph, random, name, x);
            default -> graph.binary(name, PointwiseMode.MUL, x, graph.scalar(name + ".s", 3, 0.75f), (p, q) -> p * q);
        };
    }

    private static long[] broadcast(SplittableRandom random, long... dims) {
        return Arrays.stream(dims).map(dim -> random.nextInt(3) == 0 ? 1 : dim).toArray();
    }

    private static GraphTensor unary(GraphWitness graph, SplittableRandom random, String name, GraphTensor x) {
        return switch (random.nextInt(6)) {
            case 0 -> graph.unary(name, PointwiseMode.TANH_FWD, x, Math::tanh);
            case 1 -> graph.unary(name, PointwiseMode.SIGMOID_FWD, x, v -> 1 / (1 + Math.exp(-v)));
            case 2 -> graph.unary(name, PointwiseMode.SWISH_FWD, x, v -> v / (1 + Math.exp(-v)));
            case 3 -> graph.unary(name, PointwiseMode.ABS, x, Math::abs);
            case 4 -> graph.unary(name, PointwiseMode.NEG, x, v -> -v);
            default -> graph.unary(name, PointwiseMode.RELU_FWD, x, v -> Math.max(v, 0));
        };
    }

    private static GraphTensor binary(
            GraphWitness graph, SplittableRandom random, String name, GraphTensor x, GraphTensor b) {
        return switch (random.nextInt(5)) {
            case 0 -> graph.binary(name, PointwiseMode.ADD, x, b, Double::sum);
            case 1 -> graph.binary(name, PointwiseMode.MUL, b, x, (p, q) -> p * q);
            case 2 -> graph.binary(name, PointwiseMode.SUB, b, x, (p, q) -> p - q);
            case 3 -> graph.binary(name, PointwiseMode.MAX, x, b, Math::max);
            default -> graph.binary(name, PointwiseMode.MIN, x, b, Math::min);
        };
    }

    private static GraphTensor reduction(GraphWitness graph, SplittableRandom random, String name, GraphTensor x) {
        ReductionMode[] modes = {
            ReductionMode.ADD, ReductionMode.MAX, ReductionMode.AVG, ReductionMode.AMAX, ReductionMode.NORM2
        };
        return graph.reduction(name, modes[random.nextInt(modes.length)], x, random.nextInt(3));
    }

    private static GraphTensor concatenate(GraphWitness graph, SplittableRandom random, String name, GraphTensor x) {
        int axis = random.nextInt(3);
        long[] dims = x.dims();
        dims[axis] = 1L + random.nextInt(4);
        DType dtype = x.type().dtype();
        return graph.concatenate(name, axis, x, graph.normal(name + ".c", dtype, dims));
    }

    /** x where an input is below 0, else the input. */
    private static GraphTensor select(GraphWitness graph, SplittableRandom random, String name, GraphTensor x) {
        GraphTensor other = input(graph, random, name + ".b", x.dims());
        GraphTensor zero = graph.scalar(name + ".zero", 3, 0);
        GraphTensor below = graph.builder.pointwise(name + ".below", PointwiseMode.CMP_LT, other, zero);
        GraphTensor y = graph.builder.pointwise(name, PointwiseMode.BINARY_SELECT, x, other, below);
        double[] chosen = new double[(int) y.count()];
        Arrays.setAll(chosen, i -> graph.of(other)[i] < 0 ? graph.of(x)[i] : graph.of(other)[i]);
        return graph.put(y, chosen);
    }
}
