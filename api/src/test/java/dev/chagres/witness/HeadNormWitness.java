package dev.chagres.witness;

import dev.chagres.layer.NormConfig;
import dev.chagres.layer.QkNorm;
import org.apache.commons.math3.linear.BlockRealMatrix;
import org.apache.commons.math3.linear.RealMatrix;
import org.jspecify.annotations.Nullable;

/** The norm of each head of [tokens, h d]: RMS norm, layer norm, or {@code x / sqrt(sum(x^2) + epsilon)}. */
final class HeadNormWitness {
    private final int headDim;
    private final double epsilon;
    /** Null for the L2 norm. */
    private final @Nullable NormWitness norm;

    private RealMatrix x;

    HeadNormWitness(QkNorm config, int headDim, Weights weights, String prefix) {
        this.headDim = headDim;
        epsilon = config.epsilon();
        norm = switch (config.kind()) {
            case RMS_NORM ->
                new NormWitness(NormConfig.rmsNorm(headDim).withEpsilon(config.epsilon()), weights, prefix);
            case LAYER_NORM ->
                new NormWitness(NormConfig.layerNorm(headDim).withEpsilon(config.epsilon()), weights, prefix);
            case L2, NONE -> null;
        };
    }

    RealMatrix forward(RealMatrix heads) {
        x = shaped(heads, headDim);
        RealMatrix y = norm == null ? unit() : norm.forward(x);
        return shaped(y, heads.getColumnDimension());
    }

    RealMatrix backward(RealMatrix dheads) {
        RealMatrix dy = shaped(dheads, headDim);
        return shaped(norm == null ? unitGradient(dy) : norm.backward(dy), dheads.getColumnDimension());
    }

    private RealMatrix unit() {
        RealMatrix y = x.copy();
        for (int row = 0; row < y.getRowDimension(); row++) {
            y.setRowVector(row, x.getRowVector(row).mapMultiply(inverseLength(row)));
        }
        return y;
    }

    private RealMatrix unitGradient(RealMatrix dy) {
        RealMatrix dx = dy.copy();
        for (int row = 0; row < dy.getRowDimension(); row++) {
            double inverse = inverseLength(row);
            double along = x.getRowVector(row).dotProduct(dy.getRowVector(row)) * inverse * inverse;
            dx.setRowVector(
                    row,
                    dy.getRowVector(row)
                            .subtract(x.getRowVector(row).mapMultiply(along))
                            .mapMultiply(inverse));
        }
        return dx;
    }

    private double inverseLength(int row) {
        return 1 / Math.sqrt(x.getRowVector(row).dotProduct(x.getRowVector(row)) + epsilon);
    }

    /** Returns the same entries, row by row, in rows of {@code columns}. */
    private static RealMatrix shaped(RealMatrix from, int columns) {
        int old = from.getColumnDimension();
        RealMatrix to = new BlockRealMatrix(from.getRowDimension() * old / columns, columns);
        for (int i = 0; i < from.getRowDimension() * old; i++) {
            to.setEntry(i / columns, i % columns, from.getEntry(i / old, i % old));
        }
        return to;
    }
}
