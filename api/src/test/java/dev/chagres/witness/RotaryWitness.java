package dev.chagres.witness;

import dev.chagres.te.FusedRope.Pairing;
import java.util.List;
import org.apache.commons.math3.linear.RealMatrix;

/**
 * Rotates the elements of each pair by {@code (position + start) * frequency}. Angles are rounded to floats first: they are
 * inputs that the layer stores in FP32.
 */
public final class RotaryWitness {
    private static final double BASE = 10_000;

    private final int headDim;
    private final double[] frequencies;
    private final Pairing pairing;
    private final List<int[]> sequences;
    private final int[] starts;

    /** Rotates whole heads by halves, with base 10,000. Positions count in each sequence, a list of rows. */
    public RotaryWitness(int headDim, List<int[]> sequences) {
        this(headDim, ofBase(headDim, BASE), Pairing.HALVES, sequences, new int[sequences.size()]);
    }

    /** Rotates the first {@code 2 * frequencies.length} elements of a head; positions count from {@code starts}. */
    public RotaryWitness(int headDim, double[] frequencies, Pairing pairing, List<int[]> sequences, int... starts) {
        this.headDim = headDim;
        this.frequencies = frequencies.clone();
        this.pairing = pairing;
        this.sequences = sequences;
        this.starts = starts.clone();
    }

    /** Returns {@code base^(-2 i / rotatedDim)}. */
    public static double[] ofBase(int rotatedDim, double base) {
        double[] frequencies = new double[rotatedDim / 2];
        for (int i = 0; i < frequencies.length; i++) {
            frequencies[i] = Math.pow(base, -2.0 * i / rotatedDim);
        }
        return frequencies;
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
        for (int sequence = 0; sequence < sequences.size(); sequence++) {
            int[] rows = sequences.get(sequence);
            for (int i = 0; i < rows.length; i++) {
                for (int head = 0; head < x.getColumnDimension() / headDim; head++) {
                    rotateHead(x, y, rows[i], head * headDim, (i + starts[sequence]), direction);
                }
            }
        }
        return y;
    }

    private void rotateHead(RealMatrix x, RealMatrix y, int row, int start, int position, int direction) {
        int half = frequencies.length;
        for (int pair = 0; pair < half; pair++) {
            int first = start + (pairing == Pairing.HALVES ? pair : 2 * pair);
            int second = start + (pairing == Pairing.HALVES ? pair + half : 2 * pair + 1);
            double angle = direction * (double) (float) (position * frequencies[pair]);
            double a = x.getEntry(row, first);
            double b = x.getEntry(row, second);
            y.setEntry(row, first, a * Math.cos(angle) - b * Math.sin(angle));
            y.setEntry(row, second, b * Math.cos(angle) + a * Math.sin(angle));
        }
    }
}
