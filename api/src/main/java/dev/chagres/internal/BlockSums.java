package dev.chagres.internal;

import java.lang.foreign.MemorySegment;
import java.util.HexFormat;
import java.util.zip.CRC32C;

/**
 * Checksums of the blocks of a range of bytes, CRC-32C each, to which several writers contribute: the sum of a block is the XOR of what each has
 * contributed for its bytes.
 *
 * <p>Threading: thread-safe.
 *
 * <p>Source: zlib's {@code crc32_combine}: {@code crc(a b) = shift(crc(a), length of b) ^ crc(b)}.
 */
public final class BlockSums {
    /** Bytes of a block; the last one of a range may have fewer. */
    public static final long BLOCK_BYTES = 16L << 20;

    private static final int POLYNOMIAL = 0x82F63B78;
    /** For each power of two, what so many zeros do to each bit of a checksum. */
    private static final int[][] ZEROS = zeros();

    private BlockSums() {}

    private static int[][] zeros() {
        int[] bit = new int[Integer.SIZE];
        bit[0] = POLYNOMIAL;
        for (int i = 1; i < Integer.SIZE; i++) {
            bit[i] = 1 << (i - 1);
        }
        int[][] powers = new int[Long.SIZE - 1][];
        powers[0] = twice(twice(twice(bit)));
        for (int i = 1; i < powers.length; i++) {
            powers[i] = twice(powers[i - 1]);
        }
        return powers;
    }

    private static int[] twice(int... operator) {
        int[] result = new int[Integer.SIZE];
        for (int i = 0; i < Integer.SIZE; i++) {
            result[i] = times(operator, operator[i]);
        }
        return result;
    }

    private static int times(int[] operator, int vector) {
        int sum = 0;
        for (int rest = vector, i = 0; rest != 0; rest >>>= 1, i++) {
            sum ^= (rest & 1) == 0 ? 0 : operator[i];
        }
        return sum;
    }

    /** Returns how many blocks so many bytes have. */
    public static int count(long bytes) {
        return Math.toIntExact(Math.ceilDiv(bytes, BLOCK_BYTES));
    }

    /** Returns the checksum of some bytes. */
    public static int of(MemorySegment bytes) {
        CRC32C checksum = new CRC32C();
        checksum.update(bytes.asByteBuffer());
        return (int) checksum.getValue();
    }

    /** Returns the checksums of all blocks of some bytes. */
    public static int[] ofAll(MemorySegment bytes) {
        int[] sums = new int[count(bytes.byteSize())];
        for (int i = 0; i < sums.length; i++) {
            long first = i * BLOCK_BYTES;
            sums[i] = of(bytes.asSlice(first, Math.min(BLOCK_BYTES, bytes.byteSize() - first)));
        }
        return sums;
    }

    /** Returns what bytes contribute to the sum of their block if so many others follow them there. */
    public static int contribution(MemorySegment bytes, long following) {
        int sum = of(bytes);
        long rest = following;
        for (int i = 0; rest != 0; rest >>>= 1, i++) {
            sum = (rest & 1) == 0 ? sum : times(ZEROS[i], sum);
        }
        return sum;
    }

    /** Returns a checksum in eight hexadecimal digits. */
    public static String digits(int sum) {
        return HexFormat.of().toHexDigits(sum);
    }

    /**
     * Returns the checksum that eight hexadecimal digits say.
     *
     * @throws NumberFormatException when they say none
     */
    public static int sum(String digits) {
        if (digits.length() != Integer.BYTES * 2) {
            throw new NumberFormatException("expected eight digits");
        }
        return HexFormat.fromHexDigits(digits);
    }
}
