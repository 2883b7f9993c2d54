package dev.chagres.internal;

import static dev.chagres.bindings.te.TransformerEngine.*;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.NVTETensorPack;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import org.jspecify.annotations.Nullable;

/**
 * The forward call of fused attention: one parameter object, of which each call sets what differs.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code nvte_fused_attn_fwd_v2} in TE's {@code fused_attn.h}.
 */
final class FusedAttentionForward extends AttributeWriter {
    private final FusedAttention attention;
    private final DeviceState device;
    private final MemorySegment pack;
    private final MemorySegment statisticsHandle;
    private final MemorySegment randomnessHandle;
    private final AttentionGeometry geometry = new AttentionGeometry();
    private final long[] statisticsShape = new long[4];
    private int statisticsRank;
    private @Nullable AttentionSettings settings;

    FusedAttentionForward(FusedAttention attention) {
        super(create(attention.device()), attention.device());
        this.attention = attention;
        device = attention.device();
        pack = AuxiliaryPack.create(device);
        statisticsHandle = AuxiliaryPack.statistics(pack);
        randomnessHandle = AuxiliaryPack.randomness(pack);
        setUnchanging();
    }

    Tensor run(Scope scope, AttentionSettings with, AttentionCall call) {
        Stream stream = scope.stream();
        use(with);
        handle(kNVTEFusedAttnFwdParamsQ(), call.q.handle());
        handle(kNVTEFusedAttnFwdParamsK(), call.k.handle());
        handle(kNVTEFusedAttnFwdParamsV(), call.v.handle());
        handle(kNVTEFusedAttnFwdParamsO(), call.o.handle());
        attention.writeSequences(this, kNVTEFusedAttnFwdParamsCuSeqlensQ(), call);
        handle(kNVTEFusedAttnFwdParamsRngState(), attention.randomnessHandle(call));
        number(kNVTEFusedAttnFwdParamsMaxSeqlenQ(), call.longest());
        number(kNVTEFusedAttnFwdParamsMaxSeqlenKV(), call.longest());
        handle(kNVTEFusedAttnFwdParamsStream(), stream.handle());

        if (!geometry.isThatOf(with, call)) {
            ask(stream.workspace());
            geometry.remember(with, call, stream.workspace().asked());
        }
        Tensor statistics = statistics(scope);
        device.basicTensor().readFrom(statistics.cell().handle()).writeTo(statisticsHandle);
        attention.describeRandomness(call.rngState(), randomnessHandle);
        NVTETensorPack.size(pack, AuxiliaryPack.TENSORS);
        handle(kNVTEFusedAttnFwdParamsWorkspace(), stream.workspace().provided(geometry.workspaceBytes()));
        Status.te(te_fused_attn_fwd_v2(object()), "nvte_fused_attn_fwd_v2");
        return statistics;
    }

    private void use(AttentionSettings with) {
        if (settings == with) {
            return;
        }
        number(kNVTEFusedAttnFwdParamsAttnMaskType(), with.mask());
        number(kNVTEFusedAttnFwdParamsWindowSizeLeft(), with.windowLeft());
        number(kNVTEFusedAttnFwdParamsWindowSizeRight(), with.windowRight());
        number(kNVTEFusedAttnFwdParamsDropout(), with.dropout());
        number(kNVTEFusedAttnFwdParamsAttnScale(), with.scale());
        number(kNVTEFusedAttnFwdParamsQKVLayout(), with.layout());
        number(kNVTEFusedAttnFwdParamsOFormat(), with.format());
        settings = with;
    }

    /** Lets the library say what workspace it wants and which shape the log-sum-exp has. */
    private void ask(Workspace workspace) {
        NVTETensorPack.size(pack, 0);
        handle(kNVTEFusedAttnFwdParamsWorkspace(), workspace.asking());
        Status.te(te_fused_attn_fwd_v2(object()), "nvte_fused_attn_fwd_v2");
        BasicTensor wanted = device.basicTensor().readFrom(statisticsHandle);
        statisticsRank = wanted.rank();
        for (int i = 0; i < statisticsRank; i++) {
            statisticsShape[i] = wanted.size(i);
        }
    }

    private Tensor statistics(Scope scope) {
        long[] shape = statisticsShape;
        return statisticsRank == 3
                ? scope.tensor(DType.FLOAT32, shape[0], shape[1], shape[2])
                : scope.tensor(DType.FLOAT32, shape[0], shape[1], shape[2], shape[3]);
    }

    private void setUnchanging() {
        handle(kNVTEFusedAttnFwdParamsBias(), attention.unset());
        handle(kNVTEFusedAttnFwdParamsSoftmaxOffset(), attention.unset());
        handle(kNVTEFusedAttnFwdParamsS(), attention.unset());
        handle(kNVTEFusedAttnFwdParamsPageTableK(), attention.unset());
        handle(kNVTEFusedAttnFwdParamsPageTableV(), attention.unset());
        handle(kNVTEFusedAttnFwdParamsAuxCtxTensors(), pack);
        flag(kNVTEFusedAttnFwdParamsIsTraining(), (byte) 1);
        number(kNVTEFusedAttnFwdParamsBiasType(), NVTE_NO_BIAS());
        number(kNVTEFusedAttnFwdParamsSoftmaxType(), NVTE_VANILLA_SOFTMAX());
    }

    private static MemorySegment create(DeviceState device) {
        Status.te(te_create_fused_attn_fwd_params(device.out()), "nvte_create_fused_attn_fwd_params");
        return device.out().get(ValueLayout.ADDRESS, 0);
    }

    @Override
    void set(MemorySegment target, int attribute, MemorySegment from, long byteSize) {
        Status.te(
                te_set_fused_attn_fwd_params_attribute(target, attribute, from, byteSize),
                "nvte_set_fused_attn_fwd_params_attribute");
    }

    void close() {
        te_destroy_fused_attn_fwd_params(object());
        te_tensor_pack_destroy(pack);
    }
}
