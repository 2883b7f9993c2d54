package dev.chagres.io;

import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;

/** The bytes of a header, read as they are parsed: all of them together may be 100 MB. */
final class HeaderBytes extends InputStream {
    private final Source source;
    private long position;
    private final long end;

    /** Fills a buffer from a place in the file on. */
    @FunctionalInterface
    interface Source {
        void fill(long position, ByteBuffer buffer) throws IOException;
    }

    HeaderBytes(Source source, long begin, long size) {
        this.source = source;
        position = begin;
        end = begin + size;
    }

    @Override
    public int read() throws IOException {
        byte[] one = new byte[1];
        return read(one, 0, 1) < 0 ? -1 : one[0] & 0xff;
    }

    @Override
    public int read(byte[] target, int offset, int length) throws IOException {
        int count = (int) Math.min(length, end - position);
        if (count == 0) {
            return length == 0 ? 0 : -1;
        }
        source.fill(position, ByteBuffer.wrap(target, offset, count));
        position += count;
        return count;
    }
}
