package dev.chagres.te;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
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
     * Enqueues {@code output = actScales a sigmoid(a) b}, {@code nvte_scaled_swiglu}.
     *
     * @param input a and b, [T, 2F]
     * @param actScales [T]
     * @param output [T, F]
     * @param layout where a and b are in a row of input
     * @throws IllegalArgumentException when shapes, types, the layout or devices do not fit, or output shares memory
     */
    public static void scaledSwiglu(Tensor input, Tensor actScales, Tensor output, GluLayout layout, Stream stream) {
        checkForward(input, 2, actScales, output, stream);
        Checks.given("layout", layout).check("output", output.size(1));
        if (output.count() != 0) {
            Status.te(
                    TransformerEngine.te_scaled_swiglu(
                            input.handle(),
                            actScales.handle(),
                            output.handle(),
                            layout.interleaveSize(),
                            stream.handle()),
                    "te_scaled_swiglu");
        }
    }

    /**
     * Enqueues the backward of {@link #scaledSwiglu}, {@code nvte_scaled_dswiglu}.
     *
     * @param grad gradient of output, [T, F]
     * @param input what forward read, [T, 2F]
     * @param actScales what forward read, [T]
     * @param gradInput gradient of input, [T, 2F]
     * @param gradActScales gradient of actScales, [T]; null computes none
     * @param layout where a and b are in a row of input
     * @throws IllegalArgumentException when shapes, types, the layout or devices do not fit, or what is written shares memory
     */
    public static void scaledDswiglu(
            Tensor grad,
            Tensor input,
            Tensor actScales,
            Tensor gradInput,
            @Nullable Tensor gradActScales,
            GluLayout layout,
            Stream stream) {
        checkBackward(grad, input, 2, actScales, gradInput, gradActScales, stream);
        Checks.given("layout", layout).check("grad", grad.size(1));
        if (hasElements(grad, gradActScales, stream)) {
            Status.te(
                    TransformerEngine.te_scaled_dswiglu(
                            grad.handle(),
                            input.handle(),
                            actScales.handle(),
                            gradInput.handle(),
                            handle(gradActScales),
                            layout.interleaveSize(),
                            stream.handle()),
                    "te_scaled_dswiglu");
        }
    }

    /**
     * Enqueues {@code output = actScales beta1 tanh(a / beta1) sigmoid(a) beta2 tanh(b / beta2)}, {@code nvte_scaled_situglu}.
     *
     * @param situ beta1 and beta2
     * @param input a and b, [T, 2F]
     * @param actScales [T]
     * @param output [T, F]
     * @param layout where a and b are in a row of input
     * @throws IllegalArgumentException when shapes, types, the layout or devices do not fit, or output shares memory
     */
    public static void scaledSituglu(
            SituGlu situ, Tensor input, Tensor actScales, Tensor output, GluLayout layout, Stream stream) {
        Checks.given("situ", situ);
        checkForward(input, 2, actScales, output, stream);
        Checks.given("layout", layout).check("output", output.size(1));
        if (output.count() != 0) {
            Status.te(
                    TransformerEngine.te_scaled_situglu(
                            input.handle(),
                            actScales.handle(),
                            output.handle(),
                            situ.beta1(),
                            situ.beta2(),
                            layout.interleaveSize(),
                            stream.handle()),
                    "te_scaled_situglu");
        }
    }

    /**
     * Enqueues the backward of {@link #scaledSituglu}, {@code nvte_scaled_dsituglu}.
     *
     * @param situ beta1 and beta2
     * @param grad gradient of output, [T, F]
     * @param input what forward read, [T, 2F]
     * @param actScales what forward read, [T]
     * @param gradInput gradient of input, [T, 2F]
     * @param gradActScales gradient of actScales, [T]; null computes none
     * @param layout where a and b are in a row of input
     * @throws IllegalArgumentException when shapes, types, the layout or devices do not fit, or what is written shares memory
     */
    public static void scaledDsituglu(
            SituGlu situ,
            Tensor grad,
            Tensor input,
            Tensor actScales,
            Tensor gradInput,
            @Nullable Tensor gradActScales,
            GluLayout layout,
            Stream stream) {
        Checks.given("situ", situ);
        checkBackward(grad, input, 2, actScales, gradInput, gradActScales, stream);
        Checks.given("layout", layout).check("grad", grad.size(1));
        if (hasElements(grad, gradActScales, stream)) {
            Status.te(
                    TransformerEngine.te_scaled_dsituglu(
                            grad.handle(),
                            input.handle(),
                            actScales.handle(),
                            gradInput.handle(),
                            handle(gradActScales),
                            situ.beta1(),
                            situ.beta2(),
                            layout.interleaveSize(),
                            stream.handle()),
                    "te_scaled_dsituglu");
        }
    }

    /**
     * Enqueues {@code output = actScales m sigmoid(alpha m) (c + linearOffset)} with {@code m = min(a, limit)} and c being b within
     * {@code -limit} to {@code limit}, {@code nvte_scaled_clamped_swiglu}.
     *
     * @param clamped limit, alpha and linearOffset
     * @param input a and b, [T, 2F]
     * @param actScales [T]
     * @param output [T, F]
     * @param layout where a and b are in a row of input
     * @throws IllegalArgumentException when shapes, types, the layout or devices do not fit, or output shares memory
     */
    public static void scaledClampedSwiglu(
            ClampedSwiglu clamped, Tensor input, Tensor actScales, Tensor output, GluLayout layout, Stream stream) {
        Checks.given("clamped", clamped);
        checkForward(input, 2, actScales, output, stream);
        Checks.given("layout", layout).check("output", output.size(1));
        if (output.count() != 0) {
            Status.te(
                    TransformerEngine.te_scaled_clamped_swiglu(
                            input.handle(),
                            actScales.handle(),
                            output.handle(),
                            clamped.limit(),
                            clamped.alpha(),
                            clamped.linearOffset(),
                            layout.interleaveSize(),
                            stream.handle()),
                    "te_scaled_clamped_swiglu");
        }
    }

    /**
     * Enqueues the backward of {@link #scaledClampedSwiglu}, {@code nvte_scaled_clamped_dswiglu}.
     *
     * @param clamped limit, alpha and linearOffset
     * @param grad gradient of output, [T, F]
     * @param input what forward read, [T, 2F]
     * @param actScales what forward read, [T]
     * @param gradInput gradient of input, [T, 2F]
     * @param gradActScales gradient of actScales, [T]; null computes none
     * @param layout where a and b are in a row of input
     * @throws IllegalArgumentException when shapes, types, the layout or devices do not fit, or what is written shares memory
     */
    public static void scaledClampedDswiglu(
            ClampedSwiglu clamped,
            Tensor grad,
            Tensor input,
            Tensor actScales,
            Tensor gradInput,
            @Nullable Tensor gradActScales,
            GluLayout layout,
            Stream stream) {
        Checks.given("clamped", clamped);
        checkBackward(grad, input, 2, actScales, gradInput, gradActScales, stream);
        Checks.given("layout", layout).check("grad", grad.size(1));
        if (hasElements(grad, gradActScales, stream)) {
            Status.te(
                    TransformerEngine.te_scaled_clamped_dswiglu(
                            grad.handle(),
                            input.handle(),
                            actScales.handle(),
                            gradInput.handle(),
                            handle(gradActScales),
                            clamped.limit(),
                            clamped.alpha(),
                            clamped.linearOffset(),
                            layout.interleaveSize(),
                            stream.handle()),
                    "te_scaled_clamped_dswiglu");
        }
    }

    /**
     * Enqueues {@code output = actScales max(input, 0)^2}, {@code nvte_scaled_srelu}.
     *
     * @param input [T, F]
     * @param actScales [T]
     * @param output [T, F]
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or output shares memory
     */
    public static void scaledSrelu(Tensor input, Tensor actScales, Tensor output, Stream stream) {
        checkForward(input, 1, actScales, output, stream);
        if (output.count() != 0) {
            Status.te(
                    TransformerEngine.te_scaled_srelu(
                            input.handle(), actScales.handle(), output.handle(), stream.handle()),
                    "te_scaled_srelu");
        }
    }

    /**
     * Enqueues the backward of {@link #scaledSrelu}, {@code nvte_scaled_dsrelu}.
     *
     * @param grad gradient of output, [T, F]
     * @param input what forward read, [T, F]
     * @param actScales what forward read, [T]
     * @param gradInput gradient of input, [T, F]
     * @param gradActScales gradient of actScales, [T]; null computes none
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     */
    public static void scaledDsrelu(
            Tensor grad,
            Tensor input,
            Tensor actScales,
            Tensor gradInput,
            @Nullable Tensor gradActScales,
            Stream stream) {
        checkBackward(grad, input, 1, actScales, gradInput, gradActScales, stream);
        if (hasElements(grad, gradActScales, stream)) {
            Status.te(
                    TransformerEngine.te_scaled_dsrelu(
                            grad.handle(),
                            input.handle(),
                            actScales.handle(),
                            gradInput.handle(),
                            handle(gradActScales),
                            stream.handle()),
                    "te_scaled_dsrelu");
        }
    }

    /** Returns whether there is something to compute; for rows without columns, sets gradActScales to 0. */
    private static boolean hasElements(Tensor grad, @Nullable Tensor gradActScales, Stream stream) {
        if (grad.count() == 0 && gradActScales != null) {
            gradActScales.zero(stream);
        }
        return grad.count() != 0;
    }

    private static MemorySegment handle(@Nullable Tensor tensor) {
        return tensor == null ? MemorySegment.NULL : tensor.handle();
    }

    /** Checks forward; a row of the input has {@code halves} times the columns of the output. */
    private static void checkForward(Tensor input, int halves, Tensor actScales, Tensor output, Stream stream) {
        Checks.matrix(stream, "output", output);
        checkSizes("input", input, halves, "output", output, stream);
        checkScales("actScales", actScales, output, stream);
        Checks.writable("output", output);
        Checks.apart("output", output, "input", input);
        Checks.apart("output", output, "actScales", actScales);
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
        Checks.writable(argument, written);
        Checks.apart(argument, written, "grad", grad);
        Checks.apart(argument, written, "input", input);
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
