package dev.chagres.io;

import dev.chagres.DType;
import dev.chagres.Shape;
import java.lang.foreign.MemorySegment;
import java.util.function.BiConsumer;

/** Tensors for tests to write. */
final class WriterSources {
    private WriterSources() {}

    static TensorSpec spec(String name, DType dtype, long... sizes) {
        return new TensorSpec(name, dtype, Shape.of(sizes));
    }

    static TensorSource bytes(String name, int... values) {
        byte[] bytes = new byte[values.length];
        for (int i = 0; i < values.length; i++) {
            bytes[i] = (byte) values[i];
        }
        return TensorSource.of(spec(name, DType.BYTE, values.length), MemorySegment.ofArray(bytes));
    }

    /** A source whose pieces {@code filling} fills, which takes the offset and the memory. */
    record Filled(TensorSpec spec, BiConsumer<Long, MemorySegment> filling) implements TensorSource {
        @Override
        public void copyTo(long offset, MemorySegment target) {
            filling.accept(offset, target);
        }
    }
}
