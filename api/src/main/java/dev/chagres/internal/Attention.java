package dev.chagres.internal;

import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.cuda.CudaRuntime;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.tensor.DType;
import dev.chagres.tensor.Tensor;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import org.jspecify.annotations.Nullable;

/**
 * Fused attention through {@code nvte_fused_attn_fwd_v2} and {@code _bwd_v2}: parameter objects made once, attributes set
 * a call.
 *
 * <p>Each direction is two calls: with an unset workspace the library says what workspace and which auxiliary tensors it
 * wants; with them it runs. The auxiliary tensors (log-sum-exp, random state) are what backward needs.
 *
 * <p>Threading: the device's thread.
 */
public final class Attention {
    private static final int NO_BIAS = 0;
    private static final int SOFTMAX_VANILLA = 0;
    private static final int ROWWISE_DATA = 0;
    private static final long NO_RANDOMNESS_BYTES = 16;
    private static final long PACK_BYTES = 88;
    private static final long PACK_SIZE_OFFSET = 80;
    private static final long RANK_OFFSET = 136;

    private final DeviceState device;
    private final MemorySegment record;
    private final MemorySegment sizeWritten;
    private final AttributeWriter forward;
    private final AttributeWriter backward;
    private final MemorySegment forwardPack;
    private final MemorySegment backwardPack;
    /** The auxiliary tensors of both packs: log-sum-exp, random state. */
    private final MemorySegment forwardStatistics;

    private final MemorySegment forwardRandomness;
    private final MemorySegment backwardStatistics;
    private final MemorySegment backwardRandomness;
    private final MemorySegment unset;
    private final MemorySegment noRandomness;
    private final MemorySegment noRandomnessHandle;
    private @Nullable AttentionSettings forwardSettings;
    private @Nullable AttentionSettings backwardSettings;

    Attention(DeviceState device) {
        this.device = device;
        record = device.arena().allocate(DeviceState.BASIC_TENSOR_BYTES, 8);
        sizeWritten = device.arena().allocate(8, 8);
        forward = new ForwardWriter(forwardParameters(device), device.arena().allocate(8, 8));
        backward = new BackwardWriter(backwardParameters(device), device.arena().allocate(8, 8));
        forwardPack = pack();
        backwardPack = pack();
        forwardStatistics = forwardPack.get(ValueLayout.ADDRESS, 0);
        forwardRandomness = forwardPack.get(ValueLayout.ADDRESS, 8);
        backwardStatistics = backwardPack.get(ValueLayout.ADDRESS, 0);
        backwardRandomness = backwardPack.get(ValueLayout.ADDRESS, 8);
        unset = tensor();
        noRandomness = device.malloc(NO_RANDOMNESS_BYTES);
        Status.cuda(CudaRuntime.cudaMemset(noRandomness, 0, NO_RANDOMNESS_BYTES), "cudaMemset");
        noRandomnessHandle = tensor();
        describe(noRandomnessHandle, noRandomness, DType.INT64, 2);
        absentForward();
        absentBackward();
    }

    /**
     * Enqueues {@code o = softmax(scale q k^T + mask) v} and returns the log-sum-exp, which backward needs.
     *
     * @return FLOAT32, [T, h, 1] packed, [B, h, S, 1] dense, in {@code scope}
     */
    public Tensor forward(Scope scope, AttentionSettings settings, AttentionCall call) {
        Stream stream = scope.stream();
        if (forwardSettings != settings) {
            forward.number(18, settings.mask());
            forward.number(20, settings.windowLeft());
            forward.number(21, settings.windowRight());
            forward.number(24, settings.dropout());
            forward.number(25, settings.scale());
            forward.number(26, settings.layout());
            forward.number(27, settings.format());
            forwardSettings = settings;
        }
        forward.handle(0, call.q.handle());
        forward.handle(1, call.k.handle());
        forward.handle(2, call.v.handle());
        forward.handle(6, call.o.handle());
        sequences(forward, 8, call);
        forward.handle(14, rngHandle(call));
        forward.number(29, call.longest());
        forward.number(30, call.longest());
        forward.handle(32, stream.handle());

        forwardPack.set(ValueLayout.JAVA_LONG, PACK_SIZE_OFFSET, 0);
        forward.handle(31, stream.workspace().asking());
        Status.te(TransformerEngine.te_fused_attn_fwd_v2(forward.object()), "nvte_fused_attn_fwd_v2");

        Tensor statistics = statistics(scope);
        describe(forwardRandomness, rngPointer(call), DType.INT64, 2);
        forward.handle(31, stream.workspace().provided());
        Status.te(TransformerEngine.te_fused_attn_fwd_v2(forward.object()), "nvte_fused_attn_fwd_v2");
        return statistics;
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
        if (backwardSettings != settings) {
            backward.number(19, settings.mask());
            backward.number(21, settings.windowLeft());
            backward.number(22, settings.windowRight());
            backward.number(25, settings.dropout());
            backward.number(26, settings.scale());
            backward.number(27, settings.layout());
            backward.number(28, settings.format());
            backward.number(29, settings.format());
            backward.number(30, settings.layout());
            backwardSettings = settings;
        }
        backward.handle(0, call.q.handle());
        backward.handle(1, call.k.handle());
        backward.handle(2, call.v.handle());
        backward.handle(3, call.o.handle());
        backward.handle(4, dO.handle());
        backward.handle(8, dq.handle());
        backward.handle(9, dk.handle());
        backward.handle(10, dv.handle());
        sequences(backward, 13, call);
        backward.number(33, call.longest());
        backward.number(34, call.longest());
        backward.handle(36, stream.handle());

        copyRecord(statistics.handle(), backwardStatistics);
        describe(backwardRandomness, rngPointer(call), DType.INT64, 2);
        backwardPack.set(ValueLayout.JAVA_LONG, PACK_SIZE_OFFSET, 2);
        backward.handle(35, stream.workspace().asking());
        Status.te(TransformerEngine.te_fused_attn_bwd_v2(backward.object()), "nvte_fused_attn_bwd_v2");
        backward.handle(35, stream.workspace().provided());
        Status.te(TransformerEngine.te_fused_attn_bwd_v2(backward.object()), "nvte_fused_attn_bwd_v2");
    }

    /** Sets lengths of query and key, then token offsets: four attributes from {@code first} on. */
    private void sequences(AttributeWriter writer, int first, AttentionCall call) {
        MemorySegment lengths = call.cuSeqlens().handle();
        MemorySegment offsets = call.packing() == AttentionCall.Packing.PACKED ? lengths : unset;
        writer.handle(first, lengths);
        writer.handle(first + 1, lengths);
        writer.handle(first + 2, offsets);
        writer.handle(first + 3, offsets);
    }

    private MemorySegment rngHandle(AttentionCall call) {
        TensorCell given = call.rngState();
        return given == null ? noRandomnessHandle : given.handle();
    }

    private MemorySegment rngPointer(AttentionCall call) {
        TensorCell given = call.rngState();
        return given == null ? noRandomness : given.pointer();
    }

    /** Allocates the first auxiliary tensor with the shape that the library has written into its handle. */
    private Tensor statistics(Scope scope) {
        Status.te(
                TransformerEngine.te_get_tensor_param_v2(
                        forwardStatistics, ROWWISE_DATA, record, DeviceState.BASIC_TENSOR_BYTES, sizeWritten),
                "nvte_get_tensor_param_v2");
        Tensor statistics = record.get(ValueLayout.JAVA_LONG, RANK_OFFSET) == 3
                ? scope.tensor(DType.FLOAT32, size(0), size(1), size(2))
                : scope.tensor(DType.FLOAT32, size(0), size(1), size(2), size(3));
        copyRecord(statistics.cell().handle(), forwardStatistics);
        return statistics;
    }

    private long size(int dimension) {
        return record.get(ValueLayout.JAVA_LONG, 16 + 8L * dimension);
    }

    /** Absent tensors are live, unset handles: TE takes a handle of 0 for a fault. */
    private void absentForward() {
        for (int attribute : new int[] {3, 4, 5, 12, 13}) {
            forward.handle(attribute, unset);
        }
        forward.handle(7, forwardPack);
        forward.flag(15, (byte) 1);
        forward.number(19, NO_BIAS);
        forward.number(23, SOFTMAX_VANILLA);
    }

    private void absentBackward() {
        for (int attribute : new int[] {5, 6, 11, 12}) {
            backward.handle(attribute, unset);
        }
        backward.handle(7, backwardPack);
        backward.number(20, NO_BIAS);
        backward.number(24, SOFTMAX_VANILLA);
    }

    private MemorySegment pack() {
        MemorySegment pack = device.arena().allocate(PACK_BYTES, 8);
        Status.te(TransformerEngine.te_tensor_pack_create(pack), "nvte_tensor_pack_create");
        return pack;
    }

    private MemorySegment tensor() {
        Status.te(TransformerEngine.te_create_tensor(0, device.out()), "nvte_create_tensor");
        return device.out().get(ValueLayout.ADDRESS, 0);
    }

    private void describe(MemorySegment handle, MemorySegment data, DType dtype, long size) {
        record.set(ValueLayout.JAVA_LONG, 0, data.address());
        record.set(ValueLayout.JAVA_INT, 8, dtype.code());
        record.set(ValueLayout.JAVA_LONG, 16, size);
        record.set(ValueLayout.JAVA_LONG, RANK_OFFSET, 1);
        setRecord(handle);
    }

    private void copyRecord(MemorySegment from, MemorySegment to) {
        Status.te(
                TransformerEngine.te_get_tensor_param_v2(
                        from, ROWWISE_DATA, record, DeviceState.BASIC_TENSOR_BYTES, sizeWritten),
                "nvte_get_tensor_param_v2");
        setRecord(to);
    }

    private void setRecord(MemorySegment handle) {
        Status.te(
                TransformerEngine.te_set_tensor_param_v2(handle, ROWWISE_DATA, record, DeviceState.BASIC_TENSOR_BYTES),
                "nvte_set_tensor_param_v2");
    }

    MemorySegment unset() {
        return unset;
    }

    private static MemorySegment forwardParameters(DeviceState device) {
        Status.te(TransformerEngine.te_create_fused_attn_fwd_params(device.out()), "nvte_create_fused_attn_fwd_params");
        return device.out().get(ValueLayout.ADDRESS, 0);
    }

    private static MemorySegment backwardParameters(DeviceState device) {
        Status.te(TransformerEngine.te_create_fused_attn_bwd_params(device.out()), "nvte_create_fused_attn_bwd_params");
        return device.out().get(ValueLayout.ADDRESS, 0);
    }

    void close() {
        TransformerEngine.te_destroy_fused_attn_fwd_params(forward.object());
        TransformerEngine.te_destroy_fused_attn_bwd_params(backward.object());
        TransformerEngine.te_tensor_pack_destroy(forwardPack);
        TransformerEngine.te_tensor_pack_destroy(backwardPack);
        TransformerEngine.te_destroy_tensor(unset);
        TransformerEngine.te_destroy_tensor(noRandomnessHandle);
        device.free(noRandomness, NO_RANDOMNESS_BYTES);
    }

    private static final class ForwardWriter extends AttributeWriter {
        ForwardWriter(MemorySegment object, MemorySegment value) {
            super(object, value);
        }

        @Override
        void set(MemorySegment target, int attribute, MemorySegment from, long byteSize) {
            Status.te(
                    TransformerEngine.te_set_fused_attn_fwd_params_attribute(target, attribute, from, byteSize),
                    "nvte_set_fused_attn_fwd_params_attribute");
        }
    }

    private static final class BackwardWriter extends AttributeWriter {
        BackwardWriter(MemorySegment object, MemorySegment value) {
            super(object, value);
        }

        @Override
        void set(MemorySegment target, int attribute, MemorySegment from, long byteSize) {
            Status.te(
                    TransformerEngine.te_set_fused_attn_bwd_params_attribute(target, attribute, from, byteSize),
                    "nvte_set_fused_attn_bwd_params_attribute");
        }
    }
}
