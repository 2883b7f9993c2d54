package dev.chagres.te;

import static dev.chagres.bindings.te.TransformerEngine.*;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.internal.memory.Workspace;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import org.jspecify.annotations.Nullable;

/**
 * The forward call of fused attention: one parameter object, of which each call sets only the attributes that changed.
 *
 * <p>With an unset workspace the library reports the workspace and auxiliary tensors that it needs; with them it runs. Backward needs the
 * auxiliary tensors, log-sum-exp and random state.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code nvte_fused_attn_fwd_v2} in TE's {@code fused_attn.h}.
 */
final class FusedAttentionForward extends AttributeWriter {
    private final FusedAttentionCalls calls;
    private final AuxiliaryPack pack;
    private final AttentionGeometry.Recent recent = new AttentionGeometry.Recent();
    private @Nullable AttentionProblem problem;

    FusedAttentionForward(FusedAttentionCalls calls) {
        super(create(calls.device()), calls.device().arena());
        this.calls = calls;
        pack = new AuxiliaryPack(calls);
        setUnchanging();
    }

    void run(AttentionProblem with, AttentionTensors tensors, Stream stream) {
        use(with);
        AttentionScales scales = tensors.scales();
        diagonal(kNVTEFusedAttnFwdParamsBottomRightDiagonal(), with, scales);
        if (scales == null) {
            writeTensors(tensors);
        } else {
            calls.scaled().writeForward(this, tensors, scales);
        }
        handle(kNVTEFusedAttnFwdParamsBias(), calls.handleOf(tensors.bias()));
        handle(kNVTEFusedAttnFwdParamsSoftmaxOffset(), calls.handleOf(tensors.softmaxOffset()));
        calls.writeLengths(this, kNVTEFusedAttnFwdParamsCuSeqlensQ(), with, tensors);
        handle(kNVTEFusedAttnFwdParamsRngState(), calls.randomness(tensors.rngState()));
        number(kNVTEFusedAttnFwdParamsMaxSeqlenQ(), tensors.queryLength());
        number(kNVTEFusedAttnFwdParamsMaxSeqlenKV(), tensors.keyLength());
        handle(kNVTEFusedAttnFwdParamsStream(), stream.handle());

        Workspace workspace = Inside.workspace(stream);
        AttentionGeometry geometry = recent.find(with, tensors, null);
        if (geometry == null) {
            ask(workspace, tensors.statistics());
            geometry = recent.remember(with, tensors, null, workspace.asked());
        }
        pack.describe(tensors);
        handle(kNVTEFusedAttnFwdParamsWorkspace(), workspace.provided(geometry.workspaceBytes()));
        Status.te(te_fused_attn_fwd_v2(object()), "te_fused_attn_fwd_v2");
    }

    private void writeTensors(AttentionTensors tensors) {
        handle(kNVTEFusedAttnFwdParamsQ(), tensors.query().handle());
        handle(kNVTEFusedAttnFwdParamsK(), tensors.key().handle());
        handle(kNVTEFusedAttnFwdParamsV(), tensors.value().handle());
        handle(kNVTEFusedAttnFwdParamsS(), calls.unset());
        handle(kNVTEFusedAttnFwdParamsO(), tensors.output().handle());
    }

    private void use(AttentionProblem with) {
        if (problem == with) {
            return;
        }
        flag(kNVTEFusedAttnFwdParamsIsTraining(), with.mode() == AttentionProblem.Mode.TRAINING);
        number(kNVTEFusedAttnFwdParamsAttnMaskType(), with.mask().code());
        number(kNVTEFusedAttnFwdParamsWindowSizeLeft(), with.windowLeft());
        number(kNVTEFusedAttnFwdParamsWindowSizeRight(), with.mask().isCausal() ? 0L : with.windowRight());
        number(kNVTEFusedAttnFwdParamsDropout(), with.dropout());
        number(kNVTEFusedAttnFwdParamsAttnScale(), with.scale());
        number(kNVTEFusedAttnFwdParamsQKVLayout(), with.layout().code());
        number(kNVTEFusedAttnFwdParamsOFormat(), with.layout().format().code());
        number(kNVTEFusedAttnFwdParamsBiasType(), with.biasType().code());
        number(kNVTEFusedAttnFwdParamsSoftmaxType(), with.softmaxType().code());
        problem = with;
    }

    /** Asks the library for its workspace, and checks that the log-sum-exp has the size that it needs. */
    private void ask(Workspace workspace, Tensor statistics) {
        pack.clear();
        handle(kNVTEFusedAttnFwdParamsWorkspace(), workspace.asking());
        Status.te(te_fused_attn_fwd_v2(object()), "te_fused_attn_fwd_v2");
        long wanted = pack.statisticsBytes();
        if (wanted != statistics.byteSize()) {
            throw new IllegalArgumentException("statistics: expected " + wanted
                    + " bytes, which the opened Transformer Engine wants, got " + Checks.describe(statistics));
        }
    }

    private void setUnchanging() {
        handle(kNVTEFusedAttnFwdParamsPageTableK(), calls.unset());
        handle(kNVTEFusedAttnFwdParamsPageTableV(), calls.unset());
        handle(kNVTEFusedAttnFwdParamsAuxCtxTensors(), pack.segment());
    }

    private static MemorySegment create(DeviceState device) {
        Status.te(te_create_fused_attn_fwd_params(device.out()), "te_create_fused_attn_fwd_params");
        return device.out().get(ValueLayout.ADDRESS, 0);
    }

    @Override
    void set(MemorySegment target, int attribute, MemorySegment from, long byteSize) {
        Status.te(
                te_set_fused_attn_fwd_params_attribute(target, attribute, from, byteSize),
                "te_set_fused_attn_fwd_params_attribute");
    }

    void close() {
        te_destroy_fused_attn_fwd_params(object());
        pack.close();
    }
}
