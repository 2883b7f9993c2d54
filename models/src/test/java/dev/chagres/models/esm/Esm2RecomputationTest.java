package dev.chagres.models.esm;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.MemoryUse;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.bindings.Provider;
import dev.chagres.estimate.DryRun;
import dev.chagres.models.transformer.TransformerBody.Recomputation;
import dev.chagres.pass.Pass;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Quantizers;
import dev.chagres.recipe.Recipe;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** What backward of an ESM-2 recomputes changes what is kept, and bits in one case alone. */
@Tag("L0")
@Tag("L1")
class Esm2RecomputationTest {
    private static final int MANY = 4096;
    private static final Esm2Config CONFIG = new Esm2Config(2, 64, 4, 64);

    private static void step(Esm2 model, Scope scope, Pass pass, int... lengths) {
        int tokens = IntStream.of(lengths).sum();
        pass.begin(Sequences.packed(scope, lengths));
        Tensor ids = scope.tensor(DType.INT32, tokens);
        ids.set(
                pass.stream(),
                IntStream.range(0, tokens).map(i -> 4 + i * 7 % 20).toArray());
        model.loss(ids, ids, pass);
        model.backward(1, pass);
    }

    private static float[] gradients(Esm2Config config, DType dtype) {
        try (Device device = Device.open();
                Esm2 model = new Esm2(device, config, dtype, 1);
                Pass pass = Pass.training(device);
                Scope scope = device.openScope()) {
            step(model, scope, pass, 19, 29);
            return model.parameters().gradients().toFloats(device.stream());
        }
    }

    @ParameterizedTest
    @CsvSource({"nvidia, FLOAT32", "nvidia, BFLOAT16", "published, FLOAT32", "published, BFLOAT16"})
    void gradientsAreThoseOfTheUsualChoice(String form, DType dtype) {
        Assumptions.assumeTrue(
                dtype == DType.FLOAT32 || Provider.current() == Provider.REFERENCE,
                "left out on CUDA: cuDNN's gradients differ from run to run");
        Esm2Config config = CONFIG.withForm(form.equals("nvidia") ? Esm2Form.nvidia() : Esm2Form.published());
        assertEquals(Recomputation.ACTIVATION, config.recomputation());
        float[] expected = gradients(config, dtype);
        double largest = IntStream.range(0, expected.length)
                .mapToDouble(i -> Math.abs(expected[i]))
                .max()
                .orElseThrow();
        for (Recomputation each : Recomputation.values()) {
            float[] actual = gradients(config.withRecomputation(each), dtype);
            boolean ofUnrounded = each == Recomputation.NONE && form.equals("nvidia") && dtype == DType.BFLOAT16;
            assertArrayEquals(expected, actual, ofUnrounded ? (float) (1e-2 * largest) : 0, each.toString());
        }
    }

    /** Returns the bytes that a step keeps for backward. */
    private static long kept(Recomputation recomputation, @Nullable Recipe recipe) {
        Esm2Config config = new Esm2Config(2, 1024, 16, MANY).withRecomputation(recomputation);
        MemoryUse most = DryRun.memory(device -> {
            try (Esm2 model = new Esm2(device, config, DType.BFLOAT16, 1);
                    Pass pass = Pass.training(device);
                    Scope scope = device.openScope()) {
                if (recipe != null) {
                    pass.autocast(Quantizers.allocate(model.parameters(), recipe));
                }
                step(model, scope, pass, MANY);
            }
        });
        return most.of(MemoryUse.Holder.ACTIVATIONS);
    }

    /** What is kept of the activation's output, [T, 4096], in each of two layers. */
    @Test
    void recomputationKeepsLess() {
        Assumptions.assumeTrue(Provider.current() == Provider.REFERENCE, "only the reference counts");
        long elements = 2L * MANY * 4096;
        long activation = kept(Recomputation.ACTIVATION, null);
        assertEquals(2 * elements, kept(Recomputation.NONE, null) - activation);
        assertTrue(kept(Recomputation.NORMS, null) < activation);
        Recipe recipe = DelayedScaling.standard();
        long inEight = kept(Recomputation.NONE, recipe) - kept(Recomputation.ACTIVATION, recipe);
        assertEquals(elements, inEight, "only the copy in eight bits is kept");
    }
}
