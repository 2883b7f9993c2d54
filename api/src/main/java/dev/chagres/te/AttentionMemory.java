package dev.chagres.te;

import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import org.jspecify.annotations.Nullable;

/**
 * The memory that one attention call reads and writes. Written memory may not overlap any other tensor.
 *
 * <p>Threading: the device's thread.
 */
final class AttentionMemory {
    /** More tensors than any backward call has, those for scores and scales included. */
    private static final int MOST = 40;

    private final @Nullable String[] arguments = new String[MOST];
    private final long[] begins = new long[MOST];
    private final long[] ends = new long[MOST];
    private final boolean[] writes = new boolean[MOST];
    private int count;

    /** Starts anew for the next call. */
    void clear() {
        count = 0;
    }

    /** Records that the call reads the first {@code byteSize} bytes of {@code tensor}. */
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

    /** Records that the call reads {@code tensor}, and checks that it overlaps nothing that was recorded as written. */
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

    /** Records that the call writes the first {@code byteSize} bytes of {@code tensor}, and checks that they overlap nothing else. */
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
