package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.cudnn.AttentionBuilder;
import dev.chagres.cudnn.DataType;
import dev.chagres.cudnn.ExecutionPlan;
import dev.chagres.cudnn.GraphBuilder;
import dev.chagres.cudnn.GraphTensor;
import dev.chagres.cudnn.NormMode;
import dev.chagres.cudnn.OperationGraph;
import dev.chagres.cudnn.PointwiseMode;
import dev.chagres.cudnn.VariantPack;
import dev.chagres.jmh.states.BenchmarkDevice;
import dev.chagres.jmh.states.LayerShape;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.DotProductAttention;
import dev.chagres.ops.Attention;
import dev.chagres.ops.AttentionPlace;
import dev.chagres.ops.AttentionScores;
import dev.chagres.ops.Elementwise;
import dev.chagres.ops.MatrixProduct;
import dev.chagres.ops.ProductPlan;
import dev.chagres.pass.Pass;
import dev.chagres.te.AttentionProblem;
import dev.chagres.te.AttentionTensors;
import dev.chagres.te.FusedAttention;
import dev.chagres.te.Gemm;
import dev.chagres.te.MaskType;
import dev.chagres.te.QkvFormat;
import dev.chagres.te.QkvLayout;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.BenchmarkMode;
import org.openjdk.jmh.annotations.Fork;
import org.openjdk.jmh.annotations.Level;
import org.openjdk.jmh.annotations.Measurement;
import org.openjdk.jmh.annotations.Mode;
import org.openjdk.jmh.annotations.OperationsPerInvocation;
import org.openjdk.jmh.annotations.OutputTimeUnit;
import org.openjdk.jmh.annotations.Param;
import org.openjdk.jmh.annotations.Scope;
import org.openjdk.jmh.annotations.Setup;
import org.openjdk.jmh.annotations.State;
import org.openjdk.jmh.annotations.TearDown;
import org.openjdk.jmh.annotations.Warmup;

/**
 * What do graphs of cuDNN's cost in BFLOAT16, and three of them by other kernels: products with bias and residual or the exact GELU by two
 * calls, attention with capped scores by our own kernels, with its gradients, too?
 *
 * <p>Timed: {@link #device} until the device is done, and by {@code -prof chagres} the device's own time; {@link #enqueue} the host's calls alone.
 */
@NullUnmarked
@State(Scope.Thread)
@BenchmarkMode(Mode.AverageTime)
@OutputTimeUnit(TimeUnit.MICROSECONDS)
@Warmup(iterations = 3, time = 1)
@Measurement(iterations = 5, time = 1)
@Fork(value = 1, jvmArgsAppend = "--enable-native-access=ALL-UNNAMED")
public class CudnnGraphBenchmark {
    private static final int CALLS = 20;
    private static final float CAP = 30;

    /** What is computed. */
    public enum Work {
        /** Causal attention. */
        CAUSAL_ATTENTION,
        /** Causal attention whose scores are 30 tanh(x / 30). */
        CAPPED_ATTENTION,
        /** The same by our own kernels. */
        CAPPED_ATTENTION_BY_OPS,
        /** The same by a layer, which takes graphs, with its gradients. */
        CAPPED_TRAINING,
        /** The same by our own kernels. */
        CAPPED_TRAINING_BY_OPS,
        /** A product with bias and the exact GELU, as an MLP has it in evaluation. */
        PRODUCT_GELU,
        /** The same by our product and our GELU, as the MLP runs it. */
        PRODUCT_GELU_BY_OPS,
        /** A product with bias, GELU and a residual. */
        PRODUCT_GELU_RESIDUAL,
        /** A product with bias and a residual. */
        PRODUCT_RESIDUAL,
        /** The same by TE's product with a bias and our sum. */
        PRODUCT_RESIDUAL_BY_TE,
        /** A layer norm. */
        LAYER_NORM,
        /** An RMS norm. */
        RMS_NORM
    }

    /** What is computed. */
    @Param
    public Work work;

    /** Shape of the layer in which it would stand. */
    @Param("CPU")
    public LayerShape shape;

    private final BenchmarkDevice made = new BenchmarkDevice();
    private Runnable call;
    private Tensor y;
    private Pass pass;

    /** For JMH. */
    public CudnnGraphBenchmark() {}

    /** Opens the device, plans, and checks a number. */
    @Setup
    public void open() {
        made.open();
        switch (work) {
            case CAUSAL_ATTENTION, CAPPED_ATTENTION -> attention();
            case CAPPED_ATTENTION_BY_OPS, CAPPED_TRAINING_BY_OPS -> attentionByOps();
            case CAPPED_TRAINING -> attentionByLayer();
            case PRODUCT_GELU, PRODUCT_GELU_RESIDUAL, PRODUCT_RESIDUAL -> product();
            case PRODUCT_GELU_BY_OPS -> productByOps();
            case PRODUCT_RESIDUAL_BY_TE -> productByTe();
            case LAYER_NORM, RMS_NORM -> norm();
        }
        call.run();
        float[] first = made.scope().view(y, 0, 1).toFloats(made.stream());
        double expected = expected();
        if (!(Math.abs(first[0] - expected) <= 0.02 * Math.max(1, Math.abs(expected)))) {
            throw new IllegalStateException(work + ": expected " + expected + ", got " + first[0]);
        }
    }

    /**
     * The first query sees one key, of value 3. Products are of ones, with a bias of -hidden and a residual of 3, or
     * without a residual of 3 / hidden, without that bias; norms are of equal numbers.
     */
    private double expected() {
        return switch (work) {
            case CAUSAL_ATTENTION, CAPPED_ATTENTION, CAPPED_ATTENTION_BY_OPS, CAPPED_TRAINING, CAPPED_TRAINING_BY_OPS ->
                3;
            case PRODUCT_GELU_RESIDUAL, PRODUCT_RESIDUAL, PRODUCT_RESIDUAL_BY_TE -> 3;
            case PRODUCT_GELU, PRODUCT_GELU_BY_OPS -> 2.996;
            case LAYER_NORM -> 2;
            case RMS_NORM -> 3;
        };
    }

    /** Plans a graph and binds tensors of equal numbers to its inputs, by name. */
    private void plan(GraphBuilder builder, GraphTensor result) {
        if (result.isVirtual()) {
            builder.output(result, DataType.BFLOAT16);
        }
        OperationGraph graph = builder.build();
        ExecutionPlan plan = graph.plan(made.device());
        VariantPack pack = plan.variantPack();
        for (GraphTensor input : graph.inputs()) {
            float value = switch (input.name()) {
                case "v", "residual" -> 3;
                case "k" -> 0.5f;
                case "bias" -> work == Work.LAYER_NORM ? 2 : work == Work.PRODUCT_GELU ? 0 : -shape.hidden();
                case "x" -> work == Work.PRODUCT_GELU ? 3f / shape.hidden() : 1;
                case "scale" -> 3;
                default -> 1;
            };
            pack.set(input, made.filled(input.type().dtype(), value, input.count()));
        }
        y = made.empty(DType.BFLOAT16, result.count());
        pack.set(result, y);
        Tensor workspace = made.empty(DType.BYTE, Math.max(1, plan.workspaceBytes()));
        call = () -> plan.run(made.stream(), pack, workspace);
    }

    private long headDim() {
        return shape.hidden() / shape.heads();
    }

    private void attention() {
        GraphBuilder builder = OperationGraph.builder(work.name());
        long[] dims = {shape.batch(), shape.heads(), shape.length(), headDim()};
        long row = shape.hidden();
        long sequence = row * shape.length();
        long[] strides = {sequence, headDim(), row, 1};
        GraphTensor q = builder.tensor("q", DType.BFLOAT16, dims, strides);
        GraphTensor k =
                builder.tensor("k", DType.BFLOAT16, new long[] {dims[0], dims[1], dims[3], dims[2]}, new long[] {
                    sequence, headDim(), 1, row
                });
        GraphTensor v = builder.tensor("v", DType.BFLOAT16, dims, strides);
        AttentionBuilder attention = builder.attention("o", q, k)
                .scale((float) (1 / Math.sqrt(headDim())))
                .causal(AttentionBuilder.Diagonal.TOP_LEFT);
        if (work == Work.CAPPED_ATTENTION) {
            GraphTensor cap = builder.scalar("cap", 4, CAP);
            attention.scores(x -> {
                GraphTensor share = builder.pointwise("share", PointwiseMode.DIV, x, cap);
                GraphTensor tanh = builder.pointwise("tanh", PointwiseMode.TANH_FWD, share);
                return builder.pointwise("capped", PointwiseMode.MUL, tanh, cap);
            });
        }
        // As our kernels and TE's write it: heads of a token side by side.
        plan(builder, builder.output(attention.forward(v).o(), DataType.BFLOAT16, strides));
    }

    private void attentionByOps() {
        AttentionProblem problem = AttentionBuffers.problem(shape, QkvLayout.BSHD_BSHD_BSHD)
                .withMask(MaskType.CAUSAL)
                .withWindow(-1, 0);
        int[] offsets = new int[shape.batch() + 1];
        for (int i = 1; i < offsets.length; i++) {
            offsets[i] = i * shape.length();
        }
        Tensor lengths = made.empty(DType.INT32, offsets.length);
        lengths.set(made.stream(), offsets);
        y = rows(0);
        AttentionTensors tensors = new AttentionTensors()
                .query(rows(1))
                .key(rows(0.5f))
                .value(rows(3))
                .output(y)
                .queryLengths(lengths, shape.length())
                .keyLengths(lengths, shape.length());
        tensors.statistics(FusedAttention.statistics(problem, tensors, made.scope()));
        AttentionScores scores = new AttentionScores().softcap(CAP);
        if (work == Work.CAPPED_ATTENTION_BY_OPS) {
            call = () -> Attention.forward(problem, tensors, scores, made.stream());
            return;
        }
        tensors.outputGradient(rows(1))
                .queryGradient(rows(0))
                .keyGradient(rows(0))
                .valueGradient(rows(0));
        Tensor delta = made.scope().like(tensors.statistics());
        AttentionPlace place = new AttentionPlace();
        call = () -> {
            Attention.forward(problem, tensors, scores, made.stream());
            Attention.backward(problem, tensors, scores, place, delta, made.stream());
        };
    }

    private void attentionByLayer() {
        int heads = Math.toIntExact(shape.heads());
        DotProductAttention attention =
                new DotProductAttention(AttentionConfig.of(heads, Math.toIntExact(headDim()), AttentionMask.causal())
                        .withSoftcap(CAP));
        Sequences sequences =
                Sequences.dense(made.scope(), QkvFormat.BSHD, shape.batch(), Math.toIntExact(shape.length()));
        Tensor q = rows(1);
        Tensor k = rows(0.5f);
        Tensor v = rows(3);
        Tensor dy = rows(1);
        Tensor dq = rows(0);
        Tensor dk = rows(0);
        Tensor dv = rows(0);
        pass = Pass.training(made.device());
        call = () -> {
            y = attention.forward(q, k, v, pass.begin(sequences));
            attention.backward(dy, dq, dk, dv, pass);
        };
    }

    private Tensor rows(float value) {
        return made.filled(DType.BFLOAT16, value, shape.batch(), shape.length(), shape.heads(), headDim());
    }

    private void product() {
        GraphBuilder builder = OperationGraph.builder(work.name());
        long tokens = shape.tokens();
        GraphTensor c = builder.matmul(
                "product",
                builder.tensor("x", DType.BFLOAT16, 1, tokens, shape.hidden()),
                builder.tensor("w", DType.BFLOAT16, new long[] {1, shape.hidden(), shape.inner()}, new long[] {
                    shape.hidden() * shape.inner(), 1, shape.hidden()
                }));
        GraphTensor sum = builder.pointwise(
                "sum", PointwiseMode.ADD, c, builder.tensor("bias", DType.BFLOAT16, 1, 1, shape.inner()));
        if (work != Work.PRODUCT_RESIDUAL) {
            sum = builder.pointwise("active", PointwiseMode.GELU_FWD, sum);
        }
        if (work == Work.PRODUCT_GELU) {
            plan(builder, sum);
            return;
        }
        GraphTensor residual = builder.tensor("residual", DType.BFLOAT16, 1, tokens, shape.inner());
        plan(builder, builder.pointwise("y", PointwiseMode.ADD, sum, residual));
    }

    private void productByOps() {
        long tokens = shape.tokens();
        Tensor x = made.filled(DType.BFLOAT16, 3f / shape.hidden(), tokens, shape.hidden());
        Tensor w = made.filled(DType.BFLOAT16, 1, shape.inner(), shape.hidden());
        Tensor bias = made.zeros(DType.BFLOAT16, shape.inner());
        Tensor before = made.empty(DType.BFLOAT16, tokens, shape.inner());
        y = made.empty(DType.BFLOAT16, tokens, shape.inner());
        MatrixProduct product = MatrixProduct.of(Gemm.Transpose.NO, Gemm.Transpose.YES, ProductPlan.FIRST);
        call = () -> {
            product.productBias(x, w, bias, before, made.stream());
            Elementwise.geluErf(before, y, made.stream());
        };
    }

    private void productByTe() {
        long tokens = shape.tokens();
        Tensor x = made.filled(DType.BFLOAT16, 1, tokens, shape.hidden());
        Tensor w = made.filled(DType.BFLOAT16, 1, shape.inner(), shape.hidden());
        Tensor bias = made.filled(DType.BFLOAT16, -shape.hidden(), shape.inner());
        Tensor residual = made.filled(DType.BFLOAT16, 3, tokens, shape.inner());
        Tensor product = made.empty(DType.BFLOAT16, tokens, shape.inner());
        y = made.empty(DType.BFLOAT16, tokens, shape.inner());
        call = () -> {
            Gemm.gemmBias(x, Gemm.Transpose.NO, w, Gemm.Transpose.YES, bias, product, made.stream());
            Elementwise.add(product, residual, y, made.stream());
        };
    }

    private void norm() {
        GraphBuilder builder = OperationGraph.builder(work.name());
        long columns = shape.hidden();
        GraphTensor x = builder.tensor("x", DType.BFLOAT16, new long[] {shape.tokens(), columns, 1, 1}, new long[] {
            columns, 1, columns, columns
        });
        GraphTensor scale = builder.tensor("scale", DType.FLOAT32, 1, columns, 1, 1);
        boolean isLayerNorm = work == Work.LAYER_NORM;
        GraphTensor bias = isLayerNorm ? builder.tensor("bias", DType.FLOAT32, 1, columns, 1, 1) : null;
        NormMode mode = isLayerNorm ? NormMode.LAYER_NORM : NormMode.RMS_NORM;
        plan(builder, builder.normInference("y", mode, x, scale, bias, 1e-5f));
    }

    /** Waits, so that the host never waits for room in the stream while it enqueues. */
    @Setup(Level.Invocation)
    public void idle() {
        made.stream().synchronize();
    }

    /** Until the device is done. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public float device() {
        return made.deviceMillis(this::repeated);
    }

    /** Until all is enqueued. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void enqueue() {
        repeated();
    }

    private void repeated() {
        for (int i = 0; i < CALLS; i++) {
            call.run();
        }
    }

    /** Closes what was opened. */
    @TearDown
    public void close() {
        if (pass != null) {
            pass.close();
        }
        made.close();
    }
}
