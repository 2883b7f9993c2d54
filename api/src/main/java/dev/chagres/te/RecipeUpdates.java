package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.Numbers;
import dev.chagres.internal.QuantizedChecks;
import dev.chagres.te.Cast.QuantizationCalls;
import dev.chagres.te.HandleArrays.UnsetTensor;
import java.lang.foreign.MemorySegment;
import org.jspecify.annotations.Nullable;

/**
 * Computes amaxes, and scales from them, as FP8 recipes need them.
 *
 * <p>Current scaling calls {@link #computeAmax}, {@link #computeScaleFromAmax} and {@link Cast#quantize(Tensor,
 * QuantizedTensor, Stream) Cast.quantize} one after another. Delayed scaling quantizes with the present scale, records each amax in a
 * history, and updates the scales from it between steps.
 *
 * <p>A history is FLOAT32 [L, n]: L steps of n scales. Quantizing writes row 0; row 1 is the oldest step, row L - 1 the latest completed
 * one. An update rotates the rows by one, row 0 to the last place, and clears row 0.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: TE's {@code recipe.h}.
 */
public final class RecipeUpdates {
    /** Which amax of a history a scale is computed from. */
    public enum AmaxAlgorithm {
        /** That of row 0 before the update. */
        MOST_RECENT("most_recent"),
        /** The largest. */
        MAX("max");

        private final String text;

        AmaxAlgorithm(String text) {
            this.text = text;
        }

        /** Returns TE's name. */
        String text() {
            return text;
        }
    }

    private RecipeUpdates() {}

    /**
     * Enqueues {@code amax = max |x|} over all elements, 0 without any, {@code nvte_compute_amax_with_config}. NaN counts as 0.
     *
     * @param input FLOAT32, FLOAT16 or BFLOAT16, of any shape
     * @param output has the amax, which is overwritten; scaled by {@link dev.chagres.Scaling#TENSOR}
     * @param config whether to compute at all
     * @throws IllegalArgumentException when types, parts or devices do not fit, or the amax shares memory with the input
     */
    public static void computeAmax(Tensor input, QuantizedTensor output, QuantizationConfig config, Stream stream) {
        Checks.floats(stream, "input", input);
        Tensor amax = RecipeChecks.amax(stream, output);
        Checks.apart("amax", amax, "input", input);
        MemorySegment attributes = QuantizationCalls.of(stream).config(config, stream);
        QuantizedChecks.apart("output", output, "noop", config.noop());
        Status.te(
                TransformerEngine.te_compute_amax_with_config(
                        input.handle(), output.handle(), attributes, stream.handle()),
                "te_compute_amax_with_config");
    }

    /**
     * Enqueues {@code scale = largest / max(amax, epsilon)} from the output's own amax, {@code nvte_compute_scale_from_amax}: 1
     * where amax is 0 or not finite, the largest FP32 number where the quotient is larger.
     *
     * @param output has amax, which is read, and scale, which is overwritten; scaled by {@link dev.chagres.Scaling#TENSOR}
     * @param config epsilon, which numbers scales may be, and whether to compute at all
     * @throws IllegalArgumentException when parts or devices do not fit
     */
    public static void computeScaleFromAmax(QuantizedTensor output, QuantizationConfig config, Stream stream) {
        Tensor amax = RecipeChecks.amax(stream, output);
        Tensor scale = RecipeChecks.scale(output);
        Checks.apart("scale", scale, "amax", amax);
        MemorySegment attributes = QuantizationCalls.of(stream).config(config, stream);
        QuantizedChecks.apart("output", output, "noop", config.noop());
        Status.te(
                TransformerEngine.te_compute_scale_from_amax(output.handle(), attributes, stream.handle()),
                "te_compute_scale_from_amax");
    }

    /**
     * Enqueues an update of one history and its scales, {@code nvte_delayed_scaling_recipe_amax_and_scale_update}: {@code scale =
     * largest / (2^margin amax)} where amax is positive and finite, and the scale as it was elsewhere. The update may be in place.
     *
     * @param amaxHistory FLOAT32 [L, n], L at least 1
     * @param scale FLOAT32 [n]
     * @param updatedAmaxHistory like amaxHistory
     * @param updatedScale like scale
     * @param dtype FLOAT8_E4M3 or FLOAT8_E5M2, which has the largest number
     * @param margin powers of two by which scales stay below the largest possible one
     * @throws IllegalArgumentException when shapes, types, devices or the margin do not fit, or what is written shares memory
     */
    public static void delayedScalingUpdate(
            Tensor amaxHistory,
            Tensor scale,
            Tensor updatedAmaxHistory,
            Tensor updatedScale,
            AmaxAlgorithm algorithm,
            DType dtype,
            float margin,
            Stream stream) {
        RecipeChecks.numbers(algorithm, dtype, margin);
        RecipeChecks.update(amaxHistory, scale, updatedAmaxHistory, updatedScale, stream);
        if (scale.count() != 0) {
            Status.te(
                    TransformerEngine.te_delayed_scaling_recipe_amax_and_scale_update(
                            amaxHistory.handle(),
                            scale.handle(),
                            updatedAmaxHistory.handle(),
                            updatedScale.handle(),
                            AmaxHistories.text(algorithm, stream),
                            dtype.code(),
                            margin,
                            stream.handle()),
                    "te_delayed_scaling_recipe_amax_and_scale_update");
        }
    }

    /**
     * Enqueues an update of many histories and their scales in place,
     * {@code nvte_delayed_scaling_recipe_amax_and_scale_update_after_reduction}. It differs from {@link #delayedScalingUpdate} where the
     * newest amax is 0: then the history stays as it is and, with MAX, so does the scale.
     *
     * @param amaxReductionBuffer newest amaxes of all scales, one history after another, such as maxima over several ranks: FLOAT32, one
     *     element per scale. Each that is not 0 replaces that of row 0 of its history. Null: the rows 0 are used
     * @param amaxHistories histories and scales
     * @param dtype FLOAT8_E4M3 or FLOAT8_E5M2, which has the largest number
     * @param margin powers of two by which scales stay below the largest possible one
     * @throws IllegalArgumentException when shapes, types, devices or the margin do not fit, or what is written shares memory
     * @throws IllegalStateException when the histories are closed, or a tensor's memory was handed out again since
     */
    public static void delayedScalingUpdateAfterReduction(
            @Nullable Tensor amaxReductionBuffer,
            AmaxHistories amaxHistories,
            AmaxAlgorithm algorithm,
            DType dtype,
            float margin,
            Stream stream) {
        RecipeChecks.numbers(algorithm, dtype, margin);
        Checks.given("amaxHistories", amaxHistories).check(stream);
        if (amaxReductionBuffer != null) {
            RecipeChecks.buffer(amaxReductionBuffer, amaxHistories, stream);
        }
        if (amaxHistories.count() == 0) {
            return;
        }
        MemorySegment buffer = amaxReductionBuffer == null
                ? Inside.state(stream).get(UnsetTensor.ATTACHMENT).handle
                : amaxReductionBuffer.handle();
        Status.te(
                TransformerEngine.te_delayed_scaling_recipe_amax_and_scale_update_after_reduction(
                        buffer,
                        amaxHistories.histories(),
                        amaxHistories.count(),
                        amaxHistories.scales(),
                        amaxHistories.count(),
                        AmaxHistories.text(algorithm, stream),
                        dtype.code(),
                        margin,
                        stream.handle()),
                "te_delayed_scaling_recipe_amax_and_scale_update_after_reduction");
    }

    /** Checks of the arguments of recipe updates. */
    static final class RecipeChecks {
        private RecipeChecks() {}

        /** Returns the amax of {@code output}, which must be there. */
        static Tensor amax(Stream stream, QuantizedTensor output) {
            QuantizedChecks.on(stream, "output", output);
            QuantizedChecks.requireTensorScaling("output", output, "blocks keep no largest magnitude");
            Tensor amax = output.amax();
            if (amax == null) {
                throw new IllegalArgumentException("output: expected an amax, got " + QuantizedChecks.describe(output)
                        + " without; set it by amax");
            }
            Checks.writable("output", amax);
            return amax;
        }

        /** Returns the scale of {@code output}, which must be there. */
        static Tensor scale(QuantizedTensor output) {
            Tensor scale = output.scale();
            if (scale == null) {
                throw new IllegalArgumentException("output: expected a scale, got " + QuantizedChecks.describe(output)
                        + " without; set it by scale");
            }
            Checks.writable("output", scale);
            return scale;
        }

        static void numbers(RecipeUpdates.AmaxAlgorithm algorithm, DType dtype, float margin) {
            Checks.given("algorithm", algorithm);
            float8(dtype);
            Numbers.finite("margin", margin);
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
            Checks.written(argument, history, scaleArgument, scale);
            Checks.writable(scaleArgument, scale);
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
}
