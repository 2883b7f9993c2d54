package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Numbers;

/**
 * Dynamic loss scaling on the device: the host need not wait to know whether gradients are finite.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code ops_loss_scale_clip}, {@code ops_loss_scale_update}, {@code ops_loss_scale_restore} in {@code ops.h}; Micikevicius et al., Mixed
 * precision training (2018).
 */
public final class LossScale {
    private LossScale() {}

    /**
     * Enqueues {@code norm = norm / lossScale} and {@code factor = min(1, maxNorm / (norm + 1e-6)) / lossScale}: the factor that unscales
     * and clips gradients. A norm that is not finite gives factor 0 and sets skip.
     *
     * @param norm FLOAT32 [1], of the scaled gradients; receives that of the unscaled ones
     * @param lossScale FLOAT32 [1]
     * @param maxNorm above 0; {@link Float#POSITIVE_INFINITY} never clips
     * @param factor FLOAT32 [1]
     * @param skip INT32 [1]: receives 1 when the norm is not finite, and else stays as it is
     * @throws IllegalArgumentException when shapes, types, maxNorm or devices do not fit, or tensors share memory
     */
    public static void clip(Tensor norm, Tensor lossScale, float maxNorm, Tensor factor, Tensor skip, Stream stream) {
        Checks.vector(stream, "norm", norm, DType.FLOAT32, 1);
        Checks.vector(stream, "lossScale", lossScale, DType.FLOAT32, 1);
        Checks.vector(stream, "factor", factor, DType.FLOAT32, 1);
        Checks.vector(stream, "skip", skip, DType.INT32, 1);
        if (!(maxNorm > 0)) {
            throw new IllegalArgumentException("maxNorm: expected a number above 0, got " + maxNorm);
        }
        Checks.written("norm", norm, "lossScale", lossScale);
        Checks.written("factor", factor, "norm", norm, "lossScale", lossScale);
        Checks.written("skip", skip, "norm", norm, "lossScale", lossScale);
        Checks.apart("skip", skip, "factor", factor);
        Status.ops(
                Ops.ops_loss_scale_clip(
                        norm.address(),
                        lossScale.address(),
                        maxNorm,
                        factor.address(),
                        skip.address(),
                        stream.handle()),
                "ops_loss_scale_clip");
    }

    /**
     * Enqueues the end of a step. Where skip is 1: {@code lossScale = backoffFactor lossScale}, {@code counts[0] = 0},
     * {@code counts[1] = counts[1] + 1}. Else {@code step = step + 1}, {@code counts[0] = counts[0] + 1} and, when that reaches
     * growthInterval, {@code lossScale = growthFactor lossScale} and {@code counts[0] = 0}. If the new scale is not a normal FP32 number,
     * the scale stays.
     *
     * @param skip INT32 [1]
     * @param lossScale FLOAT32 [1]
     * @param counts INT32 [2]: steps taken since the scale changed last, steps skipped so far
     * @param step INT32 [1]: the steps that an optimizer has taken
     * @param growthFactor finite, above 1
     * @param backoffFactor above 0, below 1
     * @param growthInterval at least 1
     * @throws IllegalArgumentException when shapes, types, numbers or devices do not fit, or tensors share memory
     */
    public static void update(
            Tensor skip,
            Tensor lossScale,
            Tensor counts,
            Tensor step,
            float growthFactor,
            float backoffFactor,
            int growthInterval,
            Stream stream) {
        Checks.vector(stream, "skip", skip, DType.INT32, 1);
        Checks.vector(stream, "lossScale", lossScale, DType.FLOAT32, 1);
        Checks.vector(stream, "counts", counts, DType.INT32, 2);
        Checks.vector(stream, "step", step, DType.INT32, 1);
        checkNumbers(growthFactor, backoffFactor, growthInterval);
        Checks.written("lossScale", lossScale, "skip", skip);
        Checks.written("counts", counts, "skip", skip, "lossScale", lossScale);
        Checks.written("step", step, "skip", skip, "lossScale", lossScale);
        Checks.apart("step", step, "counts", counts);
        Status.ops(
                Ops.ops_loss_scale_update(
                        skip.address(),
                        lossScale.address(),
                        counts.address(),
                        step.address(),
                        growthFactor,
                        backoffFactor,
                        growthInterval,
                        stream.handle()),
                "ops_loss_scale_update");
    }

    /**
     * Enqueues {@code values = saved} if skip is 1, so that a skipped step restores values; else they stay as they are.
     *
     * @param skip INT32 [1]
     * @param saved FLOAT32
     * @param values FLOAT32, of the shape of saved
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or tensors share memory
     */
    public static void restore(Tensor skip, Tensor saved, Tensor values, Stream stream) {
        Checks.vector(stream, "skip", skip, DType.INT32, 1);
        Checks.typed(stream, "saved", saved, DType.FLOAT32);
        Checks.like(stream, "values", values, saved);
        Checks.written("values", values, "skip", skip, "saved", saved);
        Status.ops(
                Ops.ops_loss_scale_restore(
                        skip.address(), saved.address(), values.address(), values.count(), stream.handle()),
                "ops_loss_scale_restore");
    }

    private static void checkNumbers(float growthFactor, float backoffFactor, int growthInterval) {
        if (!(growthFactor > 1) || Float.isInfinite(growthFactor)) {
            throw new IllegalArgumentException("growthFactor: expected a finite number above 1, got " + growthFactor);
        }
        Numbers.share("backoffFactor", backoffFactor);
        Checks.atLeastOne("growthInterval", growthInterval);
    }
}
