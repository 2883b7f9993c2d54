package dev.chagres.layer;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.attention.Sequences;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.SharedInput;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** What a decoder reads beside its input: errors name it memory, not x. */
@Tag("L0")
@Tag("L1")
class CrossAttentionMisuseTest {
    private static final Class<IllegalArgumentException> ARGUMENT = IllegalArgumentException.class;

    @Test
    void memoryThatDoesNotFit() {
        ModelPlan plan = new ModelPlan();
        SharedInput memory = new SharedInput("encoder");
        AttentionConfig attention = AttentionConfig.of(4, 8, AttentionMask.none());
        TransformerLayer decoder = new TransformerLayer(
                TransformerLayerConfig.decoder(32, attention, attention), memory, plan.group("decoder"));
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.FLOAT32, 1);
                Scope scope = device.openScope();
                Pass pass = Pass.training(device)) {
            Sequences both = Sequences.packed(scope, 8, 8).withKeys(Sequences.packed(scope, 3, 3));
            Tensor x = scope.tensor(DType.FLOAT32, 16, 32);
            x.zero(device.stream());
            pass.begin(both);
            refused("FLOAT32[T, 32], got FLOAT32[6, 16]", scope.tensor(DType.FLOAT32, 6, 16), memory, decoder, x, pass);
            refused(
                    "FLOAT32[T, 32], got BFLOAT16[6, 32]",
                    scope.tensor(DType.BFLOAT16, 6, 32),
                    memory,
                    decoder,
                    x,
                    pass);
            refused("FLOAT32[T, 32], got FLOAT32[192]", scope.tensor(DType.FLOAT32, 192), memory, decoder, x, pass);
            refused(
                    "6 tokens as the sequences say (THD, 2 sequences), got 5 in Tensor FLOAT32[5, 32]",
                    scope.tensor(DType.FLOAT32, 5, 32),
                    memory,
                    decoder,
                    x,
                    pass);
            Tensor fits = scope.tensor(DType.FLOAT32, 6, 32);
            fits.zero(device.stream());
            memory.forward(fits, pass);
            Tensor y = decoder.forward(x, pass);
            decoder.backward(y, pass);
            memory.backward(pass);
            assertEquals(16, y.size(0));
            assertEquals(0, parameters.step());
        }
    }

    @Test
    void memoryWithoutTokens() {
        ModelPlan plan = new ModelPlan();
        SharedInput memory = new SharedInput("encoder");
        AttentionConfig attention = AttentionConfig.of(4, 8, AttentionMask.none());
        CrossAttention layer = new CrossAttention(CrossAttentionConfig.of(32, attention), memory, plan);
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.FLOAT32, 1);
                Scope scope = device.openScope();
                Pass pass = Pass.training(device)) {
            pass.begin(Sequences.packed(scope, 8, 8).withKeys(Sequences.packed(scope, 0, 0)));
            memory.forward(scope.tensor(DType.FLOAT32, 0, 32), pass);
            assertThrown(
                    ARGUMENT,
                    "memory: expected at least one token, got FLOAT32[0, 32]",
                    () -> layer.forward(scope.tensor(DType.FLOAT32, 16, 32), pass));
            assertEquals(0, parameters.step());
        }
    }

    /** What is computed of the memory can be told once a pass has it. */
    @Test
    void theProductOfTheMemoryIsExplained() {
        ModelPlan plan = new ModelPlan();
        SharedInput memory = new SharedInput("encoder");
        AttentionConfig attention = AttentionConfig.of(4, 8, AttentionMask.none());
        CrossAttention layer = new CrossAttention(
                CrossAttentionConfig.of(32, attention).withMemoryColumns(24), memory, plan.group("cross"));
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.FLOAT32, 1);
                Scope scope = device.openScope();
                Pass pass = Pass.training(device)) {
            pass.begin(Sequences.packed(scope, 8).withKeys(Sequences.packed(scope, 3)));
            memory.forward(scope.tensor(DType.FLOAT32, 3, 24), pass);
            String text = layer.explain(scope.tensor(DType.FLOAT32, 8, 32), pass);
            List<String> products = text.lines()
                    .filter(line -> line.contains("ops_matrix_product"))
                    .map(line -> line.substring(0, line.indexOf(':')).strip())
                    .toList();
            assertEquals(List.of("cross.query", "cross.key_value", "cross.projection"), products, text);
            assertEquals(0, parameters.step());
        }
    }

    @Test
    void rotationThatDoesNotFit() {
        ModelPlan plan = new ModelPlan();
        SharedInput memory = new SharedInput("encoder");
        AttentionConfig attention = AttentionConfig.of(4, 8, AttentionMask.none());
        CrossAttention layer = new CrossAttention(CrossAttentionConfig.of(32, attention), memory, plan);
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.FLOAT32, 1);
                Scope scope = device.openScope();
                Pass pass = Pass.training(device)) {
            RotaryEmbedding wide = RotaryEmbedding.of(scope, 8, 16);
            assertThrown(ARGUMENT, "rotary: expected head dimension 8, got 16", () -> layer.rotate(wide));
            layer.rotate(RotaryEmbedding.of(scope, 8, 8));
            Tensor x = scope.tensor(DType.FLOAT32, 4, 32);
            x.zero(device.stream());
            Tensor m = scope.tensor(DType.FLOAT32, 9, 32);
            m.zero(device.stream());
            pass.begin(Sequences.packed(scope, 4).withKeys(Sequences.packed(scope, 9)));
            memory.forward(m, pass);
            assertThrown(
                    ARGUMENT,
                    "sequences: expected none longer than the 8 positions of the rotary embedding, got 9",
                    () -> layer.forward(x, pass));
            assertEquals(0, parameters.step());
        }
    }

    private static void refused(String text, Tensor given, SharedInput memory, Layer decoder, Tensor x, Pass pass) {
        memory.forward(given, pass);
        assertThrown(ARGUMENT, "memory: expected " + text, () -> decoder.forward(x, pass));
        memory.backward(pass);
    }
}
