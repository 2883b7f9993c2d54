package dev.chagres.ops;

import dev.chagres.QuantizedTensor;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.internal.Checks;
import dev.chagres.internal.QuantizedChecks;
import dev.chagres.te.Activation;
import dev.chagres.te.ClampedSwiglu;

/**
 * The gradient of a gated activation in FP8, rounded before it is cast: one kernel for what {@link
 * Activation#backward(Tensor, Tensor, Tensor, Stream)} and {@link dev.chagres.te.Cast#quantize(Tensor, QuantizedTensor, Stream)} do by
 * two, as TE for PyTorch calls them. A number beside a tie of the rounding may differ by a step of FP8. {@link
 * dev.chagres.te.Transpose#dactCastTranspose} does not round.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code ops_gated_gradient} in {@code ops.h}.
 */
public final class GatedGradient {
    /** Rows and columns are multiples of this. */
    private static final long STEP = 16;

    private GatedGradient() {}

    /**
     * Enqueues {@code dx = [dy f'(a) b, dy f(a)]} of {@code x = [a, b]}, rounded to its type, and {@code q = dx scale}, clamped to the
     * largest number of q.
     *
     * @param activation a gated one; {@link Activation#CLAMPED_SWIGLU} with TE's numbers
     * @param dy gradient of the activation's output, [M, K], M and K multiples of 16
     * @param x the activation's input [a, b], [M, 2K], in the type of dy
     * @param q [M, 2K], scaled by {@link dev.chagres.Scaling#TENSOR}, with scale, rowwise and columnwise data; its amax, if it has
     *     one, is raised to the largest magnitude of dx, for which NaN does not count; its scale inverse receives 1 / scale. dy, x and
     *     the data of q begin at multiples of 16 bytes
     * @throws IllegalArgumentException when the activation has no gate, shapes, types, parts or devices do not fit, or q shares memory
     */
    public static void cast(Activation activation, Tensor dy, Tensor x, QuantizedTensor q, Stream stream) {
        cast(gate(activation), ClampedSwiglu.standard(), dy, x, q, stream);
    }

    /**
     * Enqueues the same of a clamped SwiGLU with numbers of its own.
     *
     * @throws IllegalArgumentException as there
     */
    public static void cast(ClampedSwiglu activation, Tensor dy, Tensor x, QuantizedTensor q, Stream stream) {
        cast(Ops.OPS_CLAMPED_SWIGLU(), Checks.given("activation", activation), dy, x, q, stream);
    }

    private static void cast(int gate, ClampedSwiglu clamped, Tensor dy, Tensor x, QuantizedTensor q, Stream stream) {
        Checks.matrix(stream, "dy", dy);
        long rows = dy.size(0);
        long columns = dy.size(1);
        Checks.matrix(stream, "x", x, dy.dtype(), rows, 2 * columns);
        if (rows % STEP != 0 || columns % STEP != 0) {
            throw new IllegalArgumentException("dy: expected multiples of " + STEP + " rows and columns, got "
                    + Checks.describe(dy) + "; pad it with zeros");
        }
        QuantizedChecks.output(stream, "q", q, rows, 2 * columns);
        QuantizedChecks.requireTensorScaling("q", q, "the kernel computes no block scales");
        Tensor columnwise = QuantizedChecks.requireColumnwise("q", q, "the kernel makes both copies");
        Tensor rowwise = QuantizedChecks.requireRowwise("q", q, "the kernel makes both copies");
        QuantizedChecks.apart("q", q, "dy", dy);
        QuantizedChecks.apart("q", q, "x", x);
        QuantizedChecks.aligned("dy", dy, "q", q);
        Checks.aligned("x", x);
        Tensor scale = Checks.given("scale", q.scale());
        Status.ops(
                Ops.ops_gated_gradient(
                        dy.address(),
                        x.address(),
                        rowwise.address(),
                        columnwise.address(),
                        scale.address(),
                        Checks.addressOrNull(q.amax()),
                        Checks.addressOrNull(q.rowwiseScaleInverse()),
                        rows,
                        columns,
                        gate,
                        clamped.limit(),
                        clamped.alpha(),
                        clamped.linearOffset(),
                        dy.dtype().code(),
                        q.dtype().code(),
                        stream.handle()),
                "ops_gated_gradient");
    }

    private static int gate(Activation activation) {
        return switch (Checks.given("activation", activation)) {
            case GEGLU -> Ops.OPS_GEGLU();
            case GLU -> Ops.OPS_GLU();
            case QGEGLU -> Ops.OPS_QGEGLU();
            case REGLU -> Ops.OPS_REGLU();
            case SREGLU -> Ops.OPS_SREGLU();
            case SWIGLU -> Ops.OPS_SWIGLU();
            case CLAMPED_SWIGLU -> Ops.OPS_CLAMPED_SWIGLU();
            default ->
                throw new IllegalArgumentException("activation: expected a gated one, got " + activation
                        + ", whose Activation.backward writes both copies by one kernel");
        };
    }
}
