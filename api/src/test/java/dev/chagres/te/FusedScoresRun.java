package dev.chagres.te;

import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.TokenRows;
import dev.chagres.witness.ScoredAttention;
import org.jspecify.annotations.Nullable;

/** One call of fused attention over scores that are changed: its tensors, and the same numbers in double precision. */
final class FusedScoresRun {
    private static final double STEP = 1e-4;
    private static final int SAMPLES = 12;

    /**
     * What is attended. Sizes of the bias are 1, where sequences or heads share it, B and h, or 0: none.
     *
     * @param windowLeft keys before its own that a query sees, -1 all
     */
    record Case(
            DType dtype,
            MaskType mask,
            long windowLeft,
            int heads,
            int keyHeads,
            int headDim,
            TokenRows queries,
            TokenRows keys,
            BiasType biasType,
            int biasSequences,
            int biasHeads,
            SoftmaxType softmaxType) {
        /** Queries and keys of the same tokens, whose scores stay as they are. */
        static Case of(DType dtype, MaskType mask, int heads, int headDim, TokenRows tokens) {
            return new Case(
                    dtype,
                    mask,
                    -1,
                    heads,
                    heads,
                    headDim,
                    tokens,
                    tokens,
                    BiasType.NO_BIAS,
                    0,
                    0,
                    SoftmaxType.VANILLA);
        }

        Case withKeys(int newHeads, TokenRows newKeys) {
            return new Case(
                    dtype,
                    mask,
                    windowLeft,
                    heads,
                    newHeads,
                    headDim,
                    queries,
                    newKeys,
                    biasType,
                    biasSequences,
                    biasHeads,
                    softmaxType);
        }

        Case withWindow(long left) {
            return new Case(
                    dtype,
                    mask,
                    left,
                    heads,
                    keyHeads,
                    headDim,
                    queries,
                    keys,
                    biasType,
                    biasSequences,
                    biasHeads,
                    softmaxType);
        }

        Case withBias(int sequences, int ofHeads) {
            return with(BiasType.POST_SCALE_BIAS, sequences, ofHeads, softmaxType);
        }

        Case withAlibi() {
            return with(BiasType.ALIBI, 0, 0, softmaxType);
        }

        Case withSoftmax(SoftmaxType type) {
            return with(biasType, biasSequences, biasHeads, type);
        }

        private Case with(BiasType newType, int sequences, int ofHeads, SoftmaxType newSoftmax) {
            return new Case(
                    dtype,
                    mask,
                    windowLeft,
                    heads,
                    keyHeads,
                    headDim,
                    queries,
                    keys,
                    newType,
                    sequences,
                    ofHeads,
                    newSoftmax);
        }

        AttentionProblem problem() {
            return AttentionProblem.of(QkvLayout.separate(queries.format()), (float) (1 / Math.sqrt(headDim)))
                    .withMask(mask)
                    .withWindow(windowLeft, mask.isCausal() ? 0 : -1)
                    .withBiasType(biasType)
                    .withSoftmaxType(softmaxType);
        }

        AttentionSizes sizes() {
            return new AttentionSizes(
                    queries.lengths().size(),
                    heads,
                    keyHeads,
                    headDim,
                    headDim,
                    length(queries),
                    length(keys),
                    queries.tokens(),
                    keys.tokens(),
                    biasSequences,
                    biasHeads);
        }
    }

    private final OpenDevice open;
    private final Case c;
    final AttentionTensors tensors = new AttentionTensors();
    final ScoredAttention witness;
    private double sinksFactor = 1;
    final double[] dO;

    FusedScoresRun(OpenDevice open, Case c) {
        this.open = open;
        this.c = c;
        TokenRows queries = c.queries();
        TokenRows keys = c.keys();
        double scale = 1 / Math.sqrt(c.headDim());
        witness = new ScoredAttention(
                queries,
                keys,
                c.heads(),
                c.keyHeads(),
                c.mask(),
                scale,
                draw(queries.tokens() * c.heads() * c.headDim()),
                draw(keys.tokens() * c.keyHeads() * c.headDim()),
                draw(keys.tokens() * c.keyHeads() * c.headDim()));
        witness.windowLeft = c.windowLeft();
        dO = draw(witness.q.length);
        tensors.output(heads(queries, c.heads(), new double[dO.length]))
                .outputGradient(heads(queries, c.heads(), dO))
                .queryGradient(heads(queries, c.heads(), new double[dO.length]))
                .keyGradient(heads(keys, c.keyHeads(), new double[witness.k.length]))
                .valueGradient(heads(keys, c.keyHeads(), new double[witness.k.length]))
                .queryLengths(cumulative(queries), length(queries))
                .keyLengths(cumulative(keys), length(keys));
        writeInputs();
        tensors.statistics(FusedAttention.statistics(c.problem(), tensors, open.scope()));
        change();
    }

    /** Takes what query, key and value are in double precision. */
    void writeInputs() {
        tensors.query(heads(c.queries(), c.heads(), witness.q))
                .key(heads(c.keys(), c.keyHeads(), witness.k))
                .value(heads(c.keys(), c.keyHeads(), witness.v));
    }

    private void change() {
        if (c.biasType() == BiasType.POST_SCALE_BIAS) {
            int queryLength = (int) length(c.queries());
            int keyLength = (int) length(c.keys());
            witness.biasShape = new int[] {c.biasSequences(), c.biasHeads(), queryLength, keyLength};
            witness.bias = draw(c.biasSequences() * c.biasHeads() * queryLength * keyLength);
            Shape shape = Shape.of(c.biasSequences(), c.biasHeads(), queryLength, keyLength);
            tensors.bias(tensor(c.dtype(), shape, witness.bias));
            // What the call before left there must not stay.
            double[] before = draw(witness.bias.length);
            tensors.biasGradient(tensor(c.dtype(), shape, before));
        }
        if (c.biasType() == BiasType.ALIBI) {
            witness.slopes = usualSlopes(c.heads());
        }
        witness.softmax = c.softmaxType();
        if (c.softmaxType() != SoftmaxType.VANILLA) {
            boolean learnt = c.softmaxType() == SoftmaxType.LEARNABLE;
            witness.sinks = learnt ? open.normal(DType.FLOAT32, c.heads(), 1) : new double[c.heads()];
            Shape shape = Shape.of(c.heads());
            tensors.softmaxOffset(tensor(DType.FLOAT32, shape, witness.sinks));
            tensors.softmaxOffsetGradient(tensor(DType.FLOAT32, shape, open.normal(DType.FLOAT32, c.heads(), 1)));
        }
    }

    /** The slopes of Press et al., by their rule for heads that are no power of two. */
    private static double[] usualSlopes(int heads) {
        double[] slopes = new double[heads];
        int power = Integer.highestOneBit(heads);
        for (int head = 0; head < heads; head++) {
            slopes[head] =
                    Math.pow(2, head < power ? -8.0 * (head + 1) / power : -4.0 * (2 * (head - power) + 1) / power);
        }
        return slopes;
    }

    void forward(AttentionProblem problem) {
        FusedAttention.forward(problem, tensors, open.stream());
    }

    void backward(AttentionProblem problem) {
        FusedAttention.backward(problem, tensors, open.stream());
    }

    void checkOutput() {
        double[] expected = witness.output(null);
        float[] actual = open.read(tensors.output());
        int width = c.heads() * c.headDim();
        for (int[] rows : c.queries().rows()) {
            for (int row : rows) {
                for (int i = row * width; i < (row + 1) * width; i++) {
                    assertEquals(expected[i], actual[i], tolerance(), "output[" + i + "] of " + c);
                }
            }
        }
    }

    /** Says by what the provider multiplies the gradients of sinks. */
    void sinksFactor(double factor) {
        sinksFactor = factor;
    }

    void checkGradients() {
        check("dq", tensors.queryGradient(), witness.q, c.queries());
        check("dk", tensors.keyGradient(), witness.k, c.keys());
        check("dv", tensors.valueGradient(), witness.v, c.keys());
        if (c.biasType() == BiasType.POST_SCALE_BIAS) {
            check("biasGradient", present(tensors.biasGradient()), witness.bias, null);
        }
        if (c.softmaxType() == SoftmaxType.LEARNABLE) {
            check("softmaxOffsetGradient", present(tensors.softmaxOffsetGradient()), witness.sinks, null, sinksFactor);
        }
    }

    private void check(String what, Tensor gradient, double[] numbers, @Nullable TokenRows rows) {
        check(what, gradient, numbers, rows, 1);
    }

    /**
     * Compares some elements of a gradient with what the loss does when they move. Sums go through all tokens, and grow with their
     * root.
     *
     * @param factor that the provider multiplies the gradient by
     */
    private void check(String what, Tensor gradient, double[] numbers, @Nullable TokenRows rows, double factor) {
        float[] actual = open.read(gradient);
        double allowed =
                tolerance() * (rows == null ? Math.max(1, Math.sqrt(c.queries().tokens()) / 4) : 1);
        for (int sample = 0; sample < SAMPLES; sample++) {
            int i = rows == null ? open.random().nextInt(numbers.length) : element(rows, numbers.length);
            double before = numbers[i];
            numbers[i] = before + STEP;
            double more = witness.loss(dO);
            numbers[i] = before - STEP;
            double less = witness.loss(dO);
            numbers[i] = before;
            assertEquals(factor * (more - less) / (2 * STEP), actual[i], allowed, what + "[" + i + "] of " + c);
        }
    }

    /** Draws an element of a token that is no padding: what is left there is nobody's business. */
    private int element(TokenRows rows, int count) {
        int width = count / rows.tokens();
        while (true) {
            int[] sequence = rows.rows().get(open.random().nextInt(rows.rows().size()));
            if (sequence.length > 0) {
                return sequence[open.random().nextInt(sequence.length)] * width
                        + open.random().nextInt(width);
            }
        }
    }

    /** Outputs and gradients are of size 1; 16 bits round output, weights and gradients, each to 2^-9, or 2^-12 of FLOAT16. */
    private double tolerance() {
        return c.dtype() == DType.BFLOAT16 ? 4e-2 : 8e-3;
    }

    private double[] draw(int count) {
        return open.normal(c.dtype(), count, 1);
    }

    private Tensor heads(TokenRows rows, int count, double[] values) {
        long batch = rows.lengths().size();
        Shape shape = switch (rows.format()) {
            case THD -> Shape.of(rows.tokens(), count, c.headDim());
            case BSHD -> Shape.of(batch, rows.padded(), count, c.headDim());
            case SBHD -> Shape.of(rows.padded(), batch, count, c.headDim());
        };
        return tensor(c.dtype(), shape, values);
    }

    private Tensor tensor(DType dtype, Shape shape, double[] values) {
        Tensor tensor = open.scope().tensor(dtype, shape);
        open.set(tensor, values);
        return tensor;
    }

    private Tensor cumulative(TokenRows rows) {
        int[] offsets = new int[rows.lengths().size() + 1];
        for (int i = 0; i + 1 < offsets.length; i++) {
            offsets[i + 1] = offsets[i] + rows.lengths().get(i);
        }
        return open.ints(offsets);
    }

    private static long length(TokenRows rows) {
        return rows.format() == QkvFormat.THD ? rows.longest() : rows.padded();
    }

    static Tensor present(@Nullable Tensor tensor) {
        if (tensor == null) {
            throw new AssertionError("no tensor");
        }
        return tensor;
    }
}
