package dev.chagres.internal;

import static dev.chagres.bindings.te.TransformerEngine.*;

import dev.chagres.Stream;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.NVTETensorPack;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import org.jspecify.annotations.Nullable;

/**
 * The backward call of fused attention: one parameter object, of which each call sets what differs.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code nvte_fused_attn_bwd_v2} in TE's {@code fused_attn.h}.
 */
final class FusedAttentionBackward extends AttributeWriter {
    private final FusedAttention attention;
    private final DeviceState device;
    private final MemorySegment pack;
    private final MemorySegment statisticsHandle;
    private final MemorySegment randomnessHandle;
    private final AttentionGeometry geometry = new AttentionGeometry();
    private @Nullable AttentionSettings settings;

    FusedAttentionBackward(FusedAttention attention) {
        super(create(attention.device()), attention.device());
        this.attention = attention;
        device = attention.device();
        pack = AuxiliaryPack.create(device);
        statisticsHandle = AuxiliaryPack.statistics(pack);
        randomnessHandle = AuxiliaryPack.randomness(pack);
        NVTETensorPack.size(pack, AuxiliaryPack.TENSORS);
        setUnchanging();
    }

    void run(
            Stream stream,
            AttentionSettings with,
            AttentionCall call,
            TensorCell statistics,
            TensorCell dO,
            TensorCell dq,
            TensorCell dk,
            TensorCell dv) {
        use(with);
        handle(kNVTEFusedAttnBwdParamsQ(), call.q.handle());
        handle(kNVTEFusedAttnBwdParamsK(), call.k.handle());
        handle(kNVTEFusedAttnBwdParamsV(), call.v.handle());
        handle(kNVTEFusedAttnBwdParamsO(), call.o.handle());
        handle(kNVTEFusedAttnBwdParamsDO(), dO.handle());
        handle(kNVTEFusedAttnBwdParamsDQ(), dq.handle());
        handle(kNVTEFusedAttnBwdParamsDK(), dk.handle());
        handle(kNVTEFusedAttnBwdParamsDV(), dv.handle());
        attention.writeSequences(this, kNVTEFusedAttnBwdParamsCuSeqlensQ(), call);
        number(kNVTEFusedAttnBwdParamsMaxSeqlenQ(), call.longest());
        number(kNVTEFusedAttnBwdParamsMaxSeqlenKV(), call.longest());
        handle(kNVTEFusedAttnBwdParamsStream(), stream.handle());
        device.basicTensor().readFrom(statistics.handle()).writeTo(statisticsHandle);
        attention.describeRandomness(call.rngState(), randomnessHandle);

        Workspace workspace = stream.workspace();
        if (!geometry.isThatOf(with, call)) {
            handle(kNVTEFusedAttnBwdParamsWorkspace(), workspace.asking());
            Status.te(te_fused_attn_bwd_v2(object()), "nvte_fused_attn_bwd_v2");
            geometry.remember(with, call, workspace.asked());
        }
        handle(kNVTEFusedAttnBwdParamsWorkspace(), workspace.provided(geometry.workspaceBytes()));
        Status.te(te_fused_attn_bwd_v2(object()), "nvte_fused_attn_bwd_v2");
    }

    private void use(AttentionSettings with) {
        if (settings == with) {
            return;
        }
        number(kNVTEFusedAttnBwdParamsAttnMaskType(), with.mask());
        number(kNVTEFusedAttnBwdParamsWindowSizeLeft(), with.windowLeft());
        number(kNVTEFusedAttnBwdParamsWindowSizeRight(), with.windowRight());
        number(kNVTEFusedAttnBwdParamsDropout(), with.dropout());
        number(kNVTEFusedAttnBwdParamsAttnScale(), with.scale());
        number(kNVTEFusedAttnBwdParamsQKVLayout(), with.layout());
        number(kNVTEFusedAttnBwdParamsOFormat(), with.format());
        number(kNVTEFusedAttnBwdParamsDOFormat(), with.format());
        number(kNVTEFusedAttnBwdParamsDQKVLayout(), with.layout());
        settings = with;
    }

    private void setUnchanging() {
        handle(kNVTEFusedAttnBwdParamsS(), attention.unset());
        handle(kNVTEFusedAttnBwdParamsDP(), attention.unset());
        handle(kNVTEFusedAttnBwdParamsDBias(), attention.unset());
        handle(kNVTEFusedAttnBwdParamsDSoftmaxOffset(), attention.unset());
        handle(kNVTEFusedAttnBwdParamsAuxCtxTensors(), pack);
        number(kNVTEFusedAttnBwdParamsBiasType(), NVTE_NO_BIAS());
        number(kNVTEFusedAttnBwdParamsSoftmaxType(), NVTE_VANILLA_SOFTMAX());
    }

    private static MemorySegment create(DeviceState device) {
        Status.te(te_create_fused_attn_bwd_params(device.out()), "nvte_create_fused_attn_bwd_params");
        return device.out().get(ValueLayout.ADDRESS, 0);
    }

    @Override
    void set(MemorySegment target, int attribute, MemorySegment from, long byteSize) {
        Status.te(
                te_set_fused_attn_bwd_params_attribute(target, attribute, from, byteSize),
                "nvte_set_fused_attn_bwd_params_attribute");
    }

    void close() {
        te_destroy_fused_attn_bwd_params(object());
        te_tensor_pack_destroy(pack);
    }
}
