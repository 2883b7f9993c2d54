package dev.chagres.te;

import static dev.chagres.bindings.te.TransformerEngine.*;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.internal.Checks;
import java.lang.foreign.MemorySegment;
import org.jspecify.annotations.Nullable;

/**
 * Activations that multiply each row by a factor, {@code output[t, j] = actScales[t] f(a[t, j], b[t, j])}, such as the router's weight of a
 * token in a mixture of experts. {@link Activation}, {@link ClampedSwiglu} and {@link SituGlu} are those without factors.
 *
 * <p>Backward computes {@code gradInput = actScales[t] grad[t, j] df} and, if asked for, {@code gradActScales[t] = sum over
 * j of grad[t, j] f(a[t, j], b[t, j])}.
 *
 * <p>Each tensor of a call is FLOAT32, FLOAT16 or BFLOAT16, independently of the others; TE has no such kernel for FP8. Arithmetic is FP32.
 * Outputs overlap no other tensor.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code nvte_scaled_*} in TE's {@code activation.h}.
 */
public final class ScaledActivation {
    private ScaledActivation() {}

    /**
     * Enqueues {@code output = actScales f(input)}: {@code nvte_scaled_swiglu}, {@code nvte_scaled_situglu}, {@code
     * nvte_scaled_clamped_swiglu} or {@code nvte_scaled_srelu}.
     *
     * @param activation f: {@link Activation#SWIGLU}, {@link Activation#SRELU}, a {@link SituGlu} or a {@link ClampedSwiglu}
     * @param input a and b, [T, 2F]; of SRELU [T, F]
     * @param actScales [T]
     * @param output [T, F]
     * @param layout where a and b are in a row of input; SRELU reads it not
     * @throws IllegalArgumentException when TE has no such function, shapes, types, the layout or devices do not fit, or output shares memory
     */
    public static void forward(
            ActivationFunction activation,
            Tensor input,
            Tensor actScales,
            Tensor output,
            GluLayout layout,
            Stream stream) {
        checkForward(input, halves(activation), actScales, output, stream);
        checkLayout(activation, layout, "output", output);
        if (output.count() == 0) {
            return;
        }
        MemorySegment x = input.handle();
        MemorySegment scales = actScales.handle();
        MemorySegment y = output.handle();
        MemorySegment queue = stream.handle();
        int interleaved = layout.interleaveSize();
        switch (activation) {
            case SituGlu(float beta1, float beta2) ->
                Status.te(te_scaled_situglu(x, scales, y, beta1, beta2, interleaved, queue), "te_scaled_situglu");
            case ClampedSwiglu(float limit, float alpha, float offset) ->
                Status.te(
                        te_scaled_clamped_swiglu(x, scales, y, limit, alpha, offset, interleaved, queue),
                        "te_scaled_clamped_swiglu");
            case Activation one
            when one == Activation.SRELU -> Status.te(te_scaled_srelu(x, scales, y, queue), "te_scaled_srelu");
            case Activation one -> Status.te(te_scaled_swiglu(x, scales, y, interleaved, queue), "te_scaled_swiglu");
        }
    }

    /**
     * Enqueues the backward of {@link #forward}: {@code nvte_scaled_dswiglu}, {@code nvte_scaled_dsituglu}, {@code
     * nvte_scaled_clamped_dswiglu} or {@code nvte_scaled_dsrelu}.
     *
     * @param activation what forward had
     * @param grad gradient of output, [T, F]
     * @param input what forward read, [T, 2F]; of SRELU [T, F]
     * @param actScales what forward read, [T]
     * @param gradInput gradient of input, like it
     * @param gradActScales gradient of actScales, [T]; null computes none
     * @param layout what forward had
     * @throws IllegalArgumentException when TE has no such function, shapes, types, the layout or devices do not fit, or what is written
     *     shares memory
     */
    public static void backward(
            ActivationFunction activation,
            Tensor grad,
            Tensor input,
            Tensor actScales,
            Tensor gradInput,
            @Nullable Tensor gradActScales,
            GluLayout layout,
            Stream stream) {
        checkBackward(grad, input, halves(activation), actScales, gradInput, gradActScales, stream);
        checkLayout(activation, layout, "grad", grad);
        if (!hasElements(grad, gradActScales, stream)) {
            return;
        }
        MemorySegment dy = grad.handle();
        MemorySegment x = input.handle();
        MemorySegment scales = actScales.handle();
        MemorySegment dx = gradInput.handle();
        MemorySegment dscales = gradActScales == null ? MemorySegment.NULL : gradActScales.handle();
        MemorySegment queue = stream.handle();
        int interleaved = layout.interleaveSize();
        switch (activation) {
            case SituGlu(float beta1, float beta2) ->
                Status.te(
                        te_scaled_dsituglu(dy, x, scales, dx, dscales, beta1, beta2, interleaved, queue),
                        "te_scaled_dsituglu");
            case ClampedSwiglu(float limit, float alpha, float offset) ->
                Status.te(
                        te_scaled_clamped_dswiglu(dy, x, scales, dx, dscales, limit, alpha, offset, interleaved, queue),
                        "te_scaled_clamped_dswiglu");
            case Activation one
            when one == Activation.SRELU ->
                Status.te(te_scaled_dsrelu(dy, x, scales, dx, dscales, queue), "te_scaled_dsrelu");
            case Activation one ->
                Status.te(te_scaled_dswiglu(dy, x, scales, dx, dscales, interleaved, queue), "te_scaled_dswiglu");
        }
    }

    /** Returns how many times the columns of the output the input has. */
    private static int halves(ActivationFunction activation) {
        if (Checks.given("activation", activation) instanceof Activation one
                && one != Activation.SWIGLU
                && one != Activation.SRELU) {
            throw new IllegalArgumentException(
                    "activation: expected SWIGLU, SRELU, a SituGlu or a ClampedSwiglu, which TE has with factors, got "
                            + one);
        }
        return activation.isGated() ? 2 : 1;
    }

    private static void checkLayout(ActivationFunction activation, GluLayout layout, String argument, Tensor narrow) {
        Checks.given("layout", layout);
        if (activation.isGated()) {
            layout.check(argument, narrow.size(1));
        }
    }

    /** Returns whether there is something to compute; for rows without columns, sets gradActScales to 0. */
    private static boolean hasElements(Tensor grad, @Nullable Tensor gradActScales, Stream stream) {
        if (grad.count() == 0 && gradActScales != null) {
            gradActScales.zero(stream);
        }
        return grad.count() != 0;
    }

    /** Checks forward; a row of the input has {@code halves} times the columns of the output. */
    private static void checkForward(Tensor input, int halves, Tensor actScales, Tensor output, Stream stream) {
        Checks.matrix(stream, "output", output);
        checkSizes("input", input, halves, "output", output, stream);
        checkScales("actScales", actScales, output, stream);
        Checks.written("output", output, "input", input, "actScales", actScales);
    }

    /** Checks backward; a row of the input has {@code halves} times the columns of the output's gradient. */
    private static void checkBackward(
            Tensor grad,
            Tensor input,
            int halves,
            Tensor actScales,
            Tensor gradInput,
            @Nullable Tensor gradActScales,
            Stream stream) {
        Checks.matrix(stream, "grad", grad);
        checkSizes("input", input, halves, "grad", grad, stream);
        checkSizes("gradInput", gradInput, halves, "grad", grad, stream);
        checkScales("actScales", actScales, grad, stream);
        checkWritten("gradInput", gradInput, grad, input, actScales);
        if (gradActScales != null) {
            checkScales("gradActScales", gradActScales, grad, stream);
            checkWritten("gradActScales", gradActScales, grad, input, actScales);
            Checks.apart("gradActScales", gradActScales, "gradInput", gradInput);
        }
    }

    private static void checkWritten(String argument, Tensor written, Tensor grad, Tensor input, Tensor actScales) {
        Checks.written(argument, written, "grad", grad, "input", input);
        Checks.apart(argument, written, "actScales", actScales);
    }

    private static void checkSizes(
            String argument, Tensor tensor, int halves, String narrowArgument, Tensor narrow, Stream stream) {
        Checks.matrix(stream, argument, tensor);
        long columns = halves * narrow.size(1);
        if (tensor.size(0) != narrow.size(0) || tensor.size(1) != columns) {
            throw new IllegalArgumentException(argument + ": expected [" + narrow.size(0) + ", " + columns + "] for "
                    + narrowArgument + " " + Checks.describe(narrow) + ", got " + Checks.describe(tensor));
        }
    }

    private static void checkScales(String argument, Tensor tensor, Tensor narrow, Stream stream) {
        Checks.floats(stream, argument, tensor);
        if (tensor.rank() != 1 || tensor.size(0) != narrow.size(0)) {
            throw new IllegalArgumentException(
                    argument + ": expected [" + narrow.size(0) + "], one per row, got " + Checks.describe(tensor));
        }
    }
}
