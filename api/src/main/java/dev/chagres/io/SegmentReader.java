package dev.chagres.io;

import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.ByteBuffer;

/** Fills memory segments from a source of byte buffers, which cannot wrap segments of every size and kind. */
final class SegmentReader {
    private static final long LARGEST_BUFFER = 1 << 30;
    private static final long HEAP_PIECE = 1 << 20;

    private SegmentReader() {}

    /** Fills buffers. */
    @FunctionalInterface
    interface Source {
        /**
         * Fills the whole buffer.
         *
         * @param done bytes that were read before
         */
        void fill(ByteBuffer buffer, long done) throws IOException;
    }

    static void read(MemorySegment target, Source source) throws IOException {
        if (target.isNative()) {
            for (long done = 0; done < target.byteSize(); ) {
                long size = Math.min(LARGEST_BUFFER, target.byteSize() - done);
                source.fill(target.asSlice(done, size).asByteBuffer(), done);
                done += size;
            }
        } else {
            readToHeap(target, source);
        }
    }

    /** A buffer can wrap an array of bytes, but not one of floats. */
    private static void readToHeap(MemorySegment target, Source source) throws IOException {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment piece = arena.allocate(Math.min(HEAP_PIECE, target.byteSize()));
            for (long done = 0; done < target.byteSize(); ) {
                long size = Math.min(HEAP_PIECE, target.byteSize() - done);
                source.fill(piece.asSlice(0, size).asByteBuffer(), done);
                MemorySegment.copy(piece, 0, target, done, size);
                done += size;
            }
        }
    }
}
