package dev.chagres.witness;

import java.util.List;
import org.apache.commons.math3.linear.RealMatrix;

/**
 * Rotates each pair {@code (x[i], x[i + d/2])} of a head by {@code position * 10000^(-2 i / d)}. Angles are rounded to
 * floats first: they are inputs that the layer stores in FP32.
 */
public final class RotaryWitness {
    private static final double BASE = 10_000;

    private final int headDim;
    private final List<int[]> sequences;

    /** Positions count in each sequence, a list of rows. */
    public RotaryWitness(int headDim, List<int[]> sequences) {
        this.headDim = headDim;
        this.sequences = sequences;
    }

    /** Returns {@code x} [tokens, h d] rotated. */
    public RealMatrix forward(RealMatrix x) {
        return rotate(x, 1);
    }

    /** Returns {@code dy} rotated back. */
    public RealMatrix backward(RealMatrix dy) {
        return rotate(dy, -1);
    }

    private RealMatrix rotate(RealMatrix x, int direction) {
        RealMatrix y = x.copy();
        int half = headDim / 2;
        for (int[] rows : sequences) {
            for (int position = 0; position < rows.length; position++) {
                for (int column = 0; column < x.getColumnDimension(); column++) {
                    int i = column % headDim;
                    double angle = (float) (position * Math.pow(BASE, -2.0 * (i % half) / headDim));
                    int partner = i < half ? column + half : column - half;
                    double sign = i < half ? -direction : direction;
                    y.setEntry(
                            rows[position],
                            column,
                            x.getEntry(rows[position], column) * Math.cos(angle)
                                    + sign * x.getEntry(rows[position], partner) * Math.sin(angle));
                }
            }
        }
        return y;
    }
}
