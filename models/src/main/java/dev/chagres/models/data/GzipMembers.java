package dev.chagres.models.data;

import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.util.zip.CRC32;
import java.util.zip.DataFormatException;
import java.util.zip.Inflater;
import java.util.zip.ZipException;

/**
 * Decompresses every member of a gz stream and refuses one that is cut short or damaged.
 *
 * <p>The JDK's own stream takes a broken header of a later member for the end of the data; a file half downloaded, or two
 * files badly joined, would pass for whole.
 *
 * <p>Threading: one thread at a time.
 *
 * <p>Source: RFC 1952.
 */
public final class GzipMembers extends InputStream {
    private static final int HEADER_CRC = 2;
    private static final int EXTRA = 4;
    private static final int NAME = 8;
    private static final int COMMENT = 16;
    private static final int RESERVED = 0xe0;

    private final InputStream in;
    private final byte[] input = new byte[1 << 16];
    private final byte[] single = new byte[1];
    private final Inflater inflater = new Inflater(true);
    private final CRC32 crc = new CRC32();
    private int position;
    private int limit;
    private boolean ended;

    /**
     * Reads the first member's header.
     *
     * @param in is closed with this
     * @throws IOException when it cannot be read, or is no gz
     */
    public GzipMembers(InputStream in) throws IOException {
        this.in = in;
        readHeader();
    }

    @Override
    public int read() throws IOException {
        return read(single, 0, 1) < 0 ? -1 : single[0] & 0xff;
    }

    @Override
    public int read(byte[] destination, int offset, int length) throws IOException {
        if (length == 0) {
            return 0;
        }
        while (!ended) {
            int count = inflate(destination, offset, length);
            if (count > 0) {
                crc.update(destination, offset, count);
                return count;
            }
            if (inflater.finished()) {
                position = limit - inflater.getRemaining();
                readTrailer();
                nextMember();
            } else if (inflater.needsDictionary()) {
                throw new ZipException("gz data is damaged (it asks for a dictionary)");
            } else {
                refill();
                inflater.setInput(input, position, limit - position);
            }
        }
        return -1;
    }

    private int inflate(byte[] destination, int offset, int length) throws IOException {
        try {
            return inflater.inflate(destination, offset, length);
        } catch (DataFormatException e) {
            throw new ZipException("gz data is damaged (" + e.getMessage() + ")");
        }
    }

    private void readHeader() throws IOException {
        if (nextByte() != 0x1f || nextByte() != 0x8b) {
            throw new ZipException("bytes that are no gz follow the gz data");
        }
        int method = nextByte();
        int flags = nextByte();
        if (method != 8 || (flags & RESERVED) != 0) {
            throw new ZipException("gz header is damaged (method " + method + ", flags " + flags + ")");
        }
        skip(6);
        if ((flags & EXTRA) != 0) {
            skip(nextByte() | nextByte() << 8);
        }
        if ((flags & NAME) != 0) {
            skipText();
        }
        if ((flags & COMMENT) != 0) {
            skipText();
        }
        if ((flags & HEADER_CRC) != 0) {
            skip(2);
        }
        inflater.setInput(input, position, limit - position);
    }

    private void readTrailer() throws IOException {
        if (nextInt() != (int) crc.getValue()) {
            throw new ZipException("gz data is damaged (checksum differs)");
        }
        if (nextInt() != (int) inflater.getBytesWritten()) {
            throw new ZipException("gz data is damaged (length differs)");
        }
    }

    /** Goes to the next member; zero bytes up to the end of the file are padding, as gzip itself takes them. */
    private void nextMember() throws IOException {
        boolean padded = false;
        while (true) {
            if (position == limit && !fill()) {
                ended = true;
                return;
            }
            if (input[position] != 0) {
                break;
            }
            padded = true;
            position++;
        }
        if (padded) {
            throw new ZipException("bytes that are no gz follow the gz data");
        }
        inflater.reset();
        crc.reset();
        readHeader();
    }

    private int nextInt() throws IOException {
        return nextByte() | nextByte() << 8 | nextByte() << 16 | nextByte() << 24;
    }

    private int nextByte() throws IOException {
        if (position == limit) {
            refill();
        }
        return input[position++] & 0xff;
    }

    private void skip(int count) throws IOException {
        for (int i = 0; i < count; i++) {
            nextByte();
        }
    }

    private void skipText() throws IOException {
        while (nextByte() != 0) {}
    }

    private void refill() throws IOException {
        if (!fill()) {
            throw new EOFException("gz data ends in the middle (an unfinished download?)");
        }
    }

    private boolean fill() throws IOException {
        int count = in.read(input, 0, input.length);
        position = 0;
        limit = Math.max(count, 0);
        return count > 0;
    }

    @Override
    public void close() throws IOException {
        inflater.end();
        in.close();
    }
}
