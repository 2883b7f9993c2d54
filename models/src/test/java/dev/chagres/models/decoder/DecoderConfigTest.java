package dev.chagres.models.decoder;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.MemoryUse;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.bindings.Provider;
import dev.chagres.estimate.DryRun;
import dev.chagres.layer.Bias;
import dev.chagres.models.transformer.TransformerBody.Recomputation;
import dev.chagres.pass.Pass;
import dev.chagres.recipe.Float8CurrentScaling;
import dev.chagres.recipe.Quantizers;
import dev.chagres.recipe.Recipe;
import java.util.List;
import java.util.Optional;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

/** Sizes and forms that do not fit are refused. */
@Tag("L0")
class DecoderConfigTest {
    private static final DecoderSizes SIZES = new DecoderSizes(100, 2, 32, 4, 2, 16, 48, 64);
    /** Whose layers keep more than scopes allocate at once. */
    private static final DecoderSizes WIDE = new DecoderSizes(100, 2, 512, 4, 2, 16, 4096, 4096);

    private static final int TOKENS = 4096;
    private static final DecoderForm LLAMA = DecoderForm.of(DecoderArchitecture.LLAMA, 16);

    private static void assertRefused(String text, Executable call) {
        assertEquals(text, assertThrows(IllegalArgumentException.class, call).getMessage());
    }

    @Test
    void sizes() {
        assertEquals(128, SIZES.paddedVocabulary());
        assertEquals(64, new DecoderSizes(64, 1, 8, 1, 1, 8, 8, 8).paddedVocabulary());
        assertRefused("vocabulary: expected at least 1, got 0", () -> new DecoderSizes(0, 1, 8, 1, 1, 8, 8, 8));
        assertRefused("inner: expected at least 1, got -8", () -> new DecoderSizes(9, 1, 8, 1, 1, 8, -8, 8));
        assertRefused(
                "keyHeads: expected a divisor of the 4 heads, got 3", () -> new DecoderSizes(9, 1, 8, 4, 3, 8, 8, 8));
    }

    @Test
    void forms() {
        DecoderForm qwen2 = DecoderForm.of(DecoderArchitecture.QWEN2, 16);
        DecoderForm mistral = DecoderForm.of(DecoderArchitecture.MISTRAL, 16);
        assertRefused(
                "attentionBias: expected the one of QWEN2, PRESENT, got ABSENT",
                () -> qwen2.withAttentionBias(Bias.ABSENT));
        assertRefused(
                "attentionBias: expected the one of MISTRAL, ABSENT, got PRESENT",
                () -> mistral.withAttentionBias(Bias.PRESENT));
        assertRefused(
                "mlpBias: expected ABSENT, as always in QWEN2, got PRESENT", () -> qwen2.withMlpBias(Bias.PRESENT));
        assertRefused("normEpsilon: expected a finite number above 0, got 0.0", () -> LLAMA.withNormEpsilon(0));
        assertRefused(
                "windows: expected none, for LLAMA sees all keys, got [4, 4]", () -> LLAMA.withWindows(List.of(4, 4)));
        assertRefused(
                "windows: expected the same in each layer, as always in MISTRAL, got [4, 0]",
                () -> mistral.withWindows(List.of(4, 0)));
        assertRefused(
                "windows: expected the same number of keys wherever not all are seen, got 4 and 5",
                () -> qwen2.withWindows(List.of(4, 5)));
        assertRefused(
                "windows: expected at least 1 key each, or 0 for all, got -1", () -> qwen2.withWindows(List.of(-1)));
        assertEquals(Bias.ABSENT, qwen2.projectionBias());
        assertEquals(4, qwen2.withWindows(List.of(0, 4)).window(1));
    }

    @Test
    void configurations() {
        DecoderConfig config = new DecoderConfig(SIZES, LLAMA);
        assertRefused(
                "form: expected a rotation of heads of 16 columns, got 8",
                () -> config.withForm(DecoderForm.of(DecoderArchitecture.LLAMA, 8)));
        assertRefused(
                "form: expected a window for each of 2 layers, or none, got 1",
                () -> config.withForm(
                        DecoderForm.of(DecoderArchitecture.MISTRAL, 16).withWindows(List.of(3))));
        assertRefused("lossTokens: expected at least 1, or 0 for all, got -1", () -> config.withLossTokens(-1));
        assertRefused(
                "tokens: expected tokens from 0 to 99, got 100",
                () -> config.withTokens(new SpecialTokens(Optional.empty(), List.of(5, 100), Optional.empty())));
        // 6 of each weight, and 6 of each layer, column and pair.
        double products = 2 * 32 * (2.0 * 64 + 2.0 * 32 + 3.0 * 48) + 100 * 32;
        assertEquals(6 * products * 10 + 6.0 * 2 * 64 * 100, config.flops(10, 100));
    }

    /** Returns the bytes that a step keeps for backward. */
    private static long kept(Recomputation recomputation, @Nullable Recipe recipe) {
        DecoderConfig config = new DecoderConfig(WIDE, LLAMA).withRecomputation(recomputation);
        MemoryUse most = DryRun.memory(device -> {
            try (Decoder model = new Decoder(device, config, DType.BFLOAT16, 1);
                    Pass pass = Pass.training(device);
                    Scope scope = device.openScope()) {
                if (recipe != null) {
                    pass.autocast(Quantizers.allocate(model.parameters(), recipe));
                }
                pass.begin(Sequences.packed(scope, TOKENS));
                Tensor ids = scope.tensor(DType.INT32, TOKENS);
                model.loss(ids, ids, pass);
                model.backward(1, pass);
            }
        });
        return most.of(MemoryUse.Holder.ACTIVATIONS);
    }

    /** What is kept of the activation's output, [T, 4096], in each of two layers. */
    @Test
    void recomputationKeepsLess() {
        Assumptions.assumeTrue(Provider.current() == Provider.REFERENCE, "only the reference counts");
        long elements = 2L * TOKENS * 4096;
        long none = kept(Recomputation.NONE, null);
        long activation = kept(Recomputation.ACTIVATION, null);
        assertEquals(2 * elements, none - activation);
        assertTrue(kept(Recomputation.NORMS, null) < activation);
        Recipe recipe = Float8CurrentScaling.standard();
        long inEight = kept(Recomputation.NONE, recipe) - kept(Recomputation.ACTIVATION, recipe);
        assertEquals(elements, inEight, "only the copy in eight bits is kept");
    }
}
