package dev.chagres.internal;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.bindings.ops.OpsAttention;
import dev.chagres.bindings.ops.OpsStrides;
import dev.chagres.bindings.te.TransformerEngine;
import java.lang.foreign.MemorySegment;
import org.jspecify.annotations.Nullable;

/**
 * Attention by our own tiled kernels, {@code ops_attention_forward} and {@code _backward}: one native struct, made once
 * and filled again by each call.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code ops_attention_forward}, {@code ops_attention_backward} in {@code ops.h}.
 */
public final class TiledAttention {
    private final MemorySegment struct;
    private final MemorySegment qkvStrides;
    private final MemorySegment outputStrides;
    private final MemorySegment gradientStrides;
    private final MemorySegment statisticsStrides;

    TiledAttention(DeviceState device) {
        struct = OpsAttention.allocate(device.arena());
        qkvStrides = OpsAttention.qkv(struct);
        outputStrides = OpsAttention.output(struct);
        gradientStrides = OpsAttention.gradients(struct);
        statisticsStrides = OpsAttention.statistics(struct);
    }

    /**
     * Enqueues {@code o = dropout(softmax(scale q k^T + mask)) v} and returns the log-sum-exp, which backward needs.
     *
     * @return FLOAT32, [T, h, 1] packed, [B, h, S, 1] dense, in {@code scope}
     */
    public Tensor forward(Scope scope, AttentionSettings settings, AttentionCall call) {
        describe(settings, call);
        long heads = OpsAttention.heads(struct);
        Tensor statistics = isPacked(call)
                ? scope.tensor(DType.FLOAT32, call.q.size(0), heads, 1)
                : scope.tensor(DType.FLOAT32, OpsAttention.sequences(struct), heads, OpsAttention.length(struct), 1);
        OpsAttention.log_sum_exp(struct, statistics.cell().pointer());
        Status.ops(Ops.ops_attention_forward(struct, scope.stream().handle()), "ops_attention_forward");
        return statistics;
    }

    /**
     * Enqueues the gradients of {@link #forward}.
     *
     * @param scope its stream computes; it hands out memory as large as the log-sum-exp
     * @param call that of forward
     * @param statistics what forward returned
     * @param dO gradient of the output
     * @param dq gradient of the query, like it
     * @param dk gradient of the key, like it
     * @param dv gradient of the value, like it
     */
    public void backward(
            Scope scope,
            AttentionSettings settings,
            AttentionCall call,
            Tensor statistics,
            TensorCell dO,
            TensorCell dq,
            TensorCell dk,
            TensorCell dv) {
        describe(settings, call);
        OpsAttention.log_sum_exp(struct, statistics.cell().pointer());
        OpsAttention.d_o(struct, dO.pointer());
        OpsAttention.dq(struct, dq.pointer());
        OpsAttention.dk(struct, dk.pointer());
        OpsAttention.dv(struct, dv.pointer());
        OpsAttention.delta(struct, scope.like(statistics).cell().pointer());
        Status.ops(Ops.ops_attention_backward(struct, scope.stream().handle()), "ops_attention_backward");
    }

    /** Fills in what both directions say alike. */
    private void describe(AttentionSettings settings, AttentionCall call) {
        TensorCell q = call.q;
        boolean packed = isPacked(call);
        boolean batchFirst = settings.format() == TransformerEngine.NVTE_BSHD();
        long sequences = packed ? call.cuSeqlens().count() - 1 : q.size(batchFirst ? 0 : 1);
        long heads = q.size(q.rank() - 2);
        long headDim = q.size(q.rank() - 1);
        OpsAttention.q(struct, q.pointer());
        OpsAttention.k(struct, call.k.pointer());
        OpsAttention.v(struct, call.v.pointer());
        OpsAttention.o(struct, call.o.pointer());
        OpsAttention.cu_seqlens(struct, call.cuSeqlens().pointer());
        OpsAttention.rng_state(struct, pointer(call.rngState()));
        OpsAttention.sequences(struct, sequences);
        OpsAttention.length(struct, call.longest());
        OpsAttention.heads(struct, heads);
        OpsAttention.head_dim(struct, headDim);
        OpsAttention.window_left(struct, settings.windowLeft());
        OpsAttention.window_right(struct, settings.isCausal() ? 0 : settings.windowRight());
        OpsAttention.scale(struct, settings.scale());
        OpsAttention.dropout(struct, settings.dropout());
        OpsAttention.dtype(struct, q.dtype().code());
        OpsAttention.packed(struct, packed ? 1 : 0);

        long width = heads * headDim;
        long step = settings.isOneBuffer() ? 3 * width : width;
        long sequenceTokens = batchFirst ? call.longest() : 1;
        long tokenTokens = packed || batchFirst ? 1 : sequences;
        write(qkvStrides, sequenceTokens * step, tokenTokens * step, headDim);
        write(gradientStrides, sequenceTokens * step, tokenTokens * step, headDim);
        write(outputStrides, sequenceTokens * width, tokenTokens * width, headDim);
        if (packed) {
            write(statisticsStrides, 0, heads, 1);
        } else {
            write(statisticsStrides, heads * call.longest(), 1, call.longest());
        }
    }

    private static boolean isPacked(AttentionCall call) {
        return call.packing() == AttentionCall.Packing.PACKED;
    }

    private static void write(MemorySegment strides, long sequence, long token, long head) {
        OpsStrides.sequence(strides, sequence);
        OpsStrides.token(strides, token);
        OpsStrides.head(strides, head);
    }

    private static MemorySegment pointer(@Nullable TensorCell cell) {
        return cell == null ? MemorySegment.NULL : cell.pointer();
    }
}
