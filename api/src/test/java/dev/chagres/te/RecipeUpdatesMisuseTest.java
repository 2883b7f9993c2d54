package dev.chagres.te;

import static dev.chagres.conformance.Thrown.assertThrown;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Scope;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.te.RecipeUpdates.AmaxAlgorithm;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** The texts of what {@code RecipeUpdates} and {@code AmaxHistories} refuse. */
@Tag("L0")
@Tag("L1")
class RecipeUpdatesMisuseTest {
    private static final Class<IllegalArgumentException> ARGUMENT = IllegalArgumentException.class;
    private static final String SHARED = "'s; it is written to while that is read or written";
    private static final QuantizationConfig STANDARD = QuantizationConfig.standard();

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static Tensor of(long... sizes) {
        return open.scope().tensor(DType.FLOAT32, Shape.of(sizes));
    }

    private static QuantizedTensor quantized(Scaling scaling) {
        return open.scope().quantized(scaling, DType.FLOAT8_E4M3, 16, 32).allocateRowwise(open.scope());
    }

    @Test
    void partsThatAreAbsent() {
        assertThrown(
                ARGUMENT,
                "output: expected an amax, got FLOAT8_E4M3[16, 32] TENSOR without; set it by amax",
                () -> RecipeUpdates.computeAmax(of(3), quantized(Scaling.TENSOR), STANDARD, open.stream()));
        assertThrown(
                ARGUMENT,
                "output: expected a scale, got FLOAT8_E4M3[16, 32] TENSOR without; set it by scale",
                () -> RecipeUpdates.computeScaleFromAmax(
                        quantized(Scaling.TENSOR).amax(of(1)), STANDARD, open.stream()));
        assertThrown(
                ARGUMENT,
                "output: expected scaling by TENSOR, for blocks keep no largest magnitude, got FLOAT8_E4M3[16, 32] BLOCK_2D",
                () -> RecipeUpdates.computeAmax(of(3), quantized(Scaling.BLOCK_2D), STANDARD, open.stream()));
    }

    @Test
    void amaxInputs() {
        Tensor amax = of(1);
        QuantizedTensor output = quantized(Scaling.TENSOR).amax(amax);
        assertThrown(
                ARGUMENT,
                "amax: expected memory of its own, got some of input" + SHARED,
                () -> RecipeUpdates.computeAmax(amax, output, STANDARD, open.stream()));
        assertThrown(
                ARGUMENT,
                "input: expected elements of FLOAT32, FLOAT16 or BFLOAT16, got FLOAT8_E4M3[4]",
                () -> RecipeUpdates.computeAmax(
                        open.scope().tensor(DType.FLOAT8_E4M3, 4), output, STANDARD, open.stream()));
        assertThrown(
                ARGUMENT,
                "scale: expected memory of its own, got some of amax" + SHARED,
                () -> RecipeUpdates.computeScaleFromAmax(output.scale(amax), STANDARD, open.stream()));
    }

    private static void refused(String text, Tensor history, Tensor scale, Tensor newHistory, Tensor newScale) {
        assertThrown(
                ARGUMENT,
                text,
                () -> RecipeUpdates.delayedScalingUpdate(
                        history, scale, newHistory, newScale, AmaxAlgorithm.MAX, DType.FLOAT8_E4M3, 0, open.stream()));
    }

    @Test
    void histories() {
        Tensor history = of(4, 3);
        Tensor scale = of(3);
        refused(
                "amaxHistory: expected FLOAT32[L, n] of at least one row, got FLOAT32[3]",
                scale,
                scale,
                history,
                scale);
        refused(
                "amaxHistory: expected FLOAT32[L, n] of at least one row, got FLOAT32[0, 3]",
                of(0, 3),
                scale,
                history,
                scale);
        refused("scale: expected FLOAT32[3], got FLOAT32[2]", history, of(2), history, scale);
        refused("updatedAmaxHistory: expected FLOAT32[4, 3], got FLOAT32[5, 3]", history, scale, of(5, 3), scale);
        refused("updatedScale: expected FLOAT32[3], got FLOAT32[2]", history, scale, history, of(2));
        refused(
                "amaxHistory: expected memory of its own, got some of scale" + SHARED,
                history,
                open.scope().view(history, 0, 3),
                history,
                scale);
        Tensor both = of(24);
        refused(
                "updatedAmaxHistory: expected memory of its own, got some of amaxHistory" + SHARED,
                open.scope().view(both, 0, 4, 3),
                scale,
                open.scope().view(both, 3, 4, 3),
                scale);
    }

    @Test
    void numbers() {
        Tensor history = of(4, 3);
        Tensor scale = of(3);
        assertThrown(
                ARGUMENT,
                "dtype: expected FLOAT8_E4M3 or FLOAT8_E5M2, got BFLOAT16",
                () -> RecipeUpdates.delayedScalingUpdate(
                        history, scale, history, scale, AmaxAlgorithm.MAX, DType.BFLOAT16, 0, open.stream()));
        assertThrown(
                ARGUMENT,
                "margin: expected a finite number, got NaN",
                () -> RecipeUpdates.delayedScalingUpdate(
                        history,
                        scale,
                        history,
                        scale,
                        AmaxAlgorithm.MAX,
                        DType.FLOAT8_E4M3,
                        Float.NaN,
                        open.stream()));
    }

    @Test
    void listsOfHistories() {
        Tensor history = of(4, 3);
        Tensor scale = of(3);
        refusedLists("scales: expected 1, one per history, got 0", new Tensor[] {history});
        refusedLists("scales[0]: expected FLOAT32[3], got FLOAT32[2]", new Tensor[] {history}, of(2));
        refusedLists(
                "amaxHistories[1]: expected 4 rows as amaxHistories[0] has, got FLOAT32[5, 1]",
                new Tensor[] {history, of(5, 1)},
                scale,
                of(1));
        refusedLists(
                "amaxHistories[0]: expected at least one scale, got FLOAT32[4, 0]", new Tensor[] {of(4, 0)}, of(0));
        refusedLists(
                "scales[1]: expected memory of its own, got some of scales[0]" + SHARED,
                new Tensor[] {history, of(4, 3)},
                scale,
                scale);
    }

    private static void refusedLists(String text, Tensor[] histories, Tensor... scales) {
        assertThrown(ARGUMENT, text, () -> AmaxHistories.of(histories, scales, open.stream()));
    }

    private static void update(Tensor buffer, AmaxHistories histories) {
        RecipeUpdates.delayedScalingUpdateAfterReduction(
                buffer, histories, AmaxAlgorithm.MAX, DType.FLOAT8_E4M3, 0, open.stream());
    }

    @Test
    void buffersAndClosedHistories() {
        Tensor history = of(4, 3);
        AmaxHistories histories = AmaxHistories.of(new Tensor[] {history}, new Tensor[] {of(3)}, open.stream());
        assertThrown(
                ARGUMENT,
                "amaxReductionBuffer: expected 3 elements, one per scale, got FLOAT32[2]",
                () -> update(of(2), histories));
        assertThrown(
                ARGUMENT,
                "amaxHistories: expected memory of its own, got some of amaxReductionBuffer" + SHARED,
                () -> update(open.scope().view(history, 0, 3), histories));
        histories.close();
        histories.close();
        assertThrown(IllegalStateException.class, "amax histories are closed", () -> update(null, histories));
    }

    @Test
    void historiesThatWereHandedOutAgain() {
        try (Scope other = open.device().openScope();
                AmaxHistories histories = AmaxHistories.of(
                        new Tensor[] {other.tensor(DType.FLOAT32, 4, 3)}, new Tensor[] {of(3)}, open.stream())) {
            other.restart();
            other.tensor(DType.FLOAT32, 4, 3);
            assertThrown(
                    IllegalStateException.class,
                    "amaxHistories[0]: its scope was restarted since the amax histories were made, and may have handed out its memory"
                            + " for something else; make the amax histories again",
                    () -> update(null, histories));
        }
    }
}
