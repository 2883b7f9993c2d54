package dev.chagres.witness;

import dev.chagres.layer.NormConfig;
import dev.chagres.te.Normalization.Gamma;
import org.apache.commons.math3.linear.BlockRealMatrix;
import org.apache.commons.math3.linear.RealMatrix;

/**
 * Layer norm {@code (x - mean) / sqrt(variance + epsilon) * weight + bias} and RMS norm
 * {@code x / sqrt(mean(x^2) + epsilon) * weight}, over each row; with {@code 1 + weight} where that is centred on zero.
 */
public final class NormWitness {
    private final NormConfig config;
    private final Weights weights;
    private final String prefix;
    private RealMatrix normed;
    private double[] mean;
    private double[] inverse;

    /** Uses the weights {@code prefix + "weight"} and, for layer norm, {@code prefix + "bias"}. */
    public NormWitness(NormConfig config, Weights weights, String prefix) {
        this.config = config;
        this.weights = weights;
        this.prefix = prefix;
    }

    /** Returns y. */
    public RealMatrix forward(RealMatrix x) {
        int rows = x.getRowDimension();
        int columns = x.getColumnDimension();
        mean = new double[rows];
        inverse = new double[rows];
        normed = new BlockRealMatrix(rows, columns);
        RealMatrix y = new BlockRealMatrix(rows, columns);
        double[] weight = factors();
        double[] bias = hasBias() ? weights.vector(prefix + "bias") : new double[columns];
        for (int row = 0; row < rows; row++) {
            double[] values = x.getRow(row);
            mean[row] = hasBias() ? average(values) : 0;
            double squares = 0;
            for (double value : values) {
                squares += (value - mean[row]) * (value - mean[row]);
            }
            inverse[row] = 1 / Math.sqrt(squares / columns + config.epsilon());
            for (int column = 0; column < columns; column++) {
                double hat = (values[column] - mean[row]) * inverse[row];
                normed.setEntry(row, column, hat);
                y.setEntry(row, column, hat * weight[column] + bias[column]);
            }
        }
        return y;
    }

    /** Returns the gradient of x and leaves those of the weights. */
    public RealMatrix backward(RealMatrix dy) {
        int rows = dy.getRowDimension();
        int columns = dy.getColumnDimension();
        weights.putGradient(prefix + "weight", Rows.sum(Rows.combine(dy, normed, (a, b) -> a * b)));
        if (hasBias()) {
            weights.putGradient(prefix + "bias", Rows.sum(dy));
        }
        double[] weight = factors();
        RealMatrix dx = new BlockRealMatrix(rows, columns);
        for (int row = 0; row < rows; row++) {
            double[] dhat = new double[columns];
            double[] product = new double[columns];
            for (int column = 0; column < columns; column++) {
                dhat[column] = dy.getEntry(row, column) * weight[column];
                product[column] = dhat[column] * normed.getEntry(row, column);
            }
            double shift = hasBias() ? average(dhat) : 0;
            double tilt = average(product);
            for (int column = 0; column < columns; column++) {
                dx.setEntry(row, column, inverse[row] * (dhat[column] - shift - normed.getEntry(row, column) * tilt));
            }
        }
        return dx;
    }

    /** Returns the mean of each row of the last input. */
    public double[] mean() {
        return mean;
    }

    /** Returns one over the deviation of each row of the last input. */
    public double[] inverseDeviation() {
        return inverse;
    }

    private double[] factors() {
        double[] factors = weights.vector(prefix + "weight").clone();
        for (int i = 0; i < factors.length && config.gamma() == Gamma.ZERO_CENTERED; i++) {
            factors[i] += 1;
        }
        return factors;
    }

    private boolean hasBias() {
        return config.kind() == NormConfig.Kind.LAYER_NORM;
    }

    private static double average(double[] values) {
        double sum = 0;
        for (double value : values) {
            sum += value;
        }
        return sum / values.length;
    }
}
