package dev.chagres.witness;

import java.util.Arrays;
import org.apache.commons.math3.linear.BlockRealMatrix;
import org.apache.commons.math3.linear.RealMatrix;
import org.apache.commons.math3.util.FastMath;

/**
 * The mean over labelled tokens of {@code -sum over c of q[c] log softmax(z)[c]}, over the first classes of each row, where the
 * target q is {@code smoothing / classes} everywhere and {@code 1 - smoothing} more at the label.
 */
public final class CrossEntropyWitness {
    private final RealMatrix logits;
    private final int[] labels;
    private final int classes;
    private final double smoothing;
    private final double[] logSumExp;
    private final double[] losses;
    private final double loss;
    private final int counted;

    /** Computes the loss without smoothing. */
    public CrossEntropyWitness(RealMatrix logits, int[] labels, int classes) {
        this(logits, labels, classes, 0);
    }

    /** Computes the loss. */
    public CrossEntropyWitness(RealMatrix logits, int[] labels, int classes, double smoothing) {
        this.smoothing = smoothing;
        losses = new double[labels.length];
        this.logits = logits;
        this.labels = labels;
        this.classes = classes;
        logSumExp = new double[labels.length];
        double sum = 0;
        int count = 0;
        for (int token = 0; token < labels.length; token++) {
            logSumExp[token] = logSumExp(logits.getRow(token));
            if (isCounted(token)) {
                for (int c = 0; c < classes; c++) {
                    losses[token] += target(token, c) * (logSumExp[token] - logits.getEntry(token, c));
                }
                sum += losses[token];
                count++;
            }
        }
        counted = count;
        loss = count == 0 ? 0 : sum / count;
    }

    private double logSumExp(double[] row) {
        double largest = Double.NEGATIVE_INFINITY;
        for (int c = 0; c < classes; c++) {
            largest = Math.max(largest, row[c]);
        }
        double sum = 0;
        for (int c = 0; c < classes; c++) {
            sum += FastMath.exp(row[c] - largest);
        }
        return largest + FastMath.log(sum);
    }

    private double target(int token, int c) {
        return smoothing / classes + (c == labels[token] ? 1 - smoothing : 0);
    }

    /** Returns the loss of each token, 0 without a label. */
    public double[] losses() {
        return losses;
    }

    private boolean isCounted(int token) {
        return labels[token] >= 0 && labels[token] < classes;
    }

    /** Returns the log-sum-exp of each token. */
    public double[] logSumExp() {
        return logSumExp;
    }

    /** Returns the loss. */
    public double loss() {
        return loss;
    }

    /** Returns the number of labelled tokens. */
    public int counted() {
        return counted;
    }

    /** Returns {@code factor * dloss/dlogits}. */
    public RealMatrix gradient(double factor) {
        double[] factors = new double[labels.length];
        Arrays.fill(factors, counted == 0 ? 0 : factor / counted);
        return gradient(factors);
    }

    /** Returns {@code factors[t] * dl[t]/dlogits[t]}. */
    public RealMatrix gradient(double[] factors) {
        RealMatrix gradient = new BlockRealMatrix(labels.length, logits.getColumnDimension());
        for (int token = 0; token < labels.length; token++) {
            for (int c = 0; c < classes && isCounted(token); c++) {
                double softmax = FastMath.exp(logits.getEntry(token, c) - logSumExp[token]);
                gradient.setEntry(token, c, factors[token] * (softmax - target(token, c)));
            }
        }
        return gradient;
    }
}
