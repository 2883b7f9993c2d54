package dev.chagres.io;

import dev.chagres.DType;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

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
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment read = arena.allocate(Math.min(count, AT_A_TIME) * own.byteSize(), Float.BYTES);
            for (long done = 0; done < count; done += AT_A_TIME) {
                int numbers = (int) Math.min(count - done, AT_A_TIME);
                entry.copyTo((first + done) * own.byteSize(), read.asSlice(0, (long) numbers * own.byteSize()));
                MemorySegment converted = target.asSlice(done * dtype.byteSize(), (long) numbers * dtype.byteSize());
                convert(read, own, converted, dtype, numbers);
            }
        }
    }

    private static void convert(MemorySegment read, DType own, MemorySegment converted, DType dtype, int numbers) {
        for (int i = 0; i < numbers; i++) {
            float value = number(read, own, i);
            switch (dtype) {
                case BFLOAT16 -> converted.setAtIndex(ValueLayout.JAVA_SHORT_UNALIGNED, i, DType.toBfloat16(value));
                case FLOAT16 -> converted.setAtIndex(ValueLayout.JAVA_SHORT_UNALIGNED, i, Float.floatToFloat16(value));
                default -> converted.setAtIndex(ValueLayout.JAVA_FLOAT_UNALIGNED, i, value);
            }
        }
    }

    /** Returns number {@code index} of {@code memory}; {@code dtype}: FLOAT32, BFLOAT16 or FLOAT16. */
    static float number(MemorySegment memory, DType dtype, long index) {
        return switch (dtype) {
            case BFLOAT16 ->
                Float.intBitsToFloat(memory.getAtIndex(ValueLayout.JAVA_SHORT_UNALIGNED, index) << Short.SIZE);
            case FLOAT16 -> Float.float16ToFloat(memory.getAtIndex(ValueLayout.JAVA_SHORT_UNALIGNED, index));
            default -> memory.getAtIndex(ValueLayout.JAVA_FLOAT_UNALIGNED, index);
        };
    }
}
