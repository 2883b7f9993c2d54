package dev.chagres.cudnn;

import java.util.Arrays;
import java.util.function.DoubleUnaryOperator;

/** Attention of [B, H, Sq, D] and [B, H, Skv, D] and its gradients in double precision, with everything that an {@link AttentionBuilder} sets. */
final class AttentionModel {
    final int batch;
    final int heads;
    final int queries;
    final int keys;
    final int width;
    /** Heads of keys and values, each of which serves neighbours. */
    int keyHeads;
    /** What weights and gradients of scores are rounded to before they are multiplied. */
    DoubleUnaryOperator roundedWeight = x -> x;

    DoubleUnaryOperator roundedGradient = x -> x;
    double scale = 0.125;
    long before = Long.MAX_VALUE;
    long after = Long.MAX_VALUE;
    boolean bottomRight;
    double[] bias;
    double[] slopes;
    double[] sink;
    int[] queryLengths;
    int[] keyLengths;
    double[] dropped;
    double kept = 1;
    DoubleUnaryOperator change = x -> x;
    DoubleUnaryOperator changed = x -> 1;

    double[] o;
    double[] stats;
    double[] dq;
    double[] dk;
    double[] dv;
    double[] dbias;
    double[] dsink;
    double largestGradient;
    /** Of the softmax, before dropout. */
    private double[] shares;

    private double[] slope;

    AttentionModel(int batch, int heads, int queries, int keys, int width) {
        this.batch = batch;
        this.heads = heads;
        keyHeads = heads;
        this.queries = queries;
        this.keys = keys;
        this.width = width;
    }

    /** Where the row of a key begins that the head of a row of queries sees. */
    private int key(int row, int j) {
        int b = row / queries / heads;
        int h = row / queries % heads;
        return ((b * keyHeads + h * keyHeads / heads) * keys + j) * width;
    }

    private boolean sees(int b, int i, int j) {
        int rows = queryLengths == null ? queries : queryLengths[b];
        int columns = keyLengths == null ? keys : keyLengths[b];
        long place = bottomRight ? i + (long) columns - rows : i;
        return i < rows
                && j < columns
                && (after == Long.MAX_VALUE || j <= place + after)
                && (before == Long.MAX_VALUE || j >= place - before);
    }

    void forward(double[] q, double[] k, double[] v) {
        int rows = batch * heads * queries;
        shares = new double[rows * keys];
        slope = new double[rows * keys];
        stats = new double[rows];
        o = new double[rows * width];
        for (int row = 0; row < rows; row++) {
            int b = row / queries / heads;
            int h = row / queries % heads;
            int i = row % queries;
            double sum = sink == null ? 0 : Math.exp(sink[h]);
            for (int j = 0; j < keys; j++) {
                if (!sees(b, i, j)) {
                    continue;
                }
                double x = 0;
                for (int d = 0; d < width; d++) {
                    x += q[row * width + d] * k[key(row, j) + d];
                }
                x *= scale;
                slope[row * keys + j] = changed.applyAsDouble(x);
                x = change.applyAsDouble(x);
                x += bias == null ? 0 : bias[i * keys + j];
                x += slopes == null ? 0 : slopes[h] * (j - i);
                shares[row * keys + j] = Math.exp(x);
                sum += shares[row * keys + j];
            }
            stats[row] = Math.log(sum);
            for (int j = 0; j < keys && sum != 0; j++) {
                shares[row * keys + j] /= sum;
                for (int d = 0; d < width; d++) {
                    o[row * width + d] += weight(row * keys + j) * v[key(row, j) + d];
                }
            }
        }
    }

    private double weight(int index) {
        return roundedWeight.applyAsDouble(dropped == null ? shares[index] : shares[index] * dropped[index] * kept);
    }

    double largestShare() {
        return Arrays.stream(shares).max().orElseThrow();
    }

    void backward(double[] dy, double[] q, double[] k, double[] v) {
        dq = new double[q.length];
        dk = new double[k.length];
        dv = new double[v.length];
        dbias = new double[queries * keys];
        dsink = new double[heads];
        for (int row = 0; row < batch * heads * queries; row++) {
            double along = 0;
            for (int d = 0; d < width; d++) {
                along += o[row * width + d] * dy[row * width + d];
            }
            if (sink != null) {
                dsink[row / queries % heads] -= Math.exp(sink[row / queries % heads] - stats[row]) * along;
            }
            for (int j = 0; j < keys; j++) {
                int key = key(row, j);
                double against = 0;
                for (int d = 0; d < width; d++) {
                    dv[key + d] += weight(row * keys + j) * dy[row * width + d];
                    against += dy[row * width + d] * v[key + d];
                }
                double stays = dropped == null ? 1 : dropped[row * keys + j] * kept;
                double dx = shares[row * keys + j] * (against * stays - along);
                dbias[row % queries * keys + j] += dx;
                double exact = scale * dx * slope[row * keys + j];
                largestGradient = Math.max(largestGradient, Math.abs(exact));
                double ds = roundedGradient.applyAsDouble(exact);
                for (int d = 0; d < width; d++) {
                    dq[row * width + d] += ds * k[key + d];
                    dk[key + d] += ds * q[row * width + d];
                }
            }
        }
    }
}
