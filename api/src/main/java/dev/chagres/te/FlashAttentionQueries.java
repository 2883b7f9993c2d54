package dev.chagres.te;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.BasicTensor;
import dev.chagres.internal.memory.DeviceState;
import java.lang.foreign.MemorySegment;

/**
 * A handle, one per device, that describes queries, keys and values [S, B, h, 384] by their address and the shape of the queries alone, [S,
 * B, h, 128]: TE reads all three, but asks for this shape.
 *
 * <p>Threading: the device's thread.
 */
final class FlashAttentionQueries implements AutoCloseable {
    private static final DeviceState.Attachment<FlashAttentionQueries> ATTACHMENT =
            new DeviceState.Attachment<>(FlashAttentionQueries::new);

    private final BasicTensor description;
    private final MemorySegment handle;
    private final long[] sizes = new long[4];

    private FlashAttentionQueries(DeviceState device) {
        description = device.basicTensor();
        handle = description.create();
    }

    /** Returns the handle for {@code qkvi}, until the next call. */
    static MemorySegment handle(Tensor qkvi, Stream stream) {
        FlashAttentionQueries queries = Inside.state(stream).get(ATTACHMENT);
        for (int i = 0; i < 3; i++) {
            queries.sizes[i] = qkvi.size(i);
        }
        queries.sizes[3] = qkvi.size(3) / 3;
        queries.description
                .at(qkvi.address(), qkvi.dtype().code())
                .shape(queries.sizes, 4)
                .writeTo(queries.handle);
        return queries.handle;
    }

    @Override
    public void close() {
        TransformerEngine.te_destroy_tensor(handle);
    }
}
