package dev.chagres.cudnn;

import dev.chagres.DType;
import dev.chagres.bindings.ForeignText;
import dev.chagres.internal.Checks;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Objects;
import java.util.Set;
import java.util.function.Supplier;
import java.util.function.UnaryOperator;
import org.jspecify.annotations.Nullable;

/**
 * Takes the tensors and operations of a graph, one after the other, and infers what each operation gives.
 *
 * <p>Results are virtual, of type FLOAT and without gaps, until {@link #output} names them. Each tensor and each operation has a name of
 * its own; a result has its operation's. Arithmetic is FP32 unless {@link #computeType} says otherwise. A refusal names the operation, the
 * argument, what was expected, and what came.
 *
 * {@snippet file="dev/chagres/cudnn/GraphExamplesTest.java" region="graph"}
 *
 * <p>The class is long because every operation has its method here, and little else.
 *
 * <p>Threading: one thread at a time.
 *
 * <p>Source: operations of {@code cudnn_graph.h}.
 */
public final class GraphBuilder {
    private final String name;
    private final List<GraphTensor> tensors = new ArrayList<>();
    private final List<Operation> operations = new ArrayList<>();
    private final Set<String> names = new HashSet<>();
    private final Set<GraphTensor> mayStayUnread = new HashSet<>();
    private DataType compute = DataType.FLOAT;
    private DataType intermediate = DataType.FLOAT;
    private boolean built;

    GraphBuilder(String name) {
        this.name = Checks.given("name", name);
    }

    /**
     * Sets the arithmetic of operations that are added from now on; at first {@link DataType#FLOAT}.
     *
     * @throws IllegalStateException after {@link #build}
     */
    public GraphBuilder computeType(DataType type) {
        ensureOpen();
        compute = Checks.given("type", type);
        return this;
    }

    /**
     * Sets the type of results that are added from now on; at first {@link DataType#FLOAT}. Comparisons give {@link DataType#BOOLEAN}, indices
     * {@link DataType#INT32}.
     *
     * @throws IllegalStateException after {@link #build}
     */
    public GraphBuilder intermediateType(DataType type) {
        ensureOpen();
        intermediate = Checks.given("type", type);
        return this;
    }

    /**
     * Adds a tensor whose elements lie without gaps, the last dimension fastest.
     *
     * @throws IllegalArgumentException when the name is taken, cuDNN's graphs lack the type, or a size is below 1
     */
    public GraphTensor tensor(String tensorName, DType dtype, long... dims) {
        return tensor(tensorName, DataType.of(dtype), dims);
    }

    /** Adds a tensor of cuDNN's type, such as a mask of {@link DataType#BOOLEAN}; else as {@link #tensor(String, DType, long...)}. */
    public GraphTensor tensor(String tensorName, DataType type, long... dims) {
        GraphChecks.checkDims("tensor", tensorName, dims);
        return tensor(tensorName, type, dims, GraphTensor.rowMajor(dims));
    }

    /**
     * Adds a tensor with strides, in elements: of a transposed matrix, or of channels that lie innermost.
     *
     * @throws IllegalArgumentException when the name is taken, cuDNN's graphs lack the type, a size or stride is below 1, or there are not
     *     as many strides as sizes
     */
    public GraphTensor tensor(String tensorName, DType dtype, long[] dims, long[] strides) {
        return tensor(tensorName, DataType.of(dtype), dims, strides);
    }

    /** Adds a tensor of cuDNN's type with strides; else as {@link #tensor(String, DType, long[], long[])}. */
    public GraphTensor tensor(String tensorName, DataType type, long[] dims, long[] strides) {
        GraphChecks.checkDims("tensor", tensorName, dims);
        GraphChecks.checkStrides("tensor", tensorName, dims, strides);
        Checks.given("type", type);
        claim("tensor", tensorName);
        return keep(GraphTensor.real(this, tensors.size() + 1L, tensorName, type, dims.clone(), strides.clone()));
    }

    /**
     * Adds a tensor [B, H, S, D], or with its last two dimensions swapped, of sequences that lie one behind the other. Sequence b begins at element
     * {@code offsets[b]} and ends before {@code offsets[b + 1]}; of [tokens, H, D] that is {@code cu_seqlens[b] * H * D}. What lies beyond is neither
     * read, nor written.
     *
     * @param strides within a sequence, in elements; the first is at least what the longest sequence spans
     * @param offsets INT32 or INT64[B + 1, 1, 1, 1], ascending from 0; a GPU does not check them
     * @param elements of memory, of all sequences
     * @throws IllegalArgumentException when the name is taken, or sizes, strides, offsets or elements do not fit
     */
    public GraphTensor packed(
            String tensorName, DType dtype, long[] dims, long[] strides, GraphTensor offsets, long elements) {
        GraphChecks.packed(this, "packed", Checks.given("tensorName", tensorName), dims, strides, offsets, elements);
        GraphTensor tensor = tensor(tensorName, dtype, dims, strides);
        tensor.pack(offsets, elements);
        return tensor;
    }

    /**
     * Adds a number, in the shape [1, …] of {@code rank} dimensions, for pointwise operations.
     *
     * @throws IllegalArgumentException when the name is taken, the rank is not 1 to 8, or the number is NaN
     */
    public GraphTensor scalar(String tensorName, int rank, float value) {
        return scalar(tensorName, DataType.FLOAT, rank, value);
    }

    /**
     * The same for a number of {@link DataType#FLOAT} or {@link DataType#INT32}, to which it is rounded.
     *
     * @throws IllegalArgumentException when the name is taken, the type is another, the rank is not 1 to 8, or the number is NaN or, for
     *     INT32, none of its numbers
     */
    public GraphTensor scalar(String tensorName, DataType type, int rank, double value) {
        if (type != DataType.FLOAT && type != DataType.INT32) {
            throw GraphChecks.refusal("scalar", tensorName, "type", "FLOAT or INT32", type);
        }
        if (rank < 1 || rank > GraphTensor.MAX_RANK) {
            throw GraphChecks.refusal("scalar", tensorName, "rank", "1 to " + GraphTensor.MAX_RANK, rank);
        }
        if (Double.isNaN(value)) {
            throw GraphChecks.refusal("scalar", tensorName, "value", "a number", value);
        }
        if (type == DataType.INT32 && value != (int) value) {
            throw GraphChecks.refusal("scalar", tensorName, "value", "an INT32", value);
        }
        claim("scalar", tensorName);
        return keep(GraphTensor.scalar(this, tensors.size() + 1L, tensorName, type, rank, value));
    }

    /**
     * Adds the product c[…, M, N] = a[…, M, K] b[…, K, N]; leading dimensions are alike or 1. Of a[B, H, M, K] the heads of b may also divide H:
     * each belongs to neighbours.
     *
     * @throws IllegalArgumentException when the shapes do not fit
     */
    public GraphTensor matmul(String operation, GraphTensor a, GraphTensor b) {
        return Products.matmul(this, operation, a, b, MatmulLimits.NONE);
    }

    /**
     * Adds {@link #matmul(String, GraphTensor, GraphTensor)} of the first rows, columns and products of each matrix; the rest of c is 0.
     *
     * @throws IllegalArgumentException when the shapes do not fit
     */
    public GraphTensor matmul(String operation, GraphTensor a, GraphTensor b, MatmulLimits limits) {
        return Products.matmul(this, operation, a, b, limits);
    }

    /**
     * Adds y[1, T, N], whose rows are those of tokens[1, T, K] times the weights[E, K, N] of their expert. Expert e has the tokens from
     * {@code firstToken[e]} on, up to those of the next.
     *
     * @param firstToken INT32[E, 1, 1], ascending
     * @throws IllegalArgumentException when the shapes do not fit
     */
    public GraphTensor groupedMatmul(
            String operation, GraphTensor tokens, GraphTensor weights, GraphTensor firstToken) {
        return Products.grouped(this, operation, tokens, weights, firstToken, null);
    }

    /**
     * Adds {@link #groupedMatmul(String, GraphTensor, GraphTensor, GraphTensor)} of the tokens that {@code index} names: row r is of token
     * {@code index[r]}.
     *
     * @param index INT32[1, R, 1]
     * @throws IllegalArgumentException when the shapes do not fit
     */
    public GraphTensor groupedMatmul(
            String operation, GraphTensor tokens, GraphTensor weights, GraphTensor firstToken, GraphTensor index) {
        return Products.grouped(
                this, operation, tokens, weights, firstToken, own("groupedMatmul", operation, "index", index));
    }

    /**
     * Adds {@code mode} of the inputs, whose sizes are alike or 1.
     *
     * @throws IllegalArgumentException when there are not {@link PointwiseMode#inputs} of them, or the sizes do not fit
     */
    public GraphTensor pointwise(String operation, PointwiseMode mode, GraphTensor... inputs) {
        return pointwise(operation, mode, PointwiseConfig.DEFAULT, inputs);
    }

    /**
     * The same with numbers of the formula. Inputs are x, b, t of forward modes, dy and x of backward ones.
     *
     * @throws IllegalArgumentException when there are not {@link PointwiseMode#inputs} of them, the sizes do not fit, or the axis is none
     */
    public GraphTensor pointwise(String operation, PointwiseMode mode, PointwiseConfig config, GraphTensor... inputs) {
        return Pointwises.pointwise(this, operation, mode, config, inputs);
    }

    /**
     * Adds a reduction over {@code axes}, which have the size 1 in the result.
     *
     * @throws IllegalArgumentException when an axis is none of x, or there is none
     */
    public GraphTensor reduction(String operation, ReductionMode mode, GraphTensor x, int... axes) {
        return Pointwises.reduction(this, operation, mode, x, axes);
    }

    /**
     * Adds the elements of x, which lie without gaps, in other sizes.
     *
     * @throws IllegalArgumentException when x has gaps or another order, or the sizes have another number of elements
     */
    public GraphTensor reshape(String operation, GraphTensor x, long... dims) {
        return Layouts.reshape(this, operation, x, dims);
    }

    /**
     * Adds x with its dimensions in another order: dimension i of the result is {@code permutation[i]} of x. Nothing moves, the strides change.
     *
     * @throws IllegalArgumentException when the permutation lacks a dimension
     */
    public GraphTensor transpose(String operation, GraphTensor x, int... permutation) {
        return Layouts.transpose(this, operation, x, permutation);
    }

    /**
     * Adds the inputs, which have one type, one behind the other along {@code axis}.
     *
     * @throws IllegalArgumentException when they do not fit, or the axis is none
     */
    public GraphTensor concatenate(String operation, int axis, GraphTensor... inputs) {
        return Layouts.concatenate(this, operation, axis, inputs);
    }

    /**
     * Adds the convolution y[N, K, …] of x[N, C, …] with filters w[K, C / groups, …].
     *
     * @throws IllegalArgumentException when the shapes do not fit
     */
    public GraphTensor convolution(String operation, GraphTensor x, GraphTensor w, ConvolutionConfig config) {
        return Windows.forward(this, operation, x, w, config);
    }

    /**
     * Adds the gradient of a convolution's x, which has the sizes {@code dims}.
     *
     * @throws IllegalArgumentException when the shapes do not fit
     */
    public GraphTensor convolutionBackwardData(
            String operation, GraphTensor dy, GraphTensor w, ConvolutionConfig config, long... dims) {
        return Windows.backwardData(this, operation, dy, w, config, dims);
    }

    /**
     * Adds the gradient of a convolution's filters, which have the sizes {@code dims}.
     *
     * @throws IllegalArgumentException when the shapes do not fit
     */
    public GraphTensor convolutionBackwardFilter(
            String operation, GraphTensor dy, GraphTensor x, ConvolutionConfig config, long... dims) {
        return Windows.backwardFilter(this, operation, dy, x, config, dims);
    }

    /**
     * Adds the windows of x[N, C, …].
     *
     * @throws IllegalArgumentException when no window fits into x
     */
    public GraphTensor resample(String operation, GraphTensor x, ResampleConfig config) {
        return Windows.resample(this, operation, x, config);
    }

    /**
     * Adds the gradient of {@link #resample} for averages; dx has the sizes {@code dims}.
     *
     * @throws IllegalArgumentException when the shapes do not fit
     */
    public GraphTensor resampleBackward(String operation, GraphTensor dy, ResampleConfig config, long... dims) {
        return Windows.resampleBackward(this, operation, dy, null, null, config, dims);
    }

    /**
     * Adds the gradient of {@link #resample} for maxima, which are found by x and y.
     *
     * @throws IllegalArgumentException when the shapes do not fit
     */
    public GraphTensor resampleBackward(
            String operation, GraphTensor dy, GraphTensor x, GraphTensor y, ResampleConfig config) {
        Checks.given("y", y);
        return Windows.resampleBackward(
                this, operation, dy, own("resampleBackward", operation, "x", x), y, config, x.dims());
    }

    /**
     * Adds the norm scale (x - mean) / sqrt(variance + epsilon) + bias with what its gradient needs.
     *
     * @param scale [1, C, 1, …] of instance and batch norm; [1, …] with the sizes over which layer and RMS norm go, else 1
     * @param bias like scale, or null for none
     * @throws IllegalArgumentException when the shapes do not fit, or epsilon is not positive
     */
    public NormTraining normTraining(
            String operation,
            NormMode mode,
            GraphTensor x,
            GraphTensor scale,
            @Nullable GraphTensor bias,
            float epsilon) {
        return Norms.training(this, operation, mode, x, scale, bias, epsilon);
    }

    /**
     * Adds layer or RMS norm alone; else as {@link #normTraining}.
     *
     * @throws IllegalArgumentException when the shapes do not fit, epsilon is not positive, or the mode is another
     */
    public GraphTensor normInference(
            String operation,
            NormMode mode,
            GraphTensor x,
            GraphTensor scale,
            @Nullable GraphTensor bias,
            float epsilon) {
        return Norms.inference(this, operation, mode, x, scale, bias, epsilon);
    }

    /**
     * Adds the gradients of {@link #normTraining}.
     *
     * @param saved mean and inverse variance of the forward pass, results or tensors of this graph; y is not read
     * @throws IllegalArgumentException when the shapes do not fit
     */
    public NormGradients normBackward(
            String operation, NormMode mode, GraphTensor dy, GraphTensor x, NormTraining saved, GraphTensor scale) {
        return Norms.backward(this, operation, mode, dy, x, saved, scale);
    }

    /** Returns what adds the parts of batch norm that cuDNN fuses with convolutions to this graph. */
    public Statistics statistics() {
        ensureOpen();
        return new Statistics(this);
    }

    /** Returns what adds tensors whose blocks have a scale each to this graph. */
    public BlockScales blockScales() {
        ensureOpen();
        return new BlockScales(this);
    }

    /**
     * Adds random numbers, which follow from seed, offset and place. The reference and each engine draw others.
     *
     * @param seed one INT32 or INT64
     * @param offset one INT32 or INT64
     * @throws IllegalArgumentException when seed or offset do not fit
     */
    public GraphTensor rng(
            String operation, RngDistribution distribution, GraphTensor seed, GraphTensor offset, long... dims) {
        return Randoms.rng(this, operation, distribution, seed, offset, dims);
    }

    /**
     * Adds exp(x - max) / sum exp(x - max) along {@code axis}, as five operations whose names begin with {@code operation}.
     *
     * @throws IllegalArgumentException when the axis is none of x
     */
    public GraphTensor softmax(String operation, GraphTensor x, int axis) {
        return Compositions.softmax(this, operation, x, axis);
    }

    /**
     * Adds x where the index along {@code rows} is at least that along {@code columns}, else {@code masked}: for scores of queries and keys, those of
     * keys that a causal model sees. Four operations, whose names begin with {@code operation}.
     *
     * @throws IllegalArgumentException when an axis is none of x, or {@code masked} is NaN
     */
    public GraphTensor causalMask(String operation, GraphTensor x, int rows, int columns, float masked) {
        return Compositions.causalMask(this, operation, x, rows, columns, masked);
    }

    /**
     * Begins scaled-dot-product attention, softmax(scale q kT + …) v, of which masks and the like are set by name.
     *
     * @param operation the names of its operations begin so
     * @param q queries [B, H, Sq, D]
     * @param kT keys [B, H, D, Skv]: sizes and strides of the keys with their last two swapped
     * @throws IllegalArgumentException when the shapes do not fit
     */
    public AttentionBuilder attention(String operation, GraphTensor q, GraphTensor kT) {
        return new AttentionBuilder(this, operation, q, kT);
    }

    /**
     * Adds attention as one operation of cuDNN's, O = softmax(scale Q K&#7488;) V.
     *
     * @param q queries [B, H, Sq, D]
     * @param k keys [B, Hk, Skv, D]; Hk divides H
     * @param v values [B, Hv, Skv, Dv]; Hv divides H
     * @throws IllegalArgumentException when the shapes do not fit
     */
    public SdpaForward sdpa(String operation, GraphTensor q, GraphTensor k, GraphTensor v, SdpaConfig config) {
        return Sdpa.forward(this, operation, q, k, v, config);
    }

    /**
     * Adds the gradients of {@link #sdpa}.
     *
     * @param dy of o, with its sizes
     * @param saved what the forward pass gave, results or tensors of this graph
     * @throws IllegalArgumentException when the shapes do not fit, or the statistics are missing
     */
    public SdpaGradients sdpaBackward(
            String operation,
            GraphTensor dy,
            GraphTensor q,
            GraphTensor k,
            GraphTensor v,
            SdpaForward saved,
            SdpaConfig config) {
        return Sdpa.backward(this, operation, dy, q, k, v, saved, config);
    }

    /**
     * Adds keys that lie in pages, as [B, H, D, S] for {@link #attention}: token s of sequence b is row s % T of the block {@code pages[b, s / T]}.
     *
     * @param container blocks of tokens [N, H, T, D]
     * @param pages INT32[B, 1, ceil(S / T), 1]
     * @param lengths tokens of each sequence, INT32[B, 1, 1, 1]; what lies beyond is not defined on a GPU, 0 in the reference
     * @param tokens S
     * @throws IllegalArgumentException when the shapes do not fit
     */
    public GraphTensor pagedKeys(
            String operation, GraphTensor container, GraphTensor pages, GraphTensor lengths, long tokens) {
        return Layouts.paged(this, operation, container, pages, lengths, tokens, Layouts.Order.TRANSPOSED);
    }

    /** Adds values that lie in pages, as [B, H, S, D]; else as {@link #pagedKeys}. */
    public GraphTensor pagedValues(
            String operation, GraphTensor container, GraphTensor pages, GraphTensor lengths, long tokens) {
        return Layouts.paged(this, operation, container, pages, lengths, tokens, Layouts.Order.ROWS);
    }

    /**
     * Adds rotary embedding, [x1 cos - x2 sin, x2 cos + x1 sin], of the two halves of the last dimension, which are tensors of their own: views of
     * the one that has both.
     *
     * @param cos with sizes of a half or 1
     * @param sin with the sizes of cos
     * @throws IllegalArgumentException when the sizes do not fit
     */
    public GraphTensor rotary(String operation, GraphTensor x1, GraphTensor x2, GraphTensor cos, GraphTensor sin) {
        return Compositions.rotary(this, operation, x1, x2, cos, sin);
    }

    /**
     * Gives a result memory, so that the plan writes it; {@link #tensor tensors} have memory already.
     *
     * @throws IllegalArgumentException when it is no result of this graph
     */
    public GraphTensor output(GraphTensor result) {
        return output(result, own("output", name, "result", result).type());
    }

    /**
     * The same with elements of {@code type}, to which the result is rounded.
     *
     * @throws IllegalArgumentException when it is no result of this graph
     */
    public GraphTensor output(GraphTensor result, DataType type) {
        return output(result, type, own("output", name, "result", result).strides());
    }

    /**
     * The same with strides in elements.
     *
     * @throws IllegalArgumentException when it is no result of this graph, or the strides do not fit
     */
    public GraphTensor output(GraphTensor result, DataType type, long... strides) {
        own("output", name, "result", result);
        Checks.given("type", type);
        GraphChecks.checkStrides("output", result.name(), result.dims(), strides);
        if (operations.stream().noneMatch(operation -> operation.writes().contains(result))) {
            throw GraphChecks.refusal("output", name, "result", "the result of an operation", result);
        }
        result.makeReal(type, strides.clone());
        return result;
    }

    /**
     * Gives a result the memory of a {@link #packed} tensor.
     *
     * @throws IllegalArgumentException when it is no result of this graph, or strides, offsets or elements do not fit
     */
    public GraphTensor packedOutput(
            GraphTensor result, DataType type, long[] strides, GraphTensor offsets, long elements) {
        long[] dims = own("packedOutput", name, "result", result).dims();
        GraphChecks.packed(this, "packedOutput", result.name(), dims, strides, offsets, elements);
        output(result, type, strides).pack(offsets, elements);
        return result;
    }

    /**
     * Makes the graph; the builder takes nothing more.
     *
     * @throws IllegalArgumentException when there is no operation, or a result is neither read nor an output
     * @throws IllegalStateException when it was built already
     */
    public OperationGraph build() {
        ensureOpen();
        if (operations.isEmpty()) {
            throw new IllegalArgumentException("graph " + ForeignText.quoted(name) + ": expected operations, got none");
        }
        Set<GraphTensor> read = new HashSet<>(mayStayUnread);
        operations.forEach(operation -> read.addAll(operation.reads()));
        tensors.stream().map(GraphTensor::offsets).filter(Objects::nonNull).forEach(read::add);
        for (GraphTensor tensor : tensors) {
            boolean lost = tensor.isVirtual()
                    || operations.stream().noneMatch(o -> o.writes().contains(tensor));
            if (lost && !read.contains(tensor)) {
                throw new IllegalArgumentException("graph " + ForeignText.quoted(name)
                        + ": expected tensors that an operation reads or that are outputs, got " + tensor);
            }
        }
        built = true;
        return new OperationGraph(name, tensors, operations);
    }

    /** Lets the graph be built where nothing reads {@code result}, and returns it. */
    GraphTensor mayStayUnread(GraphTensor result) {
        mayStayUnread.add(result);
        return result;
    }

    private void ensureOpen() {
        if (built) {
            throw new IllegalStateException("graph " + ForeignText.quoted(name) + " is built, and takes nothing more");
        }
    }

    private GraphTensor keep(GraphTensor tensor) {
        tensors.add(tensor);
        return tensor;
    }

    private void claim(String kind, String wanted) {
        ensureOpen();
        Checks.given("name", wanted);
        if (wanted.isBlank() || !names.add(wanted)) {
            throw GraphChecks.refusal(
                    kind,
                    wanted,
                    "name",
                    "one that no other tensor or operation of the graph has",
                    ForeignText.quoted(wanted));
        }
    }

    DataType compute() {
        return compute;
    }

    /** Adds operations with other types of arithmetic and results, and then goes on with those that were. */
    GraphTensor typed(DataType arithmetic, DataType results, Supplier<GraphTensor> operations) {
        DataType computeBefore = compute;
        DataType intermediateBefore = intermediate;
        compute = arithmetic;
        intermediate = results;
        try {
            return operations.get();
        } finally {
            compute = computeBefore;
            intermediate = intermediateBefore;
        }
    }

    DataType intermediate() {
        return intermediate;
    }

    /** Checks that a tensor is one of this graph. */
    GraphTensor own(String kind, String operation, String argument, GraphTensor tensor) {
        ensureOpen();
        if (Checks.given(argument, tensor).builder() != this) {
            throw GraphChecks.refusal(kind, operation, argument, "a tensor of this graph", tensor + " of another");
        }
        return tensor;
    }

    /** Checks an operation's name and makes a result of that name. */
    GraphTensor result(String kind, String resultName, DataType type, long[] dims, long[] strides) {
        GraphChecks.checkDims(kind, resultName, dims);
        claim(kind, resultName);
        return keep(GraphTensor.result(this, tensors.size() + 1L, resultName, type, dims, strides));
    }

    /** Returns the tensor of that name, which is added where there is none. */
    GraphTensor declared(String tensorName, DataType type, long... dims) {
        return tensors.stream()
                .filter(tensor -> tensor.name().equals(tensorName))
                .findFirst()
                .orElseGet(() -> tensor(tensorName, type, dims));
    }

    /** Changes the operation that was added last. */
    void amend(UnaryOperator<Operation> change) {
        operations.add(change.apply(operations.removeLast()));
    }

    void add(Operation operation) {
        operations.add(operation);
    }
}
