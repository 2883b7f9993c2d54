package dev.chagres.io;

import java.nio.file.Path;

/**
 * The part of the Java heap that a header may take. A header of 100 MB, which the format allows, can have two million tensors or nine
 * million texts, and their objects take many times its bytes.
 */
final class HeaderRoom {
    /** The rest is for whoever opens the file, who makes more of each tensor. */
    static final long BYTES = Runtime.getRuntime().maxMemory() / 4;

    /** While a text is read, it is there up to three times, with two bytes a character. */
    static final int LONGEST_TEXT = (int) Math.min(Header.MAX_BYTES, BYTES / 6);

    /** Objects of a tensor, without its name and sizes, and places in collections. */
    private static final int TENSOR = 400;

    private static final int TEXT = 256;

    private final Path file;
    private long taken;
    private int tensors;
    private int texts;

    HeaderRoom(Path file) {
        this.file = file;
    }

    /** Counts a tensor. */
    void takeTensor(String name, long[] sizes) {
        tensors++;
        take(TENSOR + 2L * name.length() + (long) Long.BYTES * sizes.length);
    }

    /** Counts a text of the metadata. */
    void takeText(String key, String text) {
        texts++;
        take(TEXT + 2L * key.length() + 2L * text.length());
    }

    private void take(long bytes) {
        taken += bytes;
        if (taken > BYTES) {
            throw SafetensorsException.of(
                    file,
                    "header: expected tensors and texts that fit into " + BYTES
                            + " bytes, a quarter of the Java heap, got more than that in the first " + tensors
                            + " tensors and " + texts + " texts; " + LARGER_HEAP,
                    null);
        }
    }

    /** What to do about a header that is too large. */
    static final String LARGER_HEAP = "enlarge the heap, such as by java -Xmx4g, if this is the right file";
}
