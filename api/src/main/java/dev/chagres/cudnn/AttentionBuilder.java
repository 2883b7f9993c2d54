package dev.chagres.cudnn;

import dev.chagres.bindings.ForeignText;
import dev.chagres.internal.Checks;
import java.util.Arrays;
import java.util.function.UnaryOperator;
import org.jspecify.annotations.Nullable;

/**
 * Adds scaled-dot-product attention and its gradients to a graph, as the operations that cuDNN fuses.
 *
 * <p>The scores of query i and key j are scale q k&#7488;, changed by {@link #scores}, plus bias and slope (j - i); what a mask hides is minus
 * infinity. Heads of keys and values may be fewer: each then serves neighbours. Weights are their softmax over j, of which dropout takes some away; o is weights times v. Between the products everything is FP32, and
 * weights are rounded to the type of q for the second product.
 *
 * {@snippet file="dev/chagres/cudnn/GraphExamplesTest.java" region="attention"}
 *
 * <p>Threading: one thread at a time.
 *
 * <p>Source: the order of operations that cuDNN 9.19 knows as attention, as {@code cudnn-frontend} 1.18 gives it.
 */
public final class AttentionBuilder {
    /** Scores that nothing changes. */
    static final UnaryOperator<GraphTensor> UNCHANGED = UnaryOperator.identity();

    private final GraphBuilder graph;
    private final String name;
    private final GraphTensor q;
    private final GraphTensor kT;
    private float scale = 1;
    private long before = Long.MAX_VALUE;
    private long after = Long.MAX_VALUE;
    private Diagonal diagonal = Diagonal.TOP_LEFT;
    private UnaryOperator<GraphTensor> scores = UNCHANGED;
    private UnaryOperator<GraphTensor> scoreGradients = UNCHANGED;
    private @Nullable GraphTensor bias;
    private @Nullable GraphTensor slopes;
    private @Nullable GraphTensor sink;
    private @Nullable GraphTensor queryLengths;
    private @Nullable GraphTensor keyLengths;
    private AttentionOperations.BiasGradient biasGradient = AttentionOperations.BiasGradient.NONE;
    private float dropout;
    private @Nullable GraphTensor seed;
    private @Nullable GraphTensor offset;

    /** Where the diagonal of a mask lies when there are not as many keys as queries. */
    public enum Diagonal {
        /** Query 0 and key 0 are on it. */
        TOP_LEFT,
        /** The last query and the last key are on it. */
        BOTTOM_RIGHT
    }

    AttentionBuilder(GraphBuilder graph, String name, GraphTensor q, GraphTensor kT) {
        this.graph = graph;
        this.name = Checks.given("name", name);
        this.q = graph.own("attention", name, "q", q);
        this.kT = graph.own("attention", name, "kT", kT);
        if (q.rank() != 4) {
            throw refusal("q", "[B, H, Sq, D]", q);
        }
        if (kT.rank() != 4 || kT.dim(0) != q.dim(0) || q.dim(1) % kT.dim(1) != 0 || kT.dim(2) != q.dim(3)) {
            throw refusal("kT", "[B, Hk, D, Skv] with B and D of " + q + ", where Hk divides H", kT);
        }
    }

    private IllegalArgumentException refusal(String argument, String expected, @Nullable Object got) {
        return GraphChecks.refusal("attention", name, argument, expected, got);
    }

    /**
     * Sets the factor of scores; at first 1.
     *
     * @throws IllegalArgumentException when it is no finite number
     */
    public AttentionBuilder scale(float factor) {
        if (!Float.isFinite(factor)) {
            throw refusal("scale", "a finite number", factor);
        }
        scale = factor;
        return this;
    }

    /** Lets a query see the keys up to its own place on the diagonal. */
    public AttentionBuilder causal(Diagonal place) {
        return window(Long.MAX_VALUE, 0, place);
    }

    /**
     * Lets a query see so many keys before and after its own place on the diagonal; {@code Long.MAX_VALUE} are all.
     *
     * @throws IllegalArgumentException when a number is negative, or neither 2^30 at most nor {@code Long.MAX_VALUE}
     */
    public AttentionBuilder window(long keysBefore, long keysAfter, Diagonal place) {
        checkWindow("keysBefore", keysBefore);
        checkWindow("keysAfter", keysAfter);
        before = keysBefore;
        after = keysAfter;
        diagonal = Checks.given("place", place);
        return this;
    }

    private void checkWindow(String argument, long keys) {
        if (keys < 0 || (keys > 1 << 30 && keys != Long.MAX_VALUE)) {
            throw refusal(argument, "0 to " + (1 << 30) + " or Long.MAX_VALUE", keys);
        }
    }

    /**
     * Adds operations of one's own to scaled scores [B, H, Sq, Skv], before bias and masks: it gives a result of their sizes.
     *
     * @param change for example {@code x -> graph.pointwise("capped", PointwiseMode.TANH_FWD, x)}
     */
    public AttentionBuilder scores(UnaryOperator<GraphTensor> change) {
        scores = Checks.given("change", change);
        return this;
    }

    /** The same with operations that give the gradient of what {@code change} reads from that of its result, for {@link #backward}. */
    public AttentionBuilder scores(UnaryOperator<GraphTensor> change, UnaryOperator<GraphTensor> gradients) {
        scoreGradients = Checks.given("gradients", gradients);
        return scores(change);
    }

    /**
     * Adds a bias to scaled scores.
     *
     * @param added with sizes of [B, H, Sq, Skv] or 1
     * @throws IllegalArgumentException when the sizes do not fit
     */
    public AttentionBuilder bias(GraphTensor added) {
        bias = broadcast("bias", added, q.dim(0), q.dim(1), q.dim(2), kT.dim(3));
        return this;
    }

    /**
     * Lets {@link #backward} give the gradient of the bias, sums over what the bias is repeated along; cuDNN keeps those of all scores for it, in
     * its workspace.
     *
     * @throws IllegalStateException when there is no bias
     */
    public AttentionBuilder biasGradient() {
        if (bias == null) {
            throw new IllegalStateException(
                    "attention " + ForeignText.quoted(name) + ": expected a bias before its gradient");
        }
        biasGradient = AttentionOperations.BiasGradient.GIVEN;
        return this;
    }

    /**
     * Adds slope (j - i) to scaled scores (ALiBi).
     *
     * @param ofHeads FLOAT[1, H, 1, 1]
     * @throws IllegalArgumentException when the sizes do not fit
     */
    public AttentionBuilder slopes(GraphTensor ofHeads) {
        slopes = exact("slopes", ofHeads, 1, q.dim(1), 1, 1);
        return this;
    }

    /**
     * Adds a score without a value to each row of the softmax; {@link #backward} gives its gradient, which must be an output. The other
     * gradients have it in the statistics: without a gradient of its own, leave it out there.
     *
     * @param ofHeads FLOAT[1, H, 1, 1]
     * @throws IllegalArgumentException when the sizes do not fit
     */
    public AttentionBuilder sink(GraphTensor ofHeads) {
        sink = exact("sink", ofHeads, 1, q.dim(1), 1, 1);
        return this;
    }

    /**
     * Hides what lies beyond the tokens of each sequence; o is 0 there.
     *
     * @param queries INT32[B, 1, 1, 1]
     * @param keys INT32[B, 1, 1, 1]
     * @throws IllegalArgumentException when they do not fit
     */
    public AttentionBuilder lengths(GraphTensor queries, GraphTensor keys) {
        GraphChecks.integers(graph, "attention", name, "queries", queries, q.dim(0), 1, 1, 1);
        GraphChecks.integers(graph, "attention", name, "keys", keys, q.dim(0), 1, 1, 1);
        queryLengths = queries;
        keyLengths = keys;
        return this;
    }

    /**
     * Takes weights away, each with this probability, and multiplies the others by 1 / (1 - probability).
     *
     * @param randomSeed one INT64, on the device
     * @param randomOffset one INT64, on the device
     * @throws IllegalArgumentException when the probability is not from 0 to below 1, or a tensor has another shape
     */
    public AttentionBuilder dropout(float probability, GraphTensor randomSeed, GraphTensor randomOffset) {
        if (!(probability >= 0 && probability < 1)) {
            throw refusal("probability", "0 to below 1", probability);
        }
        seed = exact("seed", randomSeed, 1, 1, 1, 1);
        offset = exact("offset", randomOffset, 1, 1, 1, 1);
        dropout = probability;
        return this;
    }

    private GraphTensor exact(String argument, GraphTensor tensor, long... dims) {
        GraphChecks.sized(graph, "attention", name, argument, tensor, dims);
        return tensor;
    }

    private GraphTensor broadcast(String argument, GraphTensor tensor, long... dims) {
        boolean fits = graph.own("attention", name, argument, tensor).rank() == dims.length;
        for (int i = 0; fits && i < dims.length; i++) {
            fits = tensor.dim(i) == dims[i] || tensor.dim(i) == 1;
        }
        if (!fits) {
            throw refusal(argument, "sizes of [B, H, Sq, Skv] = " + Arrays.toString(dims) + " or 1", tensor);
        }
        return tensor;
    }

    /**
     * Adds the operations. Without gradients nothing reads the statistics, which need be no output then.
     *
     * @param v values [B, Hv, Skv, Dv], where Hv divides H
     * @throws IllegalArgumentException when the sizes do not fit
     */
    public SdpaForward forward(GraphTensor v) {
        return operations().forward(v);
    }

    /**
     * Adds the operations of the gradients: dv = weights&#7488; dy; ds = weights (dy v&#7488; - o dy); dq = scale ds k; dk = scale ds&#7488; q. What was
     * set for the forward pass is set here too.
     *
     * @param dy of o, [B, H, Sq, Dv]
     * @param vT values [B, Hv, Dv, Skv]: sizes and strides of the values with their last two swapped
     * @param o as {@link #forward} gave it
     * @param stats as {@link #forward} gave them
     * @throws IllegalArgumentException when the sizes do not fit
     */
    public SdpaGradients backward(GraphTensor dy, GraphTensor vT, GraphTensor o, GraphTensor stats) {
        return operations().backward(dy, vT, o, stats, scoreGradients);
    }

    /**
     * Adds attention of FP8 tensors: o = scaleO descaleS descaleV (scaleS weights) v, where the scores' factor is scale descaleQ descaleK, and scaled
     * weights are rounded to the type of q. Of what is set by name, it takes the scale, masks and lengths.
     *
     * <p>It declares the inputs {@code descaleQ, descaleK, descaleV, descaleS, scaleS, scaleO}, FLOAT[1, 1, 1, 1], whose names begin with that of the
     * operation and a dot.
     *
     * @param v values [B, Hv, Skv, Dv], of the type of q
     * @param result type of o; a GPU before Blackwell has FP8 alone
     * @throws IllegalArgumentException when sizes or types do not fit, or something else is set
     */
    public Fp8Forward forwardFp8(GraphTensor v, DataType result) {
        return new Fp8AttentionOperations(operations()).forward(v, Checks.given("result", result));
    }

    /**
     * Adds the gradients of attention of FP8 tensors, each times its scale, and rounded to {@code result}. What was set for the forward pass is set here
     * too.
     *
     * <p>It declares the inputs {@code descaleQ, descaleK, descaleV, descaleO, descaleDy, descaleS, scaleS, descaleDp, scaleDp, scaleDq, scaleDk,
     * scaleDv}, FLOAT[1, 1, 1, 1], whose names begin with that of the operation and a dot. Those of Dp are of the gradients of scores.
     *
     * @param dy of o, [B, H, Sq, Dv], FP8; gradients of scores are rounded to its type
     * @param vT values [B, Hv, Dv, Skv]: sizes and strides of the values with their last two swapped
     * @param o as {@link #forwardFp8} gave it
     * @param stats as {@link #forwardFp8} gave them
     * @param result type of the gradients; a GPU before Blackwell has FP8 alone
     * @throws IllegalArgumentException when sizes or types do not fit, or something else is set
     */
    public Fp8Gradients backwardFp8(GraphTensor dy, GraphTensor vT, GraphTensor o, GraphTensor stats, DataType result) {
        return new Fp8AttentionOperations(operations()).backward(dy, vT, o, stats, Checks.given("result", result));
    }

    private AttentionOperations operations() {
        if (queryLengths == null && (q.isPacked() || kT.isPacked())) {
            throw refusal("lengths", "those of packed sequences", null);
        }
        return new AttentionOperations(
                graph,
                name,
                q,
                kT,
                scale,
                new AttentionOperations.Band(before, after, diagonal),
                scores,
                new AttentionOperations.Extras(
                        bias, slopes, sink, queryLengths, keyLengths, dropout, seed, offset, biasGradient));
    }
}
