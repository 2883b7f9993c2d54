package dev.chagres.models.esm;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.batch.Batch;
import dev.chagres.models.esm.Esm2ClassifierConfig.Problem;
import dev.chagres.pass.Pass;
import org.jspecify.annotations.Nullable;

/**
 * The loss of a few scores against numbers: the mean of {@code (x - t)^2}, or of {@code log(1 + exp(x)) - t x}. There are few, so the host computes it.
 *
 * <p>Threading: the device's thread.
 */
final class TargetLoss {
    private final Problem problem;
    private final int labels;
    /** Of the latest loss, before factors; empty before. */
    private float[] gradient = {};

    private @Nullable Tensor scores;

    TargetLoss(Esm2ClassifierConfig config) {
        problem = config.problem();
        labels = config.labels();
    }

    /**
     * Waits for the scores and returns the loss.
     *
     * @param x scores [T, columns], of which the first {@code labels} count
     * @param targets FLOAT32 [T, labels]; a row that begins with NaN leaves its token out
     * @return FLOAT32 [1], NaN when all tokens are left out
     * @throws IllegalArgumentException when shape or type of the targets do not fit
     */
    Tensor forward(Tensor x, Tensor targets, Pass pass) {
        if (targets.dtype() != DType.FLOAT32
                || targets.rank() != 2
                || targets.size(0) != x.size(0)
                || targets.size(1) != labels) {
            throw new IllegalArgumentException("targets: expected FLOAT32 [" + x.size(0) + ", " + labels + "], got "
                    + targets.dtype() + " " + targets.shape());
        }
        return forward(x, targets.toFloats(pass.stream()), pass);
    }

    /**
     * The same of a batch of a trainer.
     *
     * @param given INT32 [T]; {@link Batch#IGNORED} leaves its token out
     * @param targets what the others stand for
     */
    Tensor forward(Tensor x, Tensor given, Targets targets, Pass pass) {
        int[] numbers = given.toInts(pass.stream());
        float[] wanted = new float[numbers.length * labels];
        float[] row = new float[labels];
        for (int i = 0; i < numbers.length; i++) {
            if (numbers[i] == Batch.IGNORED) {
                wanted[i * labels] = Float.NaN;
            } else {
                targets.write(numbers[i], row);
                System.arraycopy(row, 0, wanted, i * labels, labels);
            }
        }
        return forward(x, wanted, pass);
    }

    private Tensor forward(Tensor x, float[] wanted, Pass pass) {
        float[] own = x.toFloats(pass.stream());
        int columns = Math.toIntExact(x.size(1));
        int rows = wanted.length / labels;
        int counted = 0;
        for (int row = 0; row < rows; row++) {
            counted += Float.isNaN(wanted[row * labels]) ? 0 : labels;
        }
        gradient = new float[own.length];
        double sum = 0;
        for (int row = 0; row < rows; row++) {
            for (int i = 0; i < labels && !Float.isNaN(wanted[row * labels]); i++) {
                double score = own[row * columns + i];
                double target = wanted[row * labels + i];
                sum += value(score, target) / counted;
                gradient[row * columns + i] = (float) (slope(score, target) / counted);
            }
        }
        scores = x;
        Tensor loss = pass.scope().tensor(DType.FLOAT32, 1);
        loss.set(pass.stream(), counted == 0 ? Float.NaN : (float) sum);
        return loss;
    }

    private double value(double score, double target) {
        return problem == Problem.REGRESSION
                ? (score - target) * (score - target)
                : Math.max(score, 0) - score * target + Math.log1p(Math.exp(-Math.abs(score)));
    }

    private double slope(double score, double target) {
        return problem == Problem.REGRESSION ? 2 * (score - target) : 1 / (1 + Math.exp(-score)) - target;
    }

    /**
     * Returns the gradient of the scores.
     *
     * @throws IllegalStateException when there was no loss
     */
    Tensor backward(float factor, @Nullable Tensor lossScale, Pass pass) {
        Tensor x = scores;
        if (x == null) {
            throw new IllegalStateException("backward: expected a call of loss(ids, targets, pass) before");
        }
        float scale = lossScale == null ? factor : factor * lossScale.toFloats(pass.stream())[0];
        float[] scaled = gradient.clone();
        for (int i = 0; i < scaled.length; i++) {
            scaled[i] *= scale;
        }
        scores = null;
        Tensor dx = pass.scope().like(x);
        dx.set(pass.stream(), scaled);
        return dx;
    }
}
