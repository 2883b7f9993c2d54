package dev.chagres.ops;

import dev.chagres.bindings.ops.Ops;
import dev.chagres.bindings.ops.OpsRotary;
import dev.chagres.internal.Checks;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.te.FusedRope.Pairing;
import java.lang.foreign.MemorySegment;
import org.jspecify.annotations.Nullable;

/**
 * The native struct of a rotation, made once per device and filled anew by each call.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code OpsRotary} in {@code ops.h}.
 */
final class RotaryStruct implements AutoCloseable {
    static final DeviceState.Attachment<RotaryStruct> ATTACHMENT = new DeviceState.Attachment<>(RotaryStruct::new);

    private final MemorySegment segment;

    private RotaryStruct(DeviceState device) {
        segment = OpsRotary.allocate(device.arena());
    }

    /** Fills in the struct of {@code tokens} tokens; without a table nothing is rotated. */
    MemorySegment describe(
            QkvHeads heads, @Nullable RotaryTable table, TokenPositions positions, int sign, long tokens, int dtype) {
        OpsRotary.cu_seqlens(segment, Checks.addressOrNull(positions.cuSeqlens()));
        OpsRotary.start_positions(segment, Checks.addressOrNull(positions.startPositions()));
        OpsRotary.tokens(segment, tokens);
        OpsRotary.extent(segment, positions.extent());
        OpsRotary.heads(segment, heads.heads());
        OpsRotary.kv_heads(segment, heads.keyHeads());
        OpsRotary.head_dim(segment, heads.headDim());
        OpsRotary.layout(segment, positions.code());
        OpsRotary.direction(segment, sign);
        OpsRotary.dtype(segment, dtype);
        if (table == null) {
            describe(0, 0, 0, Ops.OPS_HALVES());
        } else {
            int pairing = table.pairing() == Pairing.INTERLEAVED ? Ops.OPS_INTERLEAVED() : Ops.OPS_HALVES();
            describe(table.angles().address(), table.angles().size(0), table.rotatedDim(), pairing);
        }
        return segment;
    }

    private void describe(long angles, long positions, long rotatedDim, int pairing) {
        OpsRotary.angles(segment, angles);
        OpsRotary.positions(segment, positions);
        OpsRotary.rotated_dim(segment, rotatedDim);
        OpsRotary.pairing(segment, pairing);
    }

    @Override
    public void close() {
        // The memory is the device's.
    }
}
