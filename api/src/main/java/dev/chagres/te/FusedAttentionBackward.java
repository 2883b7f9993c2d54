package dev.chagres.te;

import static dev.chagres.bindings.te.TransformerEngine.*;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.internal.memory.Workspace;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import org.jspecify.annotations.Nullable;

/**
 * The backward call of fused attention: one parameter object, of which each call sets only the attributes that changed.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code nvte_fused_attn_bwd_v2} in TE's {@code fused_attn.h}.
 */
final class FusedAttentionBackward extends AttributeWriter {
    private final FusedAttentionCalls calls;
    private final AuxiliaryPack pack;
    private final AttentionGeometry.Recent recent = new AttentionGeometry.Recent();
    private @Nullable AttentionProblem problem;

    FusedAttentionBackward(FusedAttentionCalls calls) {
        super(create(calls.device()), calls.device().arena());
        this.calls = calls;
        pack = new AuxiliaryPack(calls);
        setUnchanging();
    }

    void run(AttentionProblem with, AttentionTensors tensors, Stream stream) {
        use(with);
        AttentionScales scales = tensors.scales();
        diagonal(kNVTEFusedAttnBwdParamsBottomRightDiagonal(), with, scales);
        if (scales == null) {
            writeTensors(tensors);
        } else {
            calls.scaled().writeBackward(this, tensors, scales);
        }
        handle(kNVTEFusedAttnBwdParamsDBias(), zeroed(tensors.biasGradient(), stream));
        handle(kNVTEFusedAttnBwdParamsDSoftmaxOffset(), zeroed(tensors.softmaxOffsetGradient(), stream));
        calls.writeLengths(this, kNVTEFusedAttnBwdParamsCuSeqlensQ(), with, tensors);
        number(kNVTEFusedAttnBwdParamsMaxSeqlenQ(), tensors.queryLength());
        number(kNVTEFusedAttnBwdParamsMaxSeqlenKV(), tensors.keyLength());
        handle(kNVTEFusedAttnBwdParamsStream(), stream.handle());
        pack.describe(tensors);

        Workspace workspace = Inside.workspace(stream);
        DType type = tensors.outputGradient().dtype();
        AttentionGeometry geometry = recent.find(with, tensors, type);
        if (geometry == null) {
            handle(kNVTEFusedAttnBwdParamsWorkspace(), workspace.asking());
            Status.te(te_fused_attn_bwd_v2(object()), "te_fused_attn_bwd_v2");
            geometry = recent.remember(with, tensors, type, workspace.asked());
        }
        handle(kNVTEFusedAttnBwdParamsWorkspace(), workspace.provided(geometry.workspaceBytes()));
        Status.te(te_fused_attn_bwd_v2(object()), "te_fused_attn_bwd_v2");
    }

    /** Zeroes a gradient, since kernels may leave elements of no query or key unwritten, and returns its handle. */
    private MemorySegment zeroed(@Nullable Tensor gradient, Stream stream) {
        if (gradient != null) {
            gradient.zero(stream);
        }
        return calls.handleOf(gradient);
    }

    private void writeTensors(AttentionTensors tensors) {
        handle(kNVTEFusedAttnBwdParamsQ(), tensors.query().handle());
        handle(kNVTEFusedAttnBwdParamsK(), tensors.key().handle());
        handle(kNVTEFusedAttnBwdParamsV(), tensors.value().handle());
        handle(kNVTEFusedAttnBwdParamsO(), tensors.output().handle());
        handle(kNVTEFusedAttnBwdParamsDO(), tensors.outputGradient().handle());
        handle(kNVTEFusedAttnBwdParamsS(), calls.unset());
        handle(kNVTEFusedAttnBwdParamsDP(), calls.unset());
        handle(kNVTEFusedAttnBwdParamsDQ(), tensors.queryGradient().handle());
        handle(kNVTEFusedAttnBwdParamsDK(), tensors.keyGradient().handle());
        handle(kNVTEFusedAttnBwdParamsDV(), tensors.valueGradient().handle());
    }

    private void use(AttentionProblem with) {
        if (problem == with) {
            return;
        }
        flag(kNVTEFusedAttnBwdParamsDeterministic(), with.order() == AttentionProblem.Order.DETERMINISTIC);
        number(kNVTEFusedAttnBwdParamsAttnMaskType(), with.mask().code());
        number(kNVTEFusedAttnBwdParamsWindowSizeLeft(), with.windowLeft());
        number(kNVTEFusedAttnBwdParamsWindowSizeRight(), with.mask().isCausal() ? 0L : with.windowRight());
        number(kNVTEFusedAttnBwdParamsDropout(), with.draws() ? with.dropout() : 0f);
        number(kNVTEFusedAttnBwdParamsAttnScale(), with.scale());
        number(kNVTEFusedAttnBwdParamsQKVLayout(), with.layout().code());
        number(kNVTEFusedAttnBwdParamsOFormat(), with.layout().format().code());
        number(kNVTEFusedAttnBwdParamsDOFormat(), with.layout().format().code());
        number(kNVTEFusedAttnBwdParamsDQKVLayout(), with.layout().code());
        number(kNVTEFusedAttnBwdParamsBiasType(), with.biasType().code());
        number(kNVTEFusedAttnBwdParamsSoftmaxType(), with.softmaxType().code());
        problem = with;
    }

    private void setUnchanging() {
        handle(kNVTEFusedAttnBwdParamsAuxCtxTensors(), pack.segment());
    }

    private static MemorySegment create(DeviceState device) {
        Status.te(te_create_fused_attn_bwd_params(device.out()), "te_create_fused_attn_bwd_params");
        return device.out().get(ValueLayout.ADDRESS, 0);
    }

    @Override
    void set(MemorySegment target, int attribute, MemorySegment from, long byteSize) {
        Status.te(
                te_set_fused_attn_bwd_params_attribute(target, attribute, from, byteSize),
                "te_set_fused_attn_bwd_params_attribute");
    }

    void close() {
        te_destroy_fused_attn_bwd_params(object());
        pack.close();
    }
}
