package dev.chagres.te;

import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.cuda.CudaRuntime;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.memory.DeviceState;
import java.lang.foreign.MemorySegment;
import org.jspecify.annotations.Nullable;

/**
 * What one device keeps for fused attention: the parameter objects of both directions, the handle of an absent tensor, and an unused random
 * state.
 *
 * <p>Threading: the device's thread.
 */
final class FusedAttentionCalls implements AutoCloseable {
    static final DeviceState.Attachment<FusedAttentionCalls> ATTACHMENT =
            new DeviceState.Attachment<>(FusedAttentionCalls::new);

    private static final long RANDOMNESS_WORDS = 2;
    private static final long RANDOMNESS_BYTES = RANDOMNESS_WORDS * Long.BYTES;

    private final DeviceState device;
    private final FusedAttentionForward forward;
    private final FusedAttentionBackward backward;
    private final ScaledAttention scaled;
    private final MemorySegment unset;
    private final MemorySegment noRandomness;
    private final MemorySegment noRandomnessHandle;

    private FusedAttentionCalls(DeviceState device) {
        this.device = device;
        unset = device.get(UnsetTensor.ATTACHMENT).handle();
        noRandomness = device.malloc(RANDOMNESS_BYTES);
        Status.cuda(CudaRuntime.cudaMemset(noRandomness, 0, RANDOMNESS_BYTES), "cudaMemset");
        noRandomnessHandle = device.basicTensor().create();
        describeRandomness(null, noRandomnessHandle);
        scaled = new ScaledAttention(device);
        forward = new FusedAttentionForward(this);
        backward = new FusedAttentionBackward(this);
    }

    FusedAttentionForward forward() {
        return forward;
    }

    FusedAttentionBackward backward() {
        return backward;
    }

    /** Returns the handles of tensors in eight bits. */
    ScaledAttention scaled() {
        return scaled;
    }

    DeviceState device() {
        return device;
    }

    MemorySegment unset() {
        return unset;
    }

    /** Sets lengths of query and key, then their token offsets: four attributes from {@code first} on. */
    void writeLengths(AttributeWriter writer, int first, AttentionProblem problem, AttentionTensors tensors) {
        MemorySegment queries = tensors.queryLengths().handle();
        MemorySegment keys = tensors.keyLengths().handle();
        boolean packed = problem.layout().format() == QkvFormat.THD;
        writer.handle(first, queries);
        writer.handle(first + 1, keys);
        writer.handle(first + 2, packed ? queries : unset);
        writer.handle(first + 3, packed ? keys : unset);
    }

    /** Returns the handle of {@code tensor}; null: that of an absent tensor. */
    MemorySegment handleOf(@Nullable Tensor tensor) {
        return tensor == null ? unset : tensor.handle();
    }

    /** Returns the handle of the random state {@code given}; null: that of the unused one. */
    MemorySegment randomness(@Nullable Tensor given) {
        return given == null ? noRandomnessHandle : given.handle();
    }

    /** Describes the random state {@code given} in {@code handle}; null: the unused one. */
    void describeRandomness(@Nullable Tensor given, MemorySegment handle) {
        long state = given == null ? noRandomness.address() : given.address();
        device.basicTensor()
                .at(state, TransformerEngine.kNVTEInt64())
                .vector(RANDOMNESS_WORDS)
                .writeTo(handle);
    }

    @Override
    public void close() {
        forward.close();
        backward.close();
        scaled.close();
        TransformerEngine.te_destroy_tensor(noRandomnessHandle);
        device.free(noRandomness, RANDOMNESS_BYTES);
    }
}
