package dev.chagres.te;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import org.jspecify.annotations.Nullable;

/**
 * Checks of the arguments of {@link ScaledActivation}.
 *
 * <p>Threading: the device's thread.
 */
final class ScaledActivationChecks {
    private ScaledActivationChecks() {}

    /** Checks forward of a gated activation. */
    static void gated(Tensor input, Tensor actScales, Tensor output, GluLayout layout, Stream stream) {
        Checks.matrix(stream, "output", output);
        wide(stream, "input", input, "output", output);
        Checks.given("layout", layout).check("output", output.size(1));
        forward(input, actScales, output, stream);
    }

    /** Checks forward of an activation without a gate. */
    static void plain(Tensor input, Tensor actScales, Tensor output, Stream stream) {
        Checks.matrix(stream, "output", output);
        narrow(stream, "input", input, "output", output);
        forward(input, actScales, output, stream);
    }

    private static void forward(Tensor input, Tensor actScales, Tensor output, Stream stream) {
        scales(stream, "actScales", actScales, output);
        Checks.writable("output", output);
        Checks.apart("output", output, "input", input);
        Checks.apart("output", output, "actScales", actScales);
    }

    /** Checks backward of a gated activation. */
    static void gatedBackward(
            Tensor grad,
            Tensor input,
            Tensor actScales,
            Tensor gradInput,
            @Nullable Tensor gradActScales,
            GluLayout layout,
            Stream stream) {
        Checks.matrix(stream, "grad", grad);
        wide(stream, "input", input, "grad", grad);
        wide(stream, "gradInput", gradInput, "grad", grad);
        Checks.given("layout", layout).check("grad", grad.size(1));
        backward(grad, input, actScales, gradInput, gradActScales, stream);
    }

    /** Checks backward of an activation without a gate. */
    static void plainBackward(
            Tensor grad,
            Tensor input,
            Tensor actScales,
            Tensor gradInput,
            @Nullable Tensor gradActScales,
            Stream stream) {
        Checks.matrix(stream, "grad", grad);
        narrow(stream, "input", input, "grad", grad);
        narrow(stream, "gradInput", gradInput, "grad", grad);
        backward(grad, input, actScales, gradInput, gradActScales, stream);
    }

    private static void backward(
            Tensor grad,
            Tensor input,
            Tensor actScales,
            Tensor gradInput,
            @Nullable Tensor gradActScales,
            Stream stream) {
        scales(stream, "actScales", actScales, grad);
        written("gradInput", gradInput, grad, input, actScales);
        if (gradActScales != null) {
            scales(stream, "gradActScales", gradActScales, grad);
            written("gradActScales", gradActScales, grad, input, actScales);
            Checks.apart("gradActScales", gradActScales, "gradInput", gradInput);
        }
    }

    private static void written(String argument, Tensor written, Tensor grad, Tensor input, Tensor actScales) {
        Checks.writable(argument, written);
        Checks.apart(argument, written, "grad", grad);
        Checks.apart(argument, written, "input", input);
        Checks.apart(argument, written, "actScales", actScales);
    }

    private static void wide(Stream stream, String argument, Tensor tensor, String narrowArgument, Tensor narrow) {
        sized(stream, argument, tensor, narrow.size(0), 2 * narrow.size(1), narrowArgument, narrow);
    }

    private static void narrow(Stream stream, String argument, Tensor tensor, String narrowArgument, Tensor narrow) {
        sized(stream, argument, tensor, narrow.size(0), narrow.size(1), narrowArgument, narrow);
    }

    private static void sized(
            Stream stream,
            String argument,
            Tensor tensor,
            long rows,
            long columns,
            String narrowArgument,
            Tensor narrow) {
        Checks.matrix(stream, argument, tensor);
        if (tensor.size(0) != rows || tensor.size(1) != columns) {
            throw new IllegalArgumentException(argument + ": expected [" + rows + ", " + columns + "] for "
                    + narrowArgument + " " + Checks.describe(narrow) + ", got " + Checks.describe(tensor));
        }
    }

    private static void scales(Stream stream, String argument, Tensor tensor, Tensor narrow) {
        Checks.floats(stream, argument, tensor);
        if (tensor.rank() != 1 || tensor.size(0) != narrow.size(0)) {
            throw new IllegalArgumentException(
                    argument + ": expected [" + narrow.size(0) + "], one per row, got " + Checks.describe(tensor));
        }
    }
}
