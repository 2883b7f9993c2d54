package dev.chagres.models.data;

import java.util.Arrays;
import org.jspecify.annotations.Nullable;

/**
 * The sequences of a FASTA source without end: each epoch holds every sequence once, in an order drawn from the seed.
 *
 * <p>A source that fits into the window is read once and drawn anew each epoch. A larger one is read window by window
 * each epoch and drawn within the window, so that memory stays bounded.
 *
 * <p>Threading: one thread at a time.
 */
public final class ShuffledSequences implements SequenceStream {
    /** Residues held at once unless said otherwise. */
    public static final int WINDOW_RESIDUES = 1 << 26;

    /** Bookkeeping of a record, in residues: many tiny records must not outgrow the window's memory. */
    private static final int RECORD_COST = 8;

    private final FastaSource source;
    private final long seed;
    private final int windowResidues;
    private final SplitMix random = new SplitMix();

    private byte[] letters = new byte[1 << 16];
    private int[] starts = new int[256];
    private int[] order = new int[256];
    private int count;
    private int next;
    private int current;

    private @Nullable FastaReader reader;
    private boolean opened;
    private boolean whole;
    private long epoch;
    private long epochKey;
    private long indexOfWindow;

    /**
     * Opens nothing yet: the first {@link #advance} does.
     *
     * @param source the records
     * @param seed what the order, and every sequence's {@link #key}, follow from
     * @throws IllegalArgumentException when {@code windowResidues} is not positive
     */
    public ShuffledSequences(FastaSource source, long seed, int windowResidues) {
        if (windowResidues < 1) {
            throw new IllegalArgumentException("windowResidues: expected at least 1, got " + windowResidues);
        }
        this.source = source;
        this.seed = seed;
        this.windowResidues = windowResidues;
        this.epochKey = SplitMix.key(seed, 0);
    }

    @Override
    public boolean advance() {
        if (next == count) {
            nextWindow();
        }
        current = order[next++];
        return true;
    }

    @Override
    public byte[] residues() {
        return letters;
    }

    @Override
    public int offset() {
        return starts[current];
    }

    @Override
    public int length() {
        return starts[current + 1] - starts[current];
    }

    @Override
    public long key() {
        return SplitMix.key(epochKey, indexOfWindow + current);
    }

    /** Returns the current epoch, counted from 0. */
    public long epoch() {
        return epoch;
    }

    @Override
    public void close() {
        if (reader != null) {
            reader.close();
            reader = null;
        }
    }

    private void nextWindow() {
        if (whole) {
            beginEpoch();
        } else {
            do {
                fill();
            } while (count == 0);
        }
        shuffle();
        next = 0;
    }

    private void beginEpoch() {
        epoch++;
        epochKey = SplitMix.key(seed, epoch);
        indexOfWindow = 0;
    }

    /** Reads records until the window is full or the source ends; a source that ends in its first window is held whole. */
    private void fill() {
        indexOfWindow += count;
        count = 0;
        boolean first = reader == null;
        FastaReader records = reader == null ? open() : reader;
        while (starts[count] + (long) RECORD_COST * count < windowResidues) {
            if (!records.advance()) {
                close();
                whole = first;
                return;
            }
            append(records);
        }
        if (!source.isRepeatable()) {
            throw new FastaException(
                    source.name(),
                    "holds more than " + windowResidues + " residues and cannot be read twice; save it as a file");
        }
    }

    private FastaReader open() {
        if (opened) {
            beginEpoch();
        }
        opened = true;
        FastaReader records = source.open();
        reader = records;
        return records;
    }

    private void append(FastaReader record) {
        int start = starts[count];
        int end = start + record.length();
        if (end > letters.length) {
            letters = Arrays.copyOf(letters, Math.max(end, 2 * letters.length));
        }
        System.arraycopy(record.residues(), 0, letters, start, record.length());
        count++;
        if (count == starts.length) {
            starts = Arrays.copyOf(starts, 2 * count);
            order = Arrays.copyOf(order, 2 * count);
        }
        starts[count] = end;
    }

    private void shuffle() {
        random.restart(SplitMix.key(epochKey, -1 - indexOfWindow));
        for (int i = 0; i < count; i++) {
            int other = random.next(i + 1);
            order[i] = order[other];
            order[other] = i;
        }
    }
}
