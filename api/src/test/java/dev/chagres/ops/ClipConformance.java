package dev.chagres.ops;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerances;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** {@code Clip} against its formula. */
@Tag("L0")
@Tag("L1")
class ClipConformance {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    @ParameterizedTest
    @CsvSource({"4, 1", "0.5, 1", "1, 1", "0, 1", "3e30, 0.1", "2, Infinity"})
    void scale(float norm, float maxNorm) {
        Tensor scale = open.unwritten(DType.FLOAT32, 1);
        Clip.clipScale(open.tensor(DType.FLOAT32, new double[] {norm}, 1), maxNorm, scale, open.stream());
        double expected = Math.min(1, maxNorm / (norm + 1e-6));
        open.assertClose("scale", new double[] {expected}, scale, Tolerances.rounded(DType.FLOAT32));
    }

    @ParameterizedTest
    @CsvSource({"NaN", "Infinity"})
    void aNormThatIsNotFiniteGivesZero(float norm) {
        Tensor scale = open.unwritten(DType.FLOAT32, 1);
        Clip.clipScale(open.tensor(DType.FLOAT32, new double[] {norm}, 1), 1, scale, open.stream());
        assertEquals(0, open.read(scale)[0]);
    }

    @Test
    void refusals() {
        Tensor norm = open.scope().tensor(DType.FLOAT32, 1);
        Tensor scale = open.scope().tensor(DType.FLOAT32, 1);
        refused("norm: expected FLOAT32[1], got FLOAT32[2]", open.scope().tensor(DType.FLOAT32, 2), 1, scale);
        refused(
                "scale: expected FLOAT32[1], got INT32[1]",
                norm,
                1,
                open.scope().tensor(DType.INT32, 1));
        refused("maxNorm: expected a number above 0, got 0.0", norm, 0, scale);
        refused("maxNorm: expected a number above 0, got NaN", norm, Float.NaN, scale);
        refused(
                "scale: expected memory of its own, got some of norm's; it is written to while that is read or written",
                norm,
                1,
                norm);
    }

    private static void refused(String text, Tensor norm, float maxNorm, Tensor scale) {
        assertThrown(IllegalArgumentException.class, text, () -> Clip.clipScale(norm, maxNorm, scale, open.stream()));
    }

    @Test
    void makesNoGarbage() {
        Tensor norm = open.tensor(DType.FLOAT32, new double[] {2}, 1);
        Tensor scale = open.unwritten(DType.FLOAT32, 1);
        Allocation.assertNone("clip", () -> Clip.clipScale(norm, 1, scale, open.stream()));
    }
}
