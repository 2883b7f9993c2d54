package dev.chagres.internal;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.memory.WorkListener;
import dev.chagres.internal.memory.WorkListener.Part;

/**
 * Tells a device's {@link WorkListener} of attentions.
 *
 * <p>Threading: the device's thread.
 */
public final class AttentionWork {
    private AttentionWork() {}

    /** Tells of an attention with tensors [..., heads, columns]; {@code left} and {@code right}: keys around the diagonal, -1 all. */
    public static void tell(Part part, Tensor query, Tensor output, long left, long right, Stream stream) {
        WorkListener listener = Inside.state(stream).workListener();
        if (listener != null) {
            int last = query.rank() - 1;
            long valueDim = output.size(output.rank() - 1);
            int bits = Byte.SIZE * query.dtype().byteSize();
            listener.attention(part, query.size(last - 1), query.size(last), valueDim, left, right, bits);
        }
    }
}
