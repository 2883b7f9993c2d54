package dev.chagres.conformance;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/** The bytes of a tensor of any type. */
public final class TensorBytes {
    private TensorBytes() {}

    /** Returns all bytes of {@code tensor}. */
    public static byte[] read(Tensor tensor, Stream stream) {
        if (tensor.byteSize() == 0) {
            return new byte[0];
        }
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment host = arena.allocate(tensor.byteSize());
            tensor.copyTo(stream, host);
            stream.synchronize();
            return host.toArray(ValueLayout.JAVA_BYTE);
        }
    }

    /** Sets all bytes of {@code tensor}. */
    public static void write(Tensor tensor, byte[] bytes, Stream stream) {
        if (tensor.byteSize() == 0) {
            return;
        }
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment host = arena.allocateFrom(ValueLayout.JAVA_BYTE, bytes);
            tensor.copyFrom(stream, host);
            stream.synchronize();
        }
    }
}
