package dev.chagres.te;

import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.NVTETensorPack;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.memory.BasicTensor;
import dev.chagres.internal.memory.DeviceState;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import org.jspecify.annotations.Nullable;

/**
 * The pack of auxiliary tensors that attention's forward call hands to its backward call: log-sum-exp, random state, then the bias
 * and the offset of the softmax where there are such.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code NVTETensorPack} in TE's {@code fused_attn.h}.
 */
final class AuxiliaryPack {
    private static final int STATISTICS = 0;
    private static final int RANDOMNESS = 1;
    private static final int RANK = 4;
    private static final int MOST = 4;

    private final FusedAttentionCalls calls;
    private final BasicTensor description;
    private final MemorySegment pack;
    /** Kept, since a segment made for each call would be garbage. */
    private final MemorySegment[] handles = new MemorySegment[MOST];

    private final long[] sizes = new long[RANK];

    /** Makes a pack of handles without tensors. */
    AuxiliaryPack(FusedAttentionCalls calls) {
        this.calls = calls;
        DeviceState device = calls.device();
        description = device.basicTensor();
        pack = NVTETensorPack.allocate(device.arena());
        Status.te(TransformerEngine.te_tensor_pack_create(pack), "te_tensor_pack_create");
        for (int i = 0; i < MOST; i++) {
            handles[i] =
                    pack.get(ValueLayout.ADDRESS, NVTETensorPack.tensors$offset() + i * ValueLayout.ADDRESS.byteSize());
        }
    }

    MemorySegment segment() {
        return pack;
    }

    /** Empties the pack, so that the library reports which tensors it needs. */
    void clear() {
        NVTETensorPack.size(pack, 0);
    }

    /** Returns the bytes that the library needs for the log-sum-exp. */
    long statisticsBytes() {
        return description.readFrom(handles[STATISTICS]).byteSize();
    }

    /** Describes the tensors of a call. */
    void describe(AttentionTensors tensors) {
        description.readFrom(tensors.statistics().handle()).writeTo(handles[STATISTICS]);
        calls.describeRandomness(tensors.rngState(), handles[RANDOMNESS]);
        int count = RANDOMNESS + 1;
        Tensor bias = tensors.bias();
        if (bias != null) {
            description.readFrom(bias.handle()).writeTo(handles[count]);
            count++;
        }
        NVTETensorPack.size(pack, describeOffset(tensors.softmaxOffset(), count));
    }

    /** [h] as TE has it: [1, h, 1, 1]. */
    private int describeOffset(@Nullable Tensor offset, int index) {
        if (offset == null) {
            return index;
        }
        sizes[0] = 1;
        sizes[1] = offset.count();
        sizes[2] = 1;
        sizes[3] = 1;
        description
                .at(offset.address(), TransformerEngine.kNVTEFloat32())
                .shape(sizes, RANK)
                .writeTo(handles[index]);
        return index + 1;
    }

    void close() {
        TransformerEngine.te_tensor_pack_destroy(pack);
    }
}
