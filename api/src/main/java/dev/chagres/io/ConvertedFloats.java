package dev.chagres.io;

import dev.chagres.DType;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/**
 * Reads floating-point numbers of a file and converts them to another type, a few at a time, so that only those take host memory twice.
 *
 * <p>Threading: thread-safe.
 */
final class ConvertedFloats {
    /** Numbers that are read at a time. */
    private static final int AT_A_TIME = 1 << 16;

    private ConvertedFloats() {}

    /**
     * Fills {@code target} with the tensor's bytes in {@code dtype} from {@code offset} on. A wider type has the same numbers; a narrower
     * one rounds to nearest even.
     */
    static void read(SafetensorsEntry entry, DType dtype, long offset, MemorySegment target) {
        DType own = entry.dtype();
        long first = offset / dtype.byteSize();
        long count = target.byteSize() / dtype.byteSize();
        float[] values = new float[(int) Math.min(count, AT_A_TIME)];
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment read = arena.allocate((long) values.length * own.byteSize(), Float.BYTES);
            for (long done = 0; done < count; done += AT_A_TIME) {
                int numbers = (int) Math.min(count - done, AT_A_TIME);
                entry.copyTo((first + done) * own.byteSize(), read.asSlice(0, (long) numbers * own.byteSize()));
                own.toFloats(read, 0, values, 0, numbers);
                dtype.fromFloats(values, 0, target, done, numbers);
            }
        }
    }
}
