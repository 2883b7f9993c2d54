package dev.chagres.te;

import static dev.chagres.bindings.te.TransformerEngine.*;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.TransformerEngineException;
import dev.chagres.bindings.te.NVTETensorPack;
import dev.chagres.conformance.OpenDevice;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** The guard refuses a bias whose four extents Transformer Engine would read and which has fewer. */
@Tag("L0")
@Tag("L1")
class BiasOfFourDimensionsTest {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    @Test
    void forward() {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment out = arena.allocate(ValueLayout.ADDRESS);
            MemorySegment pack = NVTETensorPack.allocate(arena);
            Status.te(te_tensor_pack_create(pack), "te_tensor_pack_create");
            NVTETensorPack.size(pack, 0);
            Status.te(te_create_fused_attn_fwd_params(out), "te_create_fused_attn_fwd_params");
            MemorySegment params = out.get(ValueLayout.ADDRESS, 0);
            MemorySegment vector = open.unwritten(DType.BFLOAT16, 16).handle();
            MemorySegment value = arena.allocate(ValueLayout.JAVA_LONG);
            set(params, kNVTEFusedAttnFwdParamsWorkspace(), value, vector.address());
            set(params, kNVTEFusedAttnFwdParamsAuxCtxTensors(), value, pack.address());
            set(params, kNVTEFusedAttnFwdParamsBias(), value, vector.address());
            value.set(ValueLayout.JAVA_INT, 0, BiasType.POST_SCALE_BIAS.code());
            Status.te(
                    te_set_fused_attn_fwd_params_attribute(params, kNVTEFusedAttnFwdParamsBiasType(), value, 4),
                    "te_set_fused_attn_fwd_params_attribute");
            TransformerEngineException refusal = assertThrows(
                    TransformerEngineException.class,
                    () -> Status.te(te_fused_attn_fwd_v2(params), "te_fused_attn_fwd_v2"));
            String text = String.valueOf(refusal.getMessage());
            assertTrue(
                    text.contains("params (its bias): expected a tensor of 4 dimensions, got one of 1")
                            && text.contains("TE_REFUSED"),
                    text);
            assertEquals(0, te_destroy_fused_attn_fwd_params(params));
            te_tensor_pack_destroy(pack);
        }
    }

    private static void set(MemorySegment params, int attribute, MemorySegment value, long number) {
        value.set(ValueLayout.JAVA_LONG, 0, number);
        Status.te(
                te_set_fused_attn_fwd_params_attribute(params, attribute, value, 8),
                "te_set_fused_attn_fwd_params_attribute");
    }
}
