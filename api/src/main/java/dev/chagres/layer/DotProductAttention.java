package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.internal.Checks;
import dev.chagres.layer.KernelChoice.AttentionKernels;
import dev.chagres.ops.Attention;
import dev.chagres.te.AttentionProblem;
import dev.chagres.te.AttentionProblem.Order;
import dev.chagres.te.AttentionTensors;
import dev.chagres.te.FusedAttention;
import dev.chagres.te.QkvFormat;
import dev.chagres.te.QkvLayout;
import org.jspecify.annotations.Nullable;

/**
 * {@code o = dropout(softmax(scale q k^T + mask)) v} for each head, over {@link Pass#sequences()}.
 *
 * <p>Shapes: q and o are [T, h, d] packed (THD), [B, S, h, d] (BSHD) or [S, B, h, d] (SBHD), k and v likewise with g heads and
 * the tokens of {@link Sequences#keys()}; or one buffer holds query, key and value of the same tokens, as [T, 3 h d] rows.
 * FLOAT32, BFLOAT16 or FLOAT16. The softmax is computed in FP32.
 *
 * <p>cuDNN's fused kernels compute BFLOAT16 and FLOAT16. What they do not take our own tiled kernels compute, in FP32
 * whatever the type: FLOAT32, and padded batches of one token a sequence; and, on tensor cores, heads of at most 32 columns
 * without dropout. The choice is the same on every provider.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code nvte_fused_attn_fwd_v2}, {@code nvte_fused_attn_bwd_v2} in TE's {@code fused_attn.h};
 * {@code ops_attention_forward}, {@code ops_attention_backward} in {@code ops.h}.
 */
public final class DotProductAttention {
    /** cuDNN builds a kernel plan for each longest length; rounding up keeps them few. */
    private static final long LENGTH_STEP = 128;

    /** Bytes of workspace that cuDNN's deterministic backward wants for each score of packed sequences. */
    private static final long DETERMINISTIC_BYTES = 128;

    /** How query, key and value came, and so how their gradients go. */
    private enum Form {
        SEPARATE("forward", "backward"),
        PACKED("forwardPacked", "backwardPacked");

        private final String forward;
        private final String backward;

        Form(String forward, String backward) {
            this.forward = forward;
            this.backward = backward;
        }
    }

    /** What backward needs. */
    private static final class Heads extends Saved {
        private final AttentionTensors tensors = new AttentionTensors();
        private final Kept qkv = new Kept("the buffer of query, key and value");
        private final Kept query = new Kept("the query");
        private final Kept key = new Kept("the key");
        private final Kept value = new Kept("the value");
        private final Kept output = new Kept("the output");
        private final Kept statistics = new Kept("the log-sum-exp");
        private final Kept offsets = new Kept("the lengths of the queries");
        private final Kept keyOffsets = new Kept("the lengths of the keys");
        private @Nullable AttentionProblem problem;
        private @Nullable Sequences sequences;
        private Form form = Form.SEPARATE;
        private AttentionKernels kernels = AttentionKernels.FUSED;
    }

    private final String name;
    private final AttentionConfig config;
    private final AttentionProblems problems;
    private final SavedPool<Heads> saved = new SavedPool<>(this, Heads::new);
    /** For calls that save nothing. */
    private final Heads unsaved = new Heads();

    /** Makes attention as {@code config} says. */
    public DotProductAttention(AttentionConfig config) {
        this("attention", config);
    }

    DotProductAttention(String name, AttentionConfig config) {
        this.name = name;
        this.config = Checks.given("config", config);
        if (!config.qkNorm().isNone()) {
            throw new IllegalArgumentException("qkNorm: expected none, for " + name
                    + " takes query and key as they are, got " + config.qkNorm().kind()
                    + "; norm them before, or use MultiheadAttention");
        }
        problems = new AttentionProblems(config);
    }

    /** Returns what is computed. */
    public AttentionConfig config() {
        return config;
    }

    /**
     * Enqueues attention over three tensors.
     *
     * @return o, like q
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or the sequences end off the tokens
     */
    public Tensor forward(Tensor q, Tensor k, Tensor v, Pass pass) {
        return forward(q, k, v, begin(pass), pass);
    }

    /** Enqueues attention of the pass's queries over keys of the same tokens, whatever keys its sequences name. */
    Tensor forwardSelf(Tensor q, Tensor k, Tensor v, Pass pass) {
        return forward(q, k, v, begin(pass).queries(), pass);
    }

    private Tensor forward(Tensor q, Tensor k, Tensor v, Sequences sequences, Pass pass) {
        Stream stream = pass.stream();
        checkHeads("q", Checks.floats(stream, "q", q), config.heads(), sequences);
        checkHeads("k", Checks.floats(stream, "k", k), config.keyHeads(), sequences.keys());
        if (k.count() == 0) {
            throw new IllegalArgumentException("k: expected at least one token, got " + Checks.describe(k));
        }
        Checks.like(stream, "v", v, k);
        if (k.dtype() != q.dtype()) {
            throw new IllegalArgumentException("k: expected " + q.dtype() + " as q, got " + Checks.describe(k));
        }
        Checks.aligned("q", q);
        Checks.aligned("k", k);
        Checks.aligned("v", v);
        Tensor output = pass.kept().like(q);
        Heads heads = of(pass);
        run(QkvLayout.separate(sequences.format()), q, k, v, output, sequences, heads, pass);
        heads.form = Form.SEPARATE;
        return output;
    }

    /**
     * Enqueues attention over one buffer.
     *
     * @param qkv [T, 3 h d]: query, key and value of each token side by side
     * @return o, [T, h d]
     * @throws IllegalArgumentException when shapes, types or devices do not fit, the sequences end off the tokens, or key
     *     and value have other heads than the query
     */
    public Tensor forwardPacked(Tensor qkv, Pass pass) {
        Sequences sequences = begin(pass).queries();
        long width = (long) config.heads() * config.headDim();
        Checks.floats(pass.stream(), "qkv", qkv);
        Checks.matrix(pass.stream(), "qkv", qkv, qkv.dtype(), 3 * width);
        if (config.keyHeads() != config.heads()) {
            throw new IllegalArgumentException(
                    "qkv: one buffer holds as many heads of query, key and value, but " + name
                            + " has " + config.heads() + " query and " + config.keyHeads()
                            + " key heads; call forward(q, k, v, pass)");
        }
        sequences.checkTokens("qkv", qkv, qkv.size(0));
        Checks.aligned("qkv", qkv);
        Scope kept = pass.kept();
        Tensor output = kept.tensor(qkv.dtype(), qkv.size(0), width);
        Tensor q = shaped(kept, qkv, 0, sequences);
        Tensor k = shaped(kept, qkv, width, sequences);
        Tensor v = shaped(kept, qkv, 2 * width, sequences);
        Heads heads = of(pass);
        run(QkvLayout.packed(sequences.format()), q, k, v, shaped(kept, output, 0, sequences), sequences, heads, pass);
        heads.qkv.set(qkv);
        heads.form = Form.PACKED;
        return output;
    }

    private Sequences begin(Pass pass) {
        Checks.given("pass", pass).ensureBegun(this);
        Sequences sequences = pass.sequences();
        sequences.check();
        if (sequences.tokens() == 0) {
            throw new IllegalArgumentException(
                    "sequences: expected at least one token, got " + sequences + "; leave an empty batch out");
        }
        return sequences;
    }

    /** Nothing is pushed before the call has been made: a refused one leaves the pass as it was. */
    private Heads of(Pass pass) {
        return pass.isSaving() ? saved.take() : unsaved;
    }

    private void run(
            QkvLayout layout,
            Tensor q,
            Tensor k,
            Tensor v,
            Tensor output,
            Sequences sequences,
            Heads heads,
            Pass pass) {
        AttentionKernels kernels = KernelChoice.attention(config, q.dtype(), sequences);
        boolean drops = pass.isTraining() && !config.dropout().isNone();
        AttentionProblem problem = problems.get(layout, sequences.padding(), drops);
        Tensor offsets = sequences.cuSeqlens().offsets();
        Tensor keyOffsets = sequences.keys().cuSeqlens().offsets();
        AttentionTensors tensors = heads.tensors
                .query(q)
                .key(k)
                .value(v)
                .output(output)
                .queryLengths(offsets, longest(sequences, kernels))
                .keyLengths(keyOffsets, longest(sequences.keys(), kernels))
                .rngState(drops ? pass.draw() : null);
        Tensor statistics = statistics(q, sequences, pass.kept());
        tensors.statistics(statistics);
        switch (kernels) {
            case FUSED -> FusedAttention.forward(problem, tensors, pass.stream());
            case TILED -> Attention.forward(problem, tensors, pass.stream());
        }
        heads.query.set(q);
        heads.key.set(k);
        heads.value.set(v);
        heads.output.set(output);
        heads.statistics.set(statistics);
        heads.offsets.set(offsets);
        heads.keyOffsets.set(keyOffsets);
        heads.problem = problem;
        heads.sequences = sequences;
        heads.kernels = kernels;
        if (pass.isSaving()) {
            saved.pushTaken(heads, pass);
        }
    }

    private static long longest(Sequences sequences, AttentionKernels kernels) {
        long length = sequences.length();
        return sequences.format() == QkvFormat.THD && kernels == AttentionKernels.FUSED
                ? Math.max(LENGTH_STEP, (length + LENGTH_STEP - 1) / LENGTH_STEP * LENGTH_STEP)
                : length;
    }

    /** FLOAT32 [T, h, 1] packed, [B, h, S, 1] dense. */
    private Tensor statistics(Tensor q, Sequences sequences, Scope scope) {
        return sequences.format() == QkvFormat.THD
                ? scope.tensor(DType.FLOAT32, q.size(0), config.heads(), 1)
                : scope.tensor(DType.FLOAT32, sequences.batch(), config.heads(), sequences.length(), 1);
    }

    /**
     * Enqueues the gradients of {@link #forward}.
     *
     * @param dO gradient of the output, like it
     * @param dq receives the gradient of the query, like it; so {@code dk} and {@code dv}
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or a gradient shares memory with another
     *     tensor
     * @throws IllegalStateException when the last forward call of the pass was another's
     */
    public void backward(Tensor dO, Tensor dq, Tensor dk, Tensor dv, Pass pass) {
        Heads heads = current(Form.SEPARATE, pass);
        Stream stream = pass.stream();
        Checks.like(stream, "dO", dO, heads.output.get());
        Checks.like(stream, "dq", dq, heads.query.get());
        Checks.like(stream, "dk", dk, heads.key.get());
        Checks.like(stream, "dv", dv, heads.value.get());
        Checks.apart("dq", dq, "dk", dk);
        Checks.apart("dq", dq, "dv", dv);
        Checks.apart("dk", dk, "dv", dv);
        checkWritten("dq", dq, dO, heads);
        checkWritten("dk", dk, dO, heads);
        checkWritten("dv", dv, dO, heads);
        Checks.aligned("dO", dO);
        runBackward(heads, dO, dq, dk, dv, pass);
    }

    /**
     * Enqueues the gradient of {@link #forwardPacked}.
     *
     * @param dO gradient of the output: [T, h d]
     * @param dqkv receives the gradient of the buffer: [T, 3 h d]
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or the gradient shares memory with another
     *     tensor
     * @throws IllegalStateException when the last forward call of the pass was another's
     */
    public void backwardPacked(Tensor dO, Tensor dqkv, Pass pass) {
        Heads heads = current(Form.PACKED, pass);
        long width = (long) config.heads() * config.headDim();
        Tensor output = heads.output.get();
        Sequences sequences = Checks.given("sequences", heads.sequences);
        long tokens = output.count() / width;
        Checks.matrix(pass.stream(), "dO", dO, output.dtype(), tokens, width);
        Checks.matrix(pass.stream(), "dqkv", dqkv, output.dtype(), tokens, 3 * width);
        Checks.apart("dqkv", dqkv, "qkv", heads.qkv.get());
        checkWritten("dqkv", dqkv, dO, heads);
        Checks.aligned("dO", dO);
        Scope temporary = pass.temporary();
        runBackward(
                heads,
                shaped(temporary, dO, 0, sequences),
                shaped(temporary, dqkv, 0, sequences),
                shaped(temporary, dqkv, width, sequences),
                shaped(temporary, dqkv, 2 * width, sequences),
                pass);
    }

    /** Checks that a gradient may be written, and shares no memory with what backward reads. */
    private static void checkWritten(String argument, Tensor gradient, Tensor dO, Heads heads) {
        Checks.writable(argument, gradient);
        Checks.apart(argument, gradient, "dO", dO);
        Checks.apart(argument, gradient, "the query", heads.query.get());
        Checks.apart(argument, gradient, "the key", heads.key.get());
        Checks.apart(argument, gradient, "the value", heads.value.get());
        Checks.apart(argument, gradient, "the output", heads.output.get());
        Checks.aligned(argument, gradient);
    }

    private void runBackward(Heads heads, Tensor dO, Tensor dq, Tensor dk, Tensor dv, Pass pass) {
        AttentionProblem problem = Checks.given("problem", heads.problem);
        AttentionTensors tensors = heads.tensors
                .outputGradient(dO)
                .queryGradient(dq)
                .keyGradient(dk)
                .valueGradient(dv);
        switch (heads.kernels) {
            case FUSED -> FusedAttention.backward(problem, tensors, pass.stream());
            case TILED -> {
                Tensor delta = pass.temporary().like(heads.statistics.get());
                Attention.backward(problem, tensors, delta, pass.stream());
            }
        }
        saved.pop(pass);
    }

    /** Returns the record of the forward call to undo, once it is the last one's and holds what forward left there. */
    private Heads current(Form form, Pass pass) {
        Checks.given("pass", pass).ensureBegun(this);
        Heads heads = saved.peek(pass);
        if (heads.form != form) {
            throw new IllegalArgumentException(name + ": the last forward call was " + heads.form.forward
                    + ", whose gradient " + heads.form.backward + " computes; got a call of " + form.backward);
        }
        heads.query.get();
        heads.key.get();
        heads.value.get();
        heads.offsets.get();
        heads.keyOffsets.get();
        return heads;
    }

    /** Gives back what the latest forward call saved, where nobody wants its gradients. */
    void discard(Pass pass) {
        saved.pop(pass);
    }

    /** Returns rows as tokens and heads; inside a packed buffer TE takes the strides from the layout. */
    private Tensor shaped(Scope scope, Tensor matrix, long offset, Sequences sequences) {
        int heads = config.heads();
        int headDim = config.headDim();
        return switch (sequences.format()) {
            case THD -> scope.view(matrix, offset, sequences.tokens(), heads, headDim);
            case BSHD -> scope.view(matrix, offset, sequences.batch(), sequences.length(), heads, headDim);
            case SBHD -> scope.view(matrix, offset, sequences.length(), sequences.batch(), heads, headDim);
        };
    }

    private void checkHeads(String argument, Tensor tensor, int heads, Sequences sequences) {
        int rank = tensor.rank();
        if (!sequences.fits(tensor) || tensor.size(rank - 2) != heads || tensor.size(rank - 1) != config.headDim()) {
            throw new IllegalArgumentException(argument + ": expected " + heads + " heads of " + config.headDim()
                    + " over " + sequences + ", got " + Checks.describe(tensor));
        }
    }

    /** Returns which kernels compute inputs of this type over the pass's sequences, and why not the others. */
    public String explain(DType dtype, Pass pass) {
        Sequences sequences = pass.sequences();
        return name + ": attention by " + KernelChoice.attentionReason(config, dtype, sequences)
                + (KernelChoice.attention(config, dtype, sequences) == AttentionKernels.TILED ? "" : order(sequences));
    }

    /** Returns what the order of the sums in backward costs cuDNN's kernels. */
    private String order(Sequences sequences) {
        if (config.order() == Order.FASTEST) {
            return "; gradients may differ in their last bits from call to call";
        }
        long queryLength = longest(sequences, AttentionKernels.FUSED);
        long keyLength = longest(sequences.keys(), AttentionKernels.FUSED);
        return "; the same bits each time"
                + (sequences.format() == QkvFormat.THD
                        ? ", for which backward wants about "
                                + DETERMINISTIC_BYTES * sequences.batch() * config.heads() * queryLength * keyLength
                                + " bytes of workspace"
                        : "");
    }

    @Override
    public String toString() {
        return name;
    }
}
