package dev.chagres.te;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.te.AttentionProblem.Mode;
import dev.chagres.te.AttentionProblem.Order;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** {@code AttentionProblem}, {@code AttentionSizes} and {@code QkvLayout}: what they are and what they refuse. */
@Tag("L0")
class AttentionProblemTest {
    private static final AttentionProblem PACKED =
            AttentionProblem.of(QkvLayout.THD_THD_THD, 0.25f).withMask(MaskType.PADDING);

    @Test
    void problems() {
        assertThrown(
                IllegalArgumentException.class,
                "window: expected -1 (unbounded) or more on each side, got -2 and 0",
                () -> PACKED.withWindow(-2, 0));
        assertThrown(
                IllegalArgumentException.class,
                "windowRight: expected 0 or -1 under PADDING_CAUSAL, which shows no later key, got 3",
                () -> PACKED.withMask(MaskType.PADDING_CAUSAL).withWindow(4, 3));
        assertThrown(
                IllegalArgumentException.class,
                "scale: expected a number above 0, got NaN",
                () -> AttentionProblem.of(QkvLayout.T3HD, Float.NaN));
        assertThrown(
                IllegalArgumentException.class,
                "dropout: expected a number of at least 0 and below 1, got 1.0",
                () -> PACKED.withDropout(1));
        assertThrown(NullPointerException.class, "mask: expected a value, got null", () -> PACKED.withMask(null));
        assertThrown(
                NullPointerException.class, "biasType: expected a value, got null", () -> PACKED.withBiasType(null));
        assertThrown(
                NullPointerException.class,
                "softmaxType: expected a value, got null",
                () -> PACKED.withSoftmaxType(null));
        assertThrown(
                NullPointerException.class, "layout: expected a value, got null", () -> AttentionProblem.of(null, 1));
        assertThrown(
                IllegalArgumentException.class,
                "sizes: expected no negative size, got -3",
                () -> AttentionSizes.of(2, 5, -3, 16));
    }

    @Test
    void problemsAreBuiltByName() {
        AttentionProblem problem = AttentionProblem.of(QkvLayout.T3HD, 0.5f)
                .withMask(MaskType.PADDING_CAUSAL)
                .withWindow(7, 0)
                .withDropout(0.1f)
                .withLayout(QkvLayout.SB3HD)
                .withBiasType(BiasType.ALIBI)
                .withSoftmaxType(SoftmaxType.OFF_BY_ONE)
                .deterministic();
        assertEquals(
                new AttentionProblem(
                        QkvLayout.SB3HD,
                        MaskType.PADDING_CAUSAL,
                        7,
                        0,
                        0.5f,
                        0.1f,
                        Mode.TRAINING,
                        Order.DETERMINISTIC,
                        BiasType.ALIBI,
                        SoftmaxType.OFF_BY_ONE),
                problem);
        assertFalse(problem.isPlain());
        assertFalse(problem.withBiasType(BiasType.NO_BIAS).isPlain());
        assertTrue(problem.withBiasType(BiasType.NO_BIAS)
                .withSoftmaxType(SoftmaxType.VANILLA)
                .isPlain());
        assertTrue(problem.draws());
        assertFalse(problem.forInference().draws());
        assertFalse(problem.withDropout(0).draws());
        assertEquals(
                new AttentionSizes(2, 4, 1, 16, 8, 5, 9, 10, 11, 1, 4),
                AttentionSizes.of(2, 5, 4, 16)
                        .withKeyHeads(1)
                        .withValueDim(8)
                        .withKeys(9, 11)
                        .withBias(1, 4));
        assertEquals(7, AttentionSizes.of(2, 5, 4, 16).withTokens(7).keyTokens());
    }

    @Test
    void layouts() {
        for (QkvFormat format : QkvFormat.values()) {
            assertEquals(QkvLayout.Packing.ALL, QkvLayout.packed(format).packing());
            assertEquals(
                    QkvLayout.Packing.KEY_VALUE,
                    QkvLayout.packedKeyValue(format).packing());
            assertEquals(QkvLayout.Packing.NONE, QkvLayout.separate(format).packing());
            assertEquals(format, QkvLayout.packed(format).format());
            assertEquals(format, QkvLayout.packedKeyValue(format).format());
            assertEquals(format, QkvLayout.separate(format).format());
            assertEquals(format.rank(), format.shape().split(",").length);
        }
    }
}
