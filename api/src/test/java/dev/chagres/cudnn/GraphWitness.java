package dev.chagres.cudnn;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.bindings.Provider;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerance;
import dev.chagres.witness.Float8Witness;
import dev.chagres.witness.Rounding;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import java.util.function.DoubleBinaryOperator;
import java.util.function.DoubleUnaryOperator;

/** Builds a graph and computes each of its tensors in double precision beside it; then the plan's results are compared with those. */
final class GraphWitness {
    final GraphBuilder builder;
    private final OpenDevice open;
    private final Map<GraphTensor, double[]> values = new HashMap<>();
    private final Map<GraphTensor, Tensor> memory = new LinkedHashMap<>();
    /** Of packed tensors: where sequences begin, and the last one ends. */
    private final Map<GraphTensor, long[]> begins = new HashMap<>();

    GraphWitness(OpenDevice open, String name) {
        this.open = open;
        builder = OperationGraph.builder(name);
    }

    double[] of(GraphTensor tensor) {
        return values.get(tensor);
    }

    /** Says what a tensor of the graph must be, in row-major order. */
    GraphTensor put(GraphTensor tensor, double[] expected) {
        values.put(tensor, expected);
        return tensor;
    }

    GraphTensor normal(String name, DType dtype, long... dims) {
        return input(name, dtype, open.normal(dtype, (int) count(dims), 1), dims);
    }

    GraphTensor input(String name, DType dtype, double[] elements, long... dims) {
        return input(builder.tensor(name, dtype, dims), elements);
    }

    /** Binds memory with {@code elements}, which are in row-major order, wherever the strides put them. */
    GraphTensor input(GraphTensor tensor, double... elements) {
        double[] placed = new double[(int) tensor.span()];
        Arrays.fill(placed, 777);
        long[] dims = tensor.dims();
        for (int i = 0; i < elements.length; i++) {
            int place = (int) place(tensor, index(dims, i));
            if (place >= 0) {
                placed[place] = elements[i];
            }
        }
        DType dtype = tensor.type().dtype();
        Tensor bound = open.scope().tensor(dtype, placed.length);
        if (dtype.isFloat()) {
            open.set(bound, placed);
        } else if (dtype == DType.INT32) {
            bound.set(
                    open.stream(),
                    Arrays.stream(placed).mapToInt(value -> (int) value).toArray());
        } else if (dtype == DType.INT64) {
            bound.set(
                    open.stream(),
                    Arrays.stream(placed).mapToLong(value -> (long) value).toArray());
        } else {
            byte[] bytes = new byte[placed.length];
            for (int i = 0; i < bytes.length; i++) {
                bytes[i] = (byte) placed[i];
            }
            bound.set(open.stream(), bytes);
        }
        memory.put(tensor, bound);
        return put(tensor, elements.clone());
    }

    /** The offsets of sequences of so many tokens, each of {@code width} elements. */
    GraphTensor offsets(String name, int width, int... lengths) {
        double[] first = new double[lengths.length + 1];
        for (int b = 0; b < lengths.length; b++) {
            first[b + 1] = first[b] + (double) lengths[b] * width;
        }
        return input(builder.tensor(name, DType.INT32, first.length, 1, 1, 1), first);
    }

    /** Notes where the sequences of a packed tensor lie. */
    GraphTensor packed(GraphTensor tensor, GraphTensor offsets) {
        begins.put(
                tensor,
                Arrays.stream(of(offsets)).mapToLong(value -> (long) value).toArray());
        return tensor;
    }

    /** Returns the element of memory at an index; -1 where a packed tensor has none. */
    private long place(GraphTensor tensor, long... at) {
        long[] first = begins.get(tensor);
        if (first == null) {
            return offset(at, tensor.strides());
        }
        int b = (int) at[0];
        long[] within = at.clone();
        within[0] = 0;
        long offset = offset(within, tensor.strides());
        return offset < first[b + 1] - first[b] ? first[b] + offset : -1;
    }

    /** Binds FP8 numbers, each of which the type has. */
    GraphTensor float8(GraphTensor tensor, double... elements) {
        DType dtype = tensor.type().dtype();
        Map<Double, Byte> bits = new HashMap<>();
        for (int b = -128; b < 128; b++) {
            bits.put(Float8Witness.value((byte) b, dtype), (byte) b);
        }
        input(tensor, Arrays.stream(elements).map(value -> bits.get(value)).toArray());
        return put(tensor, elements.clone());
    }

    /** Returns what FP8 numbers that a run wrote stand for. */
    double[] readFloat8(GraphTensor tensor) {
        float[] bits = read(tensor);
        double[] numbers = new double[bits.length];
        for (int i = 0; i < bits.length; i++) {
            numbers[i] = Float8Witness.value((byte) bits[i], tensor.type().dtype());
        }
        return numbers;
    }

    GraphTensor scalar(String name, int rank, float value) {
        return put(builder.scalar(name, rank, value), new double[] {value});
    }

    GraphTensor unary(String name, PointwiseMode mode, PointwiseConfig config, GraphTensor x, DoubleUnaryOperator f) {
        GraphTensor y = builder.pointwise(name, mode, config, x);
        return put(y, Arrays.stream(of(x)).map(f).toArray());
    }

    GraphTensor unary(String name, PointwiseMode mode, GraphTensor x, DoubleUnaryOperator f) {
        return unary(name, mode, PointwiseConfig.DEFAULT, x, f);
    }

    GraphTensor binary(
            String name,
            PointwiseMode mode,
            PointwiseConfig config,
            GraphTensor x,
            GraphTensor b,
            DoubleBinaryOperator f) {
        GraphTensor y = builder.pointwise(name, mode, config, x, b);
        long[] dims = y.dims();
        double[] expected = new double[(int) y.count()];
        for (int i = 0; i < expected.length; i++) {
            long[] at = index(dims, i);
            expected[i] = f.applyAsDouble(broadcast(x, at), broadcast(b, at));
        }
        return put(y, expected);
    }

    GraphTensor binary(String name, PointwiseMode mode, GraphTensor x, GraphTensor b, DoubleBinaryOperator f) {
        return binary(name, mode, PointwiseConfig.DEFAULT, x, b, f);
    }

    GraphTensor matmul(String name, GraphTensor a, GraphTensor b) {
        GraphTensor c = builder.matmul(name, a, b);
        long[] dims = c.dims();
        int rank = dims.length;
        double[] expected = new double[(int) c.count()];
        for (int i = 0; i < expected.length; i++) {
            long[] at = index(dims, i);
            long column = at[rank - 1];
            long row = at[rank - 2];
            for (long k = 0; k < a.dims()[rank - 1]; k++) {
                at[rank - 2] = row;
                at[rank - 1] = k;
                double left = broadcast(a, at);
                at[rank - 2] = k;
                at[rank - 1] = column;
                expected[i] += left * broadcast(b, at);
            }
        }
        return put(c, expected);
    }

    GraphTensor reduction(String name, ReductionMode mode, GraphTensor x, int... axes) {
        GraphTensor y = builder.reduction(name, mode, x, axes);
        double[] expected = new double[(int) y.count()];
        double[] counts = new double[expected.length];
        double first = switch (mode) {
            case MUL, MUL_NO_ZEROS -> 1;
            case MIN -> Double.POSITIVE_INFINITY;
            case MAX -> Double.NEGATIVE_INFINITY;
            default -> 0;
        };
        Arrays.fill(expected, first);
        double[] from = of(x);
        for (int i = 0; i < from.length; i++) {
            int to = (int) offset(index(x.dims(), i), strides(y.dims()));
            counts[to]++;
            expected[to] = switch (mode) {
                case ADD, AVG -> expected[to] + from[i];
                case MUL -> expected[to] * from[i];
                case MUL_NO_ZEROS -> from[i] == 0 ? expected[to] : expected[to] * from[i];
                case MIN -> Math.min(expected[to], from[i]);
                case MAX -> Math.max(expected[to], from[i]);
                case AMAX -> Math.max(expected[to], Math.abs(from[i]));
                case NORM1 -> expected[to] + Math.abs(from[i]);
                case NORM2 -> expected[to] + from[i] * from[i];
            };
        }
        for (int i = 0; i < expected.length; i++) {
            expected[i] = switch (mode) {
                case AVG -> expected[i] / counts[i];
                case NORM2 -> Math.sqrt(expected[i]);
                default -> expected[i];
            };
        }
        return put(y, expected);
    }

    GraphTensor reshape(String name, GraphTensor x, long... dims) {
        return put(builder.reshape(name, x, dims), of(x));
    }

    GraphTensor transpose(String name, GraphTensor x, int... permutation) {
        GraphTensor y = builder.transpose(name, x, permutation);
        double[] expected = new double[(int) y.count()];
        for (int i = 0; i < expected.length; i++) {
            long[] to = index(y.dims(), i);
            long[] from = new long[to.length];
            for (int d = 0; d < to.length; d++) {
                from[permutation[d]] = to[d];
            }
            expected[i] = broadcast(x, from);
        }
        return put(y, expected);
    }

    GraphTensor concatenate(String name, int axis, GraphTensor... inputs) {
        GraphTensor y = builder.concatenate(name, axis, inputs);
        double[] expected = new double[(int) y.count()];
        for (int i = 0; i < expected.length; i++) {
            long[] at = index(y.dims(), i);
            int input = 0;
            while (at[axis] >= inputs[input].dims()[axis]) {
                at[axis] -= inputs[input++].dims()[axis];
            }
            expected[i] = broadcast(inputs[input], at);
        }
        return put(y, expected);
    }

    GraphTensor softmax(String name, GraphTensor x, int axis) {
        return put(builder.softmax(name, x, axis), softmax(x.dims(), of(x), axis));
    }

    static double[] softmax(long[] dims, double[] x, int axis) {
        double[] expected = new double[x.length];
        for (int i = 0; i < x.length; i++) {
            long[] at = index(dims, i);
            double sum = 0;
            for (long j = 0; j < dims[axis]; j++) {
                at[axis] = j;
                sum += Math.exp(x[(int) offset(at, rowMajor(dims))] - x[i]);
            }
            expected[i] = 1 / sum;
        }
        return expected;
    }

    /** Plans and runs the graph, and compares its outputs. Returns whether cuDNN has an engine for it; the reference must have. */
    boolean check(Tolerance tolerance) {
        return check(0.1, tolerance);
    }

    boolean check(double magnitude, Tolerance tolerance) {
        OperationGraph graph = builder.build();
        Optional<ExecutionPlan> planned = plan(graph);
        if (planned.isEmpty()) {
            return false;
        }
        try (ExecutionPlan plan = planned.get()) {
            VariantPack pack = plan.variantPack();
            graph.inputs().forEach(input -> pack.set(input, memory.get(input)));
            for (GraphTensor output : graph.outputs()) {
                Tensor tensor = open.scope().tensor(output.type().dtype(), output.span());
                tensor.zero(open.stream());
                memory.put(output, tensor);
                pack.set(output, tensor);
            }
            plan.run(open.stream(), pack);
            for (GraphTensor output : graph.outputs()) {
                double[] expected = of(output);
                if (expected != null) {
                    open.assertClose(graph + ": " + output.name(), expected, read(output), magnitude, tolerance);
                }
            }
            return true;
        } catch (RuntimeException failure) {
            throw new AssertionError(graph.toString(), failure);
        }
    }

    /** Plans a graph; empty where NVIDIA's cuDNN has no engine for it, which is printed. */
    private Optional<ExecutionPlan> plan(OperationGraph graph) {
        try {
            return Optional.of(graph.plan(open.device()));
        } catch (UnsupportedGraphException | dev.chagres.bindings.CudnnException refused) {
            if (Provider.current() == Provider.REFERENCE) {
                throw refused;
            }
            System.out.println("not supported: " + graph + "\n  " + refused.getMessage());
            return Optional.empty();
        }
    }

    /** Returns what a run wrote, in row-major order. */
    float[] read(GraphTensor tensor) {
        Tensor from = memory.get(tensor);
        float[] placed = switch (tensor.type()) {
            case INT32 -> floats(from.toInts(open.stream()));
            case FLOAT, HALF, BFLOAT16 -> from.toFloats(open.stream());
            default -> floats(from.toBytes(open.stream()));
        };
        float[] elements = new float[(int) tensor.count()];
        for (int i = 0; i < elements.length; i++) {
            int place = (int) place(tensor, index(tensor.dims(), i));
            elements[i] = place < 0 ? 0 : placed[place];
        }
        return elements;
    }

    private static float[] floats(int... from) {
        float[] floats = new float[from.length];
        for (int i = 0; i < from.length; i++) {
            floats[i] = from[i];
        }
        return floats;
    }

    private static float[] floats(byte... from) {
        float[] floats = new float[from.length];
        for (int i = 0; i < from.length; i++) {
            floats[i] = from[i];
        }
        return floats;
    }

    /** Rounds what is expected of a tensor: for one whose type is not FLOAT and that others read. */
    GraphTensor rounded(GraphTensor tensor, DType dtype) {
        return put(tensor, Rounding.round(of(tensor).clone(), dtype));
    }

    double broadcast(GraphTensor tensor, long... at) {
        return of(tensor)[(int) offset(at, strides(tensor.dims()))];
    }

    static long count(long... dims) {
        return Arrays.stream(dims).reduce(1, (a, b) -> a * b);
    }

    static long[] index(long[] dims, long position) {
        long[] at = new long[dims.length];
        long rest = position;
        for (int d = dims.length - 1; d >= 0; d--) {
            at[d] = rest % dims[d];
            rest /= dims[d];
        }
        return at;
    }

    static long offset(long[] at, long[] strides) {
        long offset = 0;
        for (int d = 0; d < at.length; d++) {
            offset += at[d] * strides[d];
        }
        return offset;
    }

    static long[] rowMajor(long... dims) {
        long[] strides = new long[dims.length];
        long stride = 1;
        for (int d = dims.length - 1; d >= 0; d--) {
            strides[d] = stride;
            stride *= dims[d];
        }
        return strides;
    }

    /** Row-major strides, 0 where there is one element. */
    private static long[] strides(long... dims) {
        long[] strides = rowMajor(dims);
        for (int d = 0; d < dims.length; d++) {
            strides[d] = dims[d] == 1 ? 0 : strides[d];
        }
        return strides;
    }
}
