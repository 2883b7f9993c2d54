package dev.chagres.cudnn;

import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.bindings.CudnnException;
import dev.chagres.bindings.Provider;
import dev.chagres.conformance.OpenDevice;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.SplittableRandom;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/**
 * Graphs whose arguments are changed at random: each call is taken, or refused by a typed exception that says what was expected and what came; what
 * is built is planned, and run where it is small. {@code -Dchagres.test.graphs=N} draws another number of them.
 */
@Tag("L0")
@Tag("L1")
class MutatedGraphsTest {
    /** A GPU's heuristics take milliseconds for a graph, and compile for some. */
    private static final int GRAPHS =
            Integer.getInteger("chagres.test.graphs", Provider.current() == Provider.CUDA ? 500 : 100_000);

    private static final int MOST_ELEMENTS = 512;
    /** One built graph in so many is planned and run. */
    private static final int PLANNED = 40;

    private static final long[] EXTREMES = {
        0, -1, 1, 2, 7, 9, 1L << 31, 1L << 32, 1L << 40, Long.MAX_VALUE, Long.MIN_VALUE
    };

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private SplittableRandom random = new SplittableRandom();
    private GraphBuilder builder = OperationGraph.builder("none");
    private final GraphTensor foreign = OperationGraph.builder("other").tensor("foreign", DType.FLOAT32, 2, 3, 4);
    private final List<GraphTensor> tensors = new ArrayList<>();
    private int names;
    private int taken;
    private int refused;
    private int built;
    private int planned;

    @Test
    void takenOrRefused() {
        for (int i = 0; i < GRAPHS; i++) {
            random = new SplittableRandom(OpenDevice.seed() + i);
            try {
                draw(i);
            } catch (RuntimeException | AssertionError other) {
                throw new AssertionError("graph " + i + " of seed " + OpenDevice.seed(), other);
            }
        }
        System.out.println(GRAPHS + " mutated graphs: " + taken + " calls taken, " + refused + " refused; " + built
                + " graphs built, " + planned + " planned and run");
        assertTrue(taken > GRAPHS && refused > GRAPHS, "calls taken " + taken + ", refused " + refused);
        assertTrue(built > GRAPHS / 4, "built " + built);
        // A GPU has no engine for most graphs.
        assertTrue(planned > 0 || Provider.current() == Provider.CUDA, "planned " + planned);
    }

    private void draw(int number) {
        builder = OperationGraph.builder("mutated " + number);
        tensors.clear();
        names = 0;
        DType first = one(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16);
        tensors.add(builder.tensor("x", first, 2, 3, 4));
        tensors.add(builder.tensor("w", first, 1, 4, 3));
        tensors.add(builder.tensor("image", first, 1, 4, 5, 3));
        int calls = 3 + random.nextInt(6);
        for (int i = 0; i < calls; i++) {
            call();
        }
        List.copyOf(tensors).forEach(this::finish);
        OperationGraph[] graph = new OperationGraph[1];
        tried(() -> graph[0] = builder.build());
        if (graph[0] != null) {
            built++;
            if (built % PLANNED == 0) {
                run(graph[0]);
            }
        }
    }

    /** Reads an input, and gives a result memory: a graph has no tensor that nothing needs. */
    private void finish(GraphTensor tensor) {
        tried(() -> {
            if (!tensor.isVirtual()) {
                builder.output(builder.pointwise("read " + tensor.name(), PointwiseMode.IDENTITY, tensor));
            } else if (mutated()) {
                builder.output(tensor, type());
            } else {
                builder.output(tensor);
            }
        });
    }

    /** Counts a call, and checks what refuses it. */
    private void tried(Runnable call) {
        try {
            call.run();
            taken++;
        } catch (IllegalArgumentException | NullPointerException | IllegalStateException typed) {
            String text = String.valueOf(typed.getMessage());
            assertTrue(
                    typed instanceof IllegalStateException || (text.contains("expected") && text.contains("got")),
                    typed.toString());
            refused++;
        }
    }

    private void run(OperationGraph graph) {
        if (graph.tensors().stream()
                .anyMatch(tensor -> tensor.span() > MOST_ELEMENTS || tensor.count() > MOST_ELEMENTS)) {
            return;
        }
        try (ExecutionPlan plan = graph.plan(open.device())) {
            VariantPack pack = plan.variantPack();
            for (GraphTensor tensor : graph.bound()) {
                pack.set(tensor, open.scope().tensor(tensor.type().dtype(), tensor.span()));
            }
            plan.run(open.stream(), pack);
            assertTrue(plan.explain().contains(graph.name()));
            planned++;
        } catch (UnsupportedGraphException | CudnnException typed) {
            assertTrue(String.valueOf(typed.getMessage()).length() > 10, typed.toString());
        }
        open.stream().synchronize();
        open.scope().restart();
    }

    private void call() {
        tried(() -> {
            GraphTensor made = made();
            if (made != null) {
                tensors.add(made);
            }
        });
    }

    private @Nullable GraphTensor made() {
        String name = random.nextInt(30) == 0 ? "x" : "t" + names++;
        return switch (random.nextInt(20)) {
            case 0 -> builder.tensor(name, type(), dims(2, 3, 4));
            case 1 -> builder.tensor(name, type(), dims(2, 3, 4), dims(12, 4, 1));
            case 2 -> builder.scalar(name, integer(3), real(0.5f));
            case 3, 4 -> builder.pointwise(name, one(PointwiseMode.values()), config(), some(1 + random.nextInt(3)));
            case 5 -> {
                PointwiseMode mode = one(PointwiseMode.values());
                yield builder.pointwise(name, mode, some(mode.inputs()));
            }
            case 6 -> builder.matmul(name, some(), some());
            case 7 -> builder.reduction(name, one(ReductionMode.values()), some(), integers(random.nextInt(3)));
            case 8 -> builder.reshape(name, some(), dims(4, 6));
            case 9 -> builder.transpose(name, some(), integers(0, 2, 1));
            case 10 -> builder.concatenate(name, integer(1), some(2));
            case 11 -> builder.convolution(name, some(), some(), convolution());
            case 12 -> builder.convolutionBackwardData(name, some(), some(), convolution(), dims(1, 4, 5, 3));
            case 13 -> builder.convolutionBackwardFilter(name, some(), some(), convolution(), dims(2, 4, 3, 3));
            case 14 -> norm(name);
            case 15 -> builder.softmax(name, some(), integer(2));
            case 16 -> builder.causalMask(name, some(), integer(1), integer(2), real(-1e9f));
            case 17 -> builder.rng(name, new RngDistribution.Bernoulli(real(0.5f)), some(), some(), dims(2, 3, 4));
            case 18 -> attention(name);
            default -> {
                builder.computeType(type());
                yield null;
            }
        };
    }

    private GraphTensor norm(String name) {
        NormMode mode = one(NormMode.values());
        GraphTensor bias = random.nextInt(2) == 0 ? null : some();
        return random.nextInt(2) == 0
                ? builder.normInference(name, mode, some(), some(), bias, real(1e-5f))
                : builder.normTraining(name, mode, some(), some(), bias, real(1e-5f))
                        .y();
    }

    private GraphTensor attention(String name) {
        GraphTensor q = kept(builder.tensor(name + ".q", type(), dims(1, 2, 4, 8)));
        GraphTensor k = kept(builder.tensor(name + ".k", type(), dims(1, 2, 8, 4)));
        GraphTensor v = kept(builder.tensor(name + ".v", type(), dims(1, 2, 4, 8)));
        AttentionBuilder attention = builder.attention(name, q, k).scale(real(0.5f));
        if (random.nextInt(2) == 0) {
            attention.window(number(2), number(0), one(AttentionBuilder.Diagonal.values()));
        }
        if (random.nextInt(4) == 0) {
            attention.bias(some());
        }
        return attention.forward(v).o();
    }

    private GraphTensor kept(GraphTensor tensor) {
        tensors.add(tensor);
        return tensor;
    }

    private PointwiseConfig config() {
        return PointwiseConfig.DEFAULT.withAxis(integer(1)).withFactors(real(1), real(1));
    }

    private ConvolutionConfig convolution() {
        return ConvolutionConfig.of(integer(2));
    }

    private GraphTensor some() {
        return random.nextInt(60) == 0 ? foreign : tensors.get(random.nextInt(tensors.size()));
    }

    private GraphTensor[] some(int count) {
        GraphTensor[] some = new GraphTensor[Math.max(0, mutated() ? random.nextInt(5) : count)];
        GraphTensor alike = some();
        Arrays.setAll(some, i -> random.nextInt(3) == 0 ? some() : alike);
        return some;
    }

    private DataType type() {
        return random.nextInt(3) > 0 ? DataType.FLOAT : one(DataType.values());
    }

    private boolean mutated() {
        return random.nextInt(12) == 0;
    }

    private long number(long usual) {
        return mutated() ? EXTREMES[random.nextInt(EXTREMES.length)] : usual;
    }

    private int integer(int usual) {
        return (int) number(usual);
    }

    private int[] integers(int... usual) {
        return Arrays.stream(usual).map(this::integer).toArray();
    }

    private float real(float usual) {
        return mutated() ? one(Float.NaN, Float.POSITIVE_INFINITY, 0f, -1f, Float.MAX_VALUE, Float.MIN_VALUE) : usual;
    }

    private long[] dims(long... usual) {
        long[] changed = Arrays.stream(usual).map(this::number).toArray();
        return mutated() ? Arrays.copyOf(changed, random.nextInt(10)) : changed;
    }

    @SafeVarargs
    private <T> T one(T... values) {
        return values[random.nextInt(values.length)];
    }
}
