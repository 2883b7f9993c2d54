package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.QuantizedChecks;

/**
 * Checks of the arguments of recipe updates.
 *
 * <p>Threading: the device's thread.
 */
final class RecipeChecks {
    private RecipeChecks() {}

    /** Returns the amax of {@code output}, which must be there. */
    static Tensor amax(Stream stream, QuantizedTensor output) {
        QuantizedChecks.on(stream, "output", output);
        QuantizedChecks.requireTensorScaling("output", output, "blocks keep no largest magnitude");
        Tensor amax = output.amax();
        if (amax == null) {
            throw new IllegalArgumentException(
                    "output: expected an amax, got " + QuantizedChecks.describe(output) + " without; set it by amax");
        }
        Checks.writable("output", amax);
        return amax;
    }

    /** Returns the scale of {@code output}, which must be there. */
    static Tensor scale(QuantizedTensor output) {
        Tensor scale = output.scale();
        if (scale == null) {
            throw new IllegalArgumentException(
                    "output: expected a scale, got " + QuantizedChecks.describe(output) + " without; set it by scale");
        }
        Checks.writable("output", scale);
        return scale;
    }

    static void numbers(RecipeUpdates.AmaxAlgorithm algorithm, DType dtype, float margin) {
        Checks.given("algorithm", algorithm);
        float8(dtype);
        if (!Float.isFinite(margin)) {
            throw new IllegalArgumentException("margin: expected a finite number, got " + margin);
        }
    }

    static void float8(DType dtype) {
        if (!Checks.given("dtype", dtype).isFloat8()) {
            throw new IllegalArgumentException("dtype: expected FLOAT8_E4M3 or FLOAT8_E5M2, got " + dtype);
        }
    }

    /** Returns the largest number of an FP8 type. */
    static float largest(DType float8) {
        return float8 == DType.FLOAT8_E4M3 ? 448 : 57344;
    }

    /** Checks a history and its scales. */
    static void history(String argument, Tensor history, String scaleArgument, Tensor scale, Stream stream) {
        Checks.on(stream, argument, history);
        if (history.rank() != 2 || history.size(0) < 1 || history.dtype() != DType.FLOAT32) {
            throw new IllegalArgumentException(
                    argument + ": expected FLOAT32[L, n] of at least one row, got " + Checks.describe(history));
        }
        Checks.vector(stream, scaleArgument, scale, DType.FLOAT32, history.size(1));
        Checks.writable(argument, history);
        Checks.writable(scaleArgument, scale);
        Checks.apart(argument, history, scaleArgument, scale);
    }

    /** Checks the inputs and outputs of an update, which may be in place. */
    static void update(Tensor history, Tensor scale, Tensor updatedHistory, Tensor updatedScale, Stream stream) {
        history("amaxHistory", history, "scale", scale, stream);
        Checks.like(stream, "updatedAmaxHistory", updatedHistory, history);
        Checks.like(stream, "updatedScale", updatedScale, scale);
        history("updatedAmaxHistory", updatedHistory, "updatedScale", updatedScale, stream);
        Checks.apartOrSame("updatedAmaxHistory", updatedHistory, "amaxHistory", history);
        Checks.apartOrSame("updatedScale", updatedScale, "scale", scale);
        Checks.apart("updatedAmaxHistory", updatedHistory, "scale", scale);
        Checks.apart("updatedScale", updatedScale, "amaxHistory", history);
    }

    /** Checks a buffer of the newest amaxes of all scales. */
    static void buffer(Tensor buffer, AmaxHistories histories, Stream stream) {
        Checks.typed(stream, "amaxReductionBuffer", buffer, DType.FLOAT32);
        if (buffer.count() != histories.scaleCount()) {
            throw new IllegalArgumentException("amaxReductionBuffer: expected " + histories.scaleCount()
                    + " elements, one per scale, got " + Checks.describe(buffer));
        }
        histories.ensureApart("amaxReductionBuffer", buffer);
    }
}
