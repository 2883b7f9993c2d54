package dev.chagres.witness;

import dev.chagres.attention.AttentionMask;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.te.SoftmaxType;
import java.util.Objects;
import java.util.function.Supplier;
import org.apache.commons.math3.linear.RealMatrix;
import org.jspecify.annotations.Nullable;

/**
 * What becomes of the product {@code p = q_i . k_j} on its way to the softmax, {@code s = c tanh(scale (p + a) / c) - slope |i + d - j| + b},
 * where a is a bias before the scale, b one behind it, and c a soft cap; and what the sum of the softmax has besides. Each may be absent.
 */
public final class ScoreWitness {
    private final double scale;
    private final double cap;
    private final boolean countsFromLastKey;
    private final SoftmaxType softmax;
    private double[] slopes = new double[0];
    private @Nullable ScoreGrid bias;
    private boolean preScale;
    private @Nullable ScoreGrid mask;
    private Supplier<double[]> sinks = () -> new double[0];
    private @Nullable ScoreGrid biasGradient;
    private @Nullable ScoreGrid biasSummands;
    private double[] sinksGradient = new double[0];
    private double[] sinksSummands = new double[0];

    private ScoreWitness(double scale, double cap, boolean countsFromLastKey, SoftmaxType softmax) {
        this.scale = scale;
        this.cap = cap;
        this.countsFromLastKey = countsFromLastKey;
        this.softmax = softmax;
    }

    /** Multiplies products by {@code scale}, and changes scores no further. */
    static ScoreWitness plain(double scale) {
        return new ScoreWitness(scale, 0, true, SoftmaxType.VANILLA);
    }

    /** Has scale, soft cap and softmax of {@code config}, and counts positions of ALiBi as its mask says. */
    static ScoreWitness of(AttentionConfig config) {
        boolean topLeft = config.mask().kind() == AttentionMask.Kind.CAUSAL;
        return new ScoreWitness(config.scale(), config.softcap(), !topLeft, config.softmaxType());
    }

    /** Subtracts linear biases from now on: a slope of each head. */
    public void alibi(double... newSlopes) {
        slopes = newSlopes;
    }

    /** Adds a bias behind the scale from now on. */
    public void bias(ScoreGrid newBias) {
        bias = newBias;
        preScale = false;
    }

    /** Adds a bias before the scale from now on. */
    public void preScaleBias(ScoreGrid newBias) {
        bias = newBias;
        preScale = true;
    }

    /** Hides keys where {@code newMask} is not 0 from now on. */
    public void mask(ScoreGrid newMask) {
        mask = newMask;
    }

    /** Reads the sinks of a learnable softmax here, one of each head. */
    void sinks(Supplier<double[]> newSinks) {
        sinks = newSinks;
    }

    /** Returns whether the softmax has sinks that are learned. */
    boolean hasSinks() {
        return softmax == SoftmaxType.LEARNABLE;
    }

    boolean hides(int sequence, int head, int query, int key) {
        return mask != null && mask.at(sequence, head, query, key) != 0;
    }

    /** Returns the logarithm of what the sum of the softmax has besides. */
    double logOther(int head) {
        return switch (softmax) {
            case VANILLA -> Double.NEGATIVE_INFINITY;
            case OFF_BY_ONE -> 0;
            case LEARNABLE -> sinks.get()[head];
        };
    }

    /** Returns the scores of one head of one sequence. */
    RealMatrix scores(RealMatrix products, int sequence, int head) {
        RealMatrix scores = products.copy();
        int shift = countsFromLastKey ? products.getColumnDimension() - products.getRowDimension() : 0;
        double slope = slopes.length == 0 ? 0 : slopes[head];
        for (int i = 0; i < scores.getRowDimension(); i++) {
            for (int j = 0; j < scores.getColumnDimension(); j++) {
                double added = bias == null ? 0 : bias.at(sequence, head, i, j);
                double scaled = scale * (products.getEntry(i, j) + (preScale ? added : 0));
                double capped = cap == 0 ? scaled : cap * Math.tanh(scaled / cap);
                scores.setEntry(i, j, capped - slope * Math.abs(i + shift - j) + (preScale ? 0 : added));
            }
        }
        return scores;
    }

    /** Forgets gradients. */
    void beginGradients(int heads) {
        biasGradient = bias == null ? null : bias.zeros();
        biasSummands = bias == null ? null : bias.zeros();
        sinksGradient = new double[heads];
        sinksSummands = new double[heads];
    }

    /**
     * Returns the gradient of the products and adds that of the bias.
     *
     * @param dscores gradient of the scores
     * @param summands sums of the magnitudes of what each of {@code dscores} is the sum of; then those of the products' gradient
     */
    RealMatrix gradient(RealMatrix products, RealMatrix dscores, RealMatrix summands, int sequence, int head) {
        RealMatrix gradient = dscores.copy();
        for (int i = 0; i < gradient.getRowDimension(); i++) {
            for (int j = 0; j < gradient.getColumnDimension(); j++) {
                double added = bias == null || !preScale ? 0 : bias.at(sequence, head, i, j);
                double tangent = cap == 0 ? 0 : Math.tanh(scale * (products.getEntry(i, j) + added) / cap);
                double factor = scale * (1 - tangent * tangent);
                gradient.multiplyEntry(i, j, factor);
                if (biasGradient != null && biasSummands != null) {
                    double ofBias = preScale ? factor : 1;
                    biasGradient.add(ofBias * dscores.getEntry(i, j), sequence, head, i, j);
                    biasSummands.add(ofBias * summands.getEntry(i, j), sequence, head, i, j);
                }
                summands.multiplyEntry(i, j, factor);
            }
        }
        return gradient;
    }

    /** Adds to the gradient of a head's sink, and the magnitudes of what it is the sum of. */
    void addSinkGradient(double gradient, double summands, int head) {
        sinksGradient[head] += gradient;
        sinksSummands[head] += summands;
    }

    /** Returns the gradient of the bias that the last backward pass has left. */
    public ScoreGrid biasGradient() {
        return Objects.requireNonNull(biasGradient);
    }

    /** Returns of each element of the bias' gradient the sum of the magnitudes of its summands. */
    public ScoreGrid biasSummands() {
        return Objects.requireNonNull(biasSummands);
    }

    /** Returns of the gradient of each sink the sum of the magnitudes of its summands. */
    public double[] sinksSummands() {
        return sinksSummands;
    }

    double[] sinksGradient() {
        return sinksGradient;
    }
}
