package dev.chagres.te;

import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.NVTETensorPack;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.memory.DeviceState;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * The pack of auxiliary tensors that attention's forward call hands to its backward call: log-sum-exp, then random state.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code NVTETensorPack} in TE's {@code fused_attn.h}.
 */
final class AuxiliaryPack {
    /** Tensors in the pack when there is neither bias nor sink. */
    static final long TENSORS = 2;

    private AuxiliaryPack() {}

    /** Makes a pack whose handles describe nothing yet. */
    static MemorySegment create(DeviceState device) {
        MemorySegment pack = NVTETensorPack.allocate(device.arena());
        Status.te(TransformerEngine.te_tensor_pack_create(pack), "te_tensor_pack_create");
        return pack;
    }

    static MemorySegment statistics(MemorySegment pack) {
        return handle(pack, 0);
    }

    static MemorySegment randomness(MemorySegment pack) {
        return handle(pack, 1);
    }

    private static MemorySegment handle(MemorySegment pack, int index) {
        return pack.get(ValueLayout.ADDRESS, NVTETensorPack.tensors$offset() + index * ValueLayout.ADDRESS.byteSize());
    }
}
