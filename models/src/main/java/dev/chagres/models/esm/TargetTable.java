package dev.chagres.models.esm;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.models.esm.Esm2ClassifierConfig.Problem;
import dev.chagres.ops.ElementLoss;
import dev.chagres.ops.Elementwise;
import dev.chagres.ops.Embedding;
import dev.chagres.ops.RowSum;
import dev.chagres.ops.Rows;
import dev.chagres.pass.Pass;
import dev.chagres.te.Output;
import java.util.Arrays;
import org.jspecify.annotations.Nullable;

/**
 * Targets of which a label is the number of a row. So the device finds them by itself, and computes the loss: column by column the mean over the
 * labelled tokens, then the mean over the columns.
 *
 * <p>Threading: {@link #write} is thread-safe.
 *
 * @param rows numbers, a column for each score
 */
record TargetTable(float[][] rows) implements Targets {
    /** Less than any number of tokens, so that none divides by 0. */
    private static final float TINY = 1e-30f;

    @Override
    public void write(int label, float[] row) {
        System.arraycopy(rows[label], 0, row, 0, row.length);
    }

    /**
     * The loss of scores with {@code columns} columns, of which the first ones are compared.
     *
     * <p>Threading: the device's thread.
     */
    static final class Loss {
        private final boolean squared;
        private final int columns;
        private final Tensor numbers;
        /** 1 where a number counts: a label that is none reads 0. */
        private final Tensor counted;
        /** 1 / labels in columns that count, 0 in others. */
        private final Tensor share;

        private final Tensor tiny;
        private final Tensor zeros;

        /** Of the latest loss; null before. */
        private @Nullable Tensor scores;

        private @Nullable Tensor x;
        private @Nullable Tensor target;
        private @Nullable Tensor weight;
        private @Nullable Tensor perColumn;

        Loss(TargetTable table, Esm2ClassifierConfig config, int columns, Scope scope) {
            this.columns = columns;
            squared = config.problem() == Problem.REGRESSION;
            int labels = config.labels();
            int count = table.rows.length;
            float[] all = new float[count * columns];
            float[] ones = new float[count * columns];
            for (int i = 0; i < count; i++) {
                System.arraycopy(table.rows[i], 0, all, i * columns, labels);
                Arrays.fill(ones, i * columns, i * columns + labels, 1);
            }
            float[] shares = new float[columns];
            Arrays.fill(shares, 0, labels, 1f / labels);
            float[] tinies = new float[columns];
            Arrays.fill(tinies, TINY);
            numbers = scope.tensor(DType.FLOAT32, count, columns);
            counted = scope.tensor(DType.FLOAT32, count, columns);
            share = scope.tensor(DType.FLOAT32, columns);
            tiny = scope.tensor(DType.FLOAT32, columns);
            zeros = scope.tensor(DType.INT32, columns);
            numbers.set(scope.stream(), all);
            counted.set(scope.stream(), ones);
            share.set(scope.stream(), shares);
            tiny.set(scope.stream(), tinies);
            zeros.set(scope.stream(), new int[columns]);
        }

        /** Enqueues the loss of scores [T, columns] and labels INT32 [T], and returns it: FLOAT32 [1], 0 where no token is labelled. */
        Tensor forward(Tensor logits, Tensor labels, Pass pass) {
            var stream = pass.stream();
            long tokens = logits.size(0);
            Tensor own = pass.scope().tensor(DType.FLOAT32, tokens, columns);
            Elementwise.cast(logits, own, stream);
            Tensor wanted = pass.scope().tensor(DType.FLOAT32, tokens, columns);
            Embedding.forward(numbers, 0, labels, wanted, stream);
            Tensor ones = pass.scope().tensor(DType.FLOAT32, tokens, columns);
            Embedding.forward(counted, 0, labels, ones, stream);
            Tensor each = pass.scope().tensor(DType.FLOAT32, tokens, columns);
            if (squared) {
                ElementLoss.squaredError(own, wanted, each, stream);
            } else {
                ElementLoss.binaryCrossEntropy(own, wanted, each, stream);
            }
            Elementwise.multiply(each, ones, each, stream);
            Tensor sum = pass.scope().tensor(DType.FLOAT32, columns);
            RowSum.rowSum(each, sum, Output.OVERWRITE, stream);
            Tensor divided = pass.scope().tensor(DType.FLOAT32, columns);
            RowSum.rowSum(ones, divided, Output.OVERWRITE, stream);
            Elementwise.add(divided, tiny, divided, stream);
            Elementwise.reciprocal(divided, divided, stream);
            Elementwise.multiply(divided, share, divided, stream);
            Elementwise.multiply(sum, divided, sum, stream);
            Tensor loss = pass.scope().tensor(DType.FLOAT32, 1);
            RowSum.rowSum(pass.scope().view(sum, 0, columns, 1), loss, Output.OVERWRITE, stream);
            scores = logits;
            x = own;
            target = wanted;
            weight = ones;
            perColumn = divided;
            return loss;
        }

        /**
         * Enqueues the gradient of the scores and returns it.
         *
         * @throws IllegalStateException when there was no loss
         */
        Tensor backward(float factor, @Nullable Tensor lossScale, Pass pass) {
            Tensor logits = present(scores);
            Tensor own = present(x);
            Tensor ones = present(weight);
            var stream = pass.stream();
            Tensor each = pass.scope().tensor(DType.FLOAT32, columns);
            Elementwise.add(present(perColumn), zeroRow(pass), each, stream);
            if (lossScale != null) {
                scale(each, lossScale, pass);
            }
            if (factor != 1) { // In a graph it is 1, and the micro-batch's share is in lossScale.
                Tensor given = pass.scope().tensor(DType.FLOAT32, 1);
                given.set(stream, factor);
                scale(each, given, pass);
            }
            Tensor dy = pass.scope().tensor(DType.FLOAT32, logits.size(0), columns);
            Elementwise.subtract(ones, ones, dy, stream);
            Elementwise.biasAdd(dy, each, null, dy, stream);
            Elementwise.multiply(dy, ones, dy, stream);
            if (squared) {
                ElementLoss.squaredErrorBackward(dy, own, present(target), dy, stream);
            } else {
                ElementLoss.binaryCrossEntropyBackward(dy, own, present(target), dy, stream);
            }
            scores = null;
            if (logits.dtype() == DType.FLOAT32) {
                return dy;
            }
            Tensor dx = pass.scope().like(logits);
            Elementwise.cast(dy, dx, stream);
            return dx;
        }

        private Tensor zeroRow(Pass pass) {
            Tensor row = pass.scope().tensor(DType.FLOAT32, columns);
            Elementwise.subtract(share, share, row, pass.stream());
            return row;
        }

        /** Multiplies by a number of the device's. */
        private void scale(Tensor row, Tensor number, Pass pass) {
            Tensor all = pass.scope().tensor(DType.FLOAT32, columns, 1);
            Rows.gatherRows(pass.scope().view(number, 0, 1, 1), zeros, all, pass.stream());
            Elementwise.multiply(row, pass.scope().view(all, 0, columns), row, pass.stream());
        }

        private static Tensor present(@Nullable Tensor tensor) {
            if (tensor == null) {
                throw new IllegalStateException("backward: expected a call of loss(ids, targets, pass) before");
            }
            return tensor;
        }
    }
}
