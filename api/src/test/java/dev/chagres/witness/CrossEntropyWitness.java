package dev.chagres.witness;

import org.apache.commons.math3.linear.MatrixUtils;
import org.apache.commons.math3.linear.RealMatrix;
import org.apache.commons.math3.util.FastMath;

/** The mean over labelled tokens of {@code logsumexp(z) - z[label]}, over the first classes of each row. */
public final class CrossEntropyWitness {
    private final RealMatrix logits;
    private final int[] labels;
    private final int classes;
    private final double[] logSumExp;
    private final double loss;
    private final int counted;

    /** Computes the loss. */
    public CrossEntropyWitness(RealMatrix logits, int[] labels, int classes) {
        this.logits = logits;
        this.labels = labels;
        this.classes = classes;
        logSumExp = new double[labels.length];
        double sum = 0;
        int count = 0;
        for (int token = 0; token < labels.length; token++) {
            logSumExp[token] = logSumExp(logits.getRow(token));
            if (isCounted(token)) {
                sum += logSumExp[token] - logits.getEntry(token, labels[token]);
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
        RealMatrix gradient = MatrixUtils.createRealMatrix(labels.length, logits.getColumnDimension());
        for (int token = 0; token < labels.length; token++) {
            for (int c = 0; c < classes && isCounted(token); c++) {
                double softmax = FastMath.exp(logits.getEntry(token, c) - logSumExp[token]);
                gradient.setEntry(token, c, factor * (softmax - (c == labels[token] ? 1 : 0)) / counted);
            }
        }
        return gradient;
    }
}
