package dev.chagres.te;

import static dev.chagres.bindings.te.TransformerEngine.*;

import dev.chagres.DType;
import dev.chagres.bindings.Status;
import dev.chagres.internal.memory.DeviceState;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import org.jspecify.annotations.Nullable;

/**
 * Asks whether fused attention takes a problem, with a configuration object that lives as long as the question.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code nvte_get_fused_attn_backend_v2} in TE's {@code fused_attn.h}.
 */
final class FusedAttentionQuestion extends AttributeWriter {
    private FusedAttentionQuestion(DeviceState device, Arena arena) {
        super(create(device), arena);
    }

    /** Returns TE's reason for refusing, or null. */
    static @Nullable String ask(
            AttentionProblem problem, DType dtype, DType gradientType, AttentionSizes sizes, DeviceState device) {
        device.ensureCurrent();
        try (Arena arena = Arena.ofConfined()) {
            FusedAttentionQuestion question = new FusedAttentionQuestion(device, arena);
            try {
                question.describe(problem, dtype, gradientType);
                question.measure(problem, sizes);
                return question.answer(arena);
            } finally {
                te_destroy_fused_attn_config(question.object());
            }
        }
    }

    private void describe(AttentionProblem problem, DType dtype, DType gradientType) {
        QkvLayout layout = problem.layout();
        flag(kNVTEFusedAttnConfigIsTraining(), problem.mode() == AttentionProblem.Mode.TRAINING);
        flag(kNVTEFusedAttnConfigDeterministic(), problem.order() == AttentionProblem.Order.DETERMINISTIC);
        number(kNVTEFusedAttnConfigAttnMaskType(), problem.mask().code());
        flag(kNVTEFusedAttnConfigBottomRightDiagonal(), isBottomRight(problem, dtype.isFloat8()));
        number(kNVTEFusedAttnConfigBiasType(), problem.biasType().code());
        number(kNVTEFusedAttnConfigSoftmaxType(), problem.softmaxType().code());
        number(kNVTEFusedAttnConfigWindowSizeLeft(), problem.windowLeft());
        number(kNVTEFusedAttnConfigWindowSizeRight(), problem.mask().isCausal() ? 0L : problem.windowRight());
        number(kNVTEFusedAttnConfigDropout(), problem.dropout());
        number(kNVTEFusedAttnConfigAttnScale(), problem.scale());
        number(kNVTEFusedAttnConfigQKVDtype(), dtype.code());
        number(kNVTEFusedAttnConfigODtype(), dtype.code());
        number(kNVTEFusedAttnConfigDODtype(), gradientType.code());
        number(kNVTEFusedAttnConfigDQKVDtype(), gradientType.code());
        number(kNVTEFusedAttnConfigQKVLayout(), layout.code());
        number(kNVTEFusedAttnConfigDQKVLayout(), layout.code());
        number(kNVTEFusedAttnConfigOFormat(), layout.format().code());
        number(kNVTEFusedAttnConfigDOFormat(), layout.format().code());
    }

    private void measure(AttentionProblem problem, AttentionSizes sizes) {
        number(kNVTEFusedAttnConfigBatchSize(), sizes.sequences());
        number(kNVTEFusedAttnConfigNumAttnHeads(), sizes.heads());
        number(kNVTEFusedAttnConfigNumGQAGroups(), sizes.keyHeads());
        number(kNVTEFusedAttnConfigHeadDimQK(), sizes.headDim());
        number(kNVTEFusedAttnConfigHeadDimV(), sizes.valueDim());
        number(kNVTEFusedAttnConfigMaxSeqlenQ(), sizes.queryLength());
        number(kNVTEFusedAttnConfigMaxSeqlenKV(), sizes.keyLength());
        if (problem.layout().format() == QkvFormat.THD) {
            number(kNVTEFusedAttnConfigNumTokensQ(), sizes.queryTokens());
            number(kNVTEFusedAttnConfigNumTokensKV(), sizes.keyTokens());
        }
        if (problem.biasType().isTensor()) {
            number(kNVTEFusedAttnConfigBiasBatchSize(), sizes.biasSequences());
            number(kNVTEFusedAttnConfigBiasNumHeads(), sizes.biasHeads());
            number(kNVTEFusedAttnConfigBiasSeqlenQ(), sizes.queryLength());
            number(kNVTEFusedAttnConfigBiasSeqlenKV(), sizes.keyLength());
        }
    }

    private @Nullable String answer(Arena arena) {
        MemorySegment message = arena.allocate(C_POINTER);
        MemorySegment backend = arena.allocate(ValueLayout.JAVA_INT);
        Status.te(te_get_fused_attn_backend_v2(object(), message, backend), "te_get_fused_attn_backend_v2");
        if (backend.get(ValueLayout.JAVA_INT, 0) != NVTE_No_Backend()) {
            return null;
        }
        MemorySegment text = message.get(C_POINTER, 0);
        return text.address() == 0 ? "no reason given" : text.getString(0);
    }

    private static MemorySegment create(DeviceState device) {
        Status.te(te_create_fused_attn_config(device.out()), "te_create_fused_attn_config");
        return device.out().get(ValueLayout.ADDRESS, 0);
    }

    @Override
    void set(MemorySegment target, int attribute, MemorySegment from, long byteSize) {
        Status.te(
                te_set_fused_attn_config_attribute(target, attribute, from, byteSize),
                "te_set_fused_attn_config_attribute");
    }
}
