package dev.chagres.te;

import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import org.jspecify.annotations.Nullable;

/**
 * The memory that one attention call reads and writes: what is written may share no byte with anything else.
 *
 * <p>Threading: the device's thread.
 */
final class AttentionMemory {
    /** More than a backward call has tensors, with those that change scores or scale. */
    private static final int MOST = 40;

    private final @Nullable String[] arguments = new String[MOST];
    private final long[] begins = new long[MOST];
    private final long[] ends = new long[MOST];
    private final boolean[] writes = new boolean[MOST];
    private int count;

    /** Forgets the call before. */
    void clear() {
        count = 0;
    }

    /** Says that the call reads {@code byteSize} bytes from the start of {@code tensor} on. */
    void read(String argument, Tensor tensor, long byteSize) {
        if (byteSize > 0) {
            long begin = tensor.address();
            arguments[count] = argument;
            begins[count] = begin;
            ends[count] = begin + byteSize;
            writes[count] = false;
            count++;
        }
    }

    /** Says that the call reads {@code tensor}, and checks that it lies apart from what was said to be written. */
    void readApart(String argument, Tensor tensor) {
        long begin = tensor.address();
        long byteSize = tensor.byteSize();
        for (int i = 0; byteSize > 0 && i < count; i++) {
            if (writes[i] && begin < ends[i] && begins[i] < begin + byteSize) {
                throw new IllegalArgumentException(argument + ": expected memory of its own, got some of "
                        + arguments[i] + "'s, which is written to while it is read");
            }
        }
        read(argument, tensor, byteSize);
    }

    /** Says that the call writes {@code byteSize} bytes from the start of {@code tensor} on, and checks that it may. */
    void written(String argument, Tensor tensor, long byteSize) {
        Checks.writable(argument, tensor);
        long begin = tensor.address();
        for (int i = 0; byteSize > 0 && i < count; i++) {
            if (begin < ends[i] && begins[i] < begin + byteSize) {
                throw new IllegalArgumentException(argument + ": expected memory of its own, got some of "
                        + arguments[i] + "'s; it is written to while that is read or written");
            }
        }
        read(argument, tensor, byteSize);
        if (byteSize > 0) {
            writes[count - 1] = true;
        }
    }
}
