package dev.chagres.internal;

import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.cuda.CudaRuntime;
import dev.chagres.bindings.te.TransformerEngine;
import java.lang.foreign.MemorySegment;
import org.jspecify.annotations.Nullable;

/**
 * Fused attention through {@code nvte_fused_attn_fwd_v2} and {@code _bwd_v2}.
 *
 * <p>Each direction is two calls: with an unset workspace the library says what workspace and which auxiliary tensors it
 * wants; with them it runs. A call of the same geometry as the one before it, as the layers of a model make them, already
 * knows the answer and is one call. The auxiliary tensors (log-sum-exp, random state) are what backward needs.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code nvte_fused_attn_fwd_v2}, {@code nvte_fused_attn_bwd_v2} in TE's {@code fused_attn.h}.
 */
public final class FusedAttention {
    private static final long RANDOMNESS_WORDS = 2;
    private static final long RANDOMNESS_BYTES = RANDOMNESS_WORDS * Long.BYTES;

    private final DeviceState device;
    private final FusedAttentionForward forward;
    private final FusedAttentionBackward backward;
    private final MemorySegment unset;
    private final MemorySegment noRandomness;
    private final MemorySegment noRandomnessHandle;

    FusedAttention(DeviceState device) {
        this.device = device;
        unset = device.basicTensor().create();
        noRandomness = device.malloc(RANDOMNESS_BYTES);
        Status.cuda(CudaRuntime.cudaMemset(noRandomness, 0, RANDOMNESS_BYTES), "cudaMemset");
        noRandomnessHandle = device.basicTensor().create();
        describeRandomness(null, noRandomnessHandle);
        forward = new FusedAttentionForward(this);
        backward = new FusedAttentionBackward(this);
    }

    /**
     * Enqueues {@code o = softmax(scale q k^T + mask) v} and returns the log-sum-exp, which backward needs.
     *
     * @return FLOAT32, [T, h, 1] packed, [B, h, S, 1] dense, in {@code scope}
     */
    public Tensor forward(Scope scope, AttentionSettings settings, AttentionCall call) {
        return forward.run(scope, settings, call);
    }

    /**
     * Enqueues the gradients of {@link #forward}.
     *
     * @param call that of forward
     * @param statistics what forward returned
     * @param dO gradient of the output
     * @param dq gradient of the query, like it
     * @param dk gradient of the key, like it
     * @param dv gradient of the value, like it
     */
    public void backward(
            Stream stream,
            AttentionSettings settings,
            AttentionCall call,
            TensorCell statistics,
            TensorCell dO,
            TensorCell dq,
            TensorCell dk,
            TensorCell dv) {
        backward.run(stream, settings, call, statistics, dO, dq, dk, dv);
    }

    /** Returns a live handle of no tensor: TE takes a handle of 0 for a fault. */
    MemorySegment unset() {
        return unset;
    }

    DeviceState device() {
        return device;
    }

    /** Sets lengths of query and key, then token offsets: four attributes from {@code first} on. */
    void writeSequences(AttributeWriter writer, int first, AttentionCall call) {
        MemorySegment lengths = call.cuSeqlens().handle();
        MemorySegment offsets = call.packing() == AttentionCall.Packing.PACKED ? lengths : unset;
        writer.handle(first, lengths);
        writer.handle(first + 1, lengths);
        writer.handle(first + 2, offsets);
        writer.handle(first + 3, offsets);
    }

    /** Returns the handle of the call's random state, or that of one which nothing draws from. */
    MemorySegment randomnessHandle(AttentionCall call) {
        TensorCell given = call.rngState();
        return given == null ? noRandomnessHandle : given.handle();
    }

    /** Describes the random state {@code given}, or the one which nothing draws from, in {@code handle}. */
    void describeRandomness(@Nullable TensorCell given, MemorySegment handle) {
        MemorySegment state = given == null ? noRandomness : given.pointer();
        device.basicTensor()
                .at(state.address(), TransformerEngine.kNVTEInt64())
                .vector(RANDOMNESS_WORDS)
                .writeTo(handle);
    }

    void close() {
        forward.close();
        backward.close();
        TransformerEngine.te_destroy_tensor(unset);
        TransformerEngine.te_destroy_tensor(noRandomnessHandle);
        device.free(noRandomness, RANDOMNESS_BYTES);
    }
}
