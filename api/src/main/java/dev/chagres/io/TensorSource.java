package dev.chagres.io;

import dev.chagres.internal.Checks;
import java.lang.foreign.MemorySegment;
import org.jspecify.annotations.Nullable;

/**
 * A tensor to be written: its spec, and the source of its bytes. Large tensors are fetched in pieces, so that host memory need not hold a
 * whole one.
 *
 * <p>Threading: called by the thread that writes.
 */
public interface TensorSource {
    /** Returns name, type and shape; the same each time. */
    TensorSpec spec();

    /**
     * Fills {@code target} with the bytes of the tensor from {@code offset} on, little-endian, row-major. Pieces are requested in order and
     * hold whole elements.
     *
     * @param offset in bytes, from the tensor's first one
     * @param target native memory that the source may use until it returns
     */
    void copyTo(long offset, MemorySegment target);

    /** Finds the sources of tensors that are to be filled. */
    @FunctionalInterface
    interface Lookup {
        /** Returns what has the bytes of {@code spec}; null leaves the tensor as it is. */
        @Nullable
        TensorSource find(TensorSpec spec);
    }

    /**
     * Returns a source whose bytes lie in memory.
     *
     * @param bytes as many as {@code spec} says; must stay as they are until they are written
     * @throws IllegalArgumentException when there are more or fewer
     */
    static TensorSource of(TensorSpec spec, MemorySegment bytes) {
        if (Checks.given("bytes", bytes).byteSize()
                != Checks.given("spec", spec).byteSize()) {
            throw new IllegalArgumentException(
                    "bytes: expected " + spec.byteSize() + " for " + spec + ", got " + bytes.byteSize());
        }
        return new TensorSource() {
            @Override
            public TensorSpec spec() {
                return spec;
            }

            @Override
            public void copyTo(long offset, MemorySegment target) {
                long wanted = Checks.given("target", target).byteSize();
                if (offset < 0 || offset > bytes.byteSize() - wanted) {
                    throw new IllegalArgumentException("offset: expected bytes of the " + bytes.byteSize() + " of "
                            + spec + ", got " + wanted + " from " + offset + " on");
                }
                MemorySegment.copy(bytes, offset, target, 0, target.byteSize());
            }
        };
    }
}
