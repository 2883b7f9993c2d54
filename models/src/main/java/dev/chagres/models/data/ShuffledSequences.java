package dev.chagres.models.data;

import java.util.Arrays;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import org.jspecify.annotations.Nullable;

/**
 * The sequences of a FASTA source without end: each epoch holds every sequence once, in an order drawn from the seed.
 *
 * <p>A source that fits into the window is read once and drawn anew each epoch. A larger one is read window by window
 * each epoch and drawn within the window, so that memory stays bounded: a thread reads the next window while one is used.
 *
 * <p>Threading: one thread at a time.
 */
public final class ShuffledSequences implements SequenceStream {
    /** Residues held at once unless said otherwise, and once more of a source that is larger. */
    public static final int WINDOW_RESIDUES = 1 << 26;

    private final FastaSource source;
    private final long seed;
    private final Windows windows;
    private final SplitMix random = new SplitMix();

    private Window window = new Window();
    /** Reads the next window, on a thread; null before the first one and where all is in one. */
    private @Nullable FutureTask<Window> ahead;

    private Window spare = new Window();
    private int[] order = new int[256];
    private int next;
    private int current;

    private long epoch;
    private long epochKey;

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
        windows = new Windows(source, windowResidues);
        epochKey = SplitMix.key(seed, 0);
    }

    @Override
    public boolean advance() {
        if (next == window.count) {
            nextWindow();
        }
        current = order[next++];
        return true;
    }

    @Override
    public byte[] residues() {
        return window.letters;
    }

    @Override
    public int offset() {
        return window.starts[current];
    }

    @Override
    public int length() {
        return window.starts[current + 1] - window.starts[current];
    }

    @Override
    public long key() {
        return SplitMix.key(epochKey, window.index + current);
    }

    /** Returns the current epoch, counted from 0. */
    public long epoch() {
        return epoch;
    }

    @Override
    public void close() {
        windows.cancelled = true;
        FutureTask<Window> task = ahead;
        ahead = null;
        if (task != null) {
            try {
                await(task);
            } catch (RuntimeException _) {
                // Nobody wants what it has read.
            }
        }
        windows.close();
    }

    private void nextWindow() {
        if (window.whole) {
            epoch++;
        } else {
            take();
            epoch = window.epoch;
            source.count(window.unknown);
        }
        epochKey = SplitMix.key(seed, epoch);
        shuffle();
        next = 0;
    }

    /** Takes the next window, and lets a thread read the one behind it. */
    private void take() {
        FutureTask<Window> task = ahead;
        ahead = null;
        Window before = window;
        window = task == null ? windows.read(spare) : await(task);
        spare = before;
        if (!window.whole) {
            Window free = before;
            var reading = new FutureTask<>(() -> windows.read(free));
            Thread.ofPlatform().daemon().name("chagres-reader").start(reading);
            ahead = reading;
        }
    }

    private static Window await(FutureTask<Window> task) {
        boolean interrupted = false;
        try {
            while (true) {
                try {
                    return task.get();
                } catch (InterruptedException _) {
                    interrupted = true; // it reads files, which ends
                }
            }
        } catch (ExecutionException failed) {
            if (failed.getCause() instanceof Error error) {
                throw error;
            }
            throw (RuntimeException) failed.getCause();
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    private void shuffle() {
        int count = window.count;
        if (order.length < count) {
            order = new int[window.starts.length];
        }
        random.restart(SplitMix.key(epochKey, -1 - window.index));
        for (int i = 0; i < count; i++) {
            int other = random.next(i + 1);
            order[i] = order[other];
            order[other] = i;
        }
    }

    /** Records that lie side by side in memory, in the order of the source. */
    private static final class Window {
        private byte[] letters = new byte[1 << 16];
        private int[] starts = new int[256];
        private int count;
        /** The first one's number in its epoch. */
        private long index;

        private long epoch;
        /** All records of the source are here. */
        private boolean whole;
        /** Of the epoch up to the end of the window. */
        private UnknownLetters.Count unknown = UnknownLetters.Count.NONE;

        private void append(FastaReader record, int room) {
            int start = starts[count];
            int end = start + record.length();
            if (end > letters.length) {
                letters = Arrays.copyOf(letters, Math.max(end, Math.min(2 * letters.length, room)));
            }
            System.arraycopy(record.residues(), 0, letters, start, record.length());
            count++;
            if (count == starts.length) {
                starts = Arrays.copyOf(starts, 2 * count);
            }
            starts[count] = end;
        }
    }

    /** Reads a source again and again, window by window, by whichever thread asks. */
    private static final class Windows {
        /** Bookkeeping of a record, in residues: many tiny records must not outgrow the window's memory. */
        private static final int RECORD_COST = 8;

        private final FastaSource source;
        private final int windowResidues;
        private volatile boolean cancelled;

        private @Nullable FastaReader reader;
        private long epoch = -1;
        /** The number of the next record in its epoch. */
        private long index;

        Windows(FastaSource source, int windowResidues) {
            this.source = source;
            this.windowResidues = windowResidues;
        }

        /** Fills {@code window} with a record or more. */
        Window read(Window window) {
            do {
                fill(window);
            } while (window.count == 0 && !cancelled);
            return window;
        }

        /** Reads records until the window is full or the source ends; a source that ends in its first window is held whole. */
        private void fill(Window window) {
            boolean first = reader == null;
            FastaReader records = reader == null ? open() : reader;
            window.count = 0;
            window.whole = false;
            window.epoch = epoch;
            window.index = index;
            while (window.starts[window.count] + (long) RECORD_COST * window.count < windowResidues && !cancelled) {
                if (!records.advance()) {
                    window.unknown = records.unknown();
                    index += window.count;
                    close();
                    window.whole = first;
                    return;
                }
                window.append(records, windowResidues);
            }
            window.unknown = records.unknown();
            index += window.count;
            if (!source.isRepeatable()) {
                throw new FastaException(
                        source.name(),
                        "holds more than " + windowResidues + " residues and cannot be read twice; save it as a file");
            }
        }

        private FastaReader open() {
            epoch++;
            index = 0;
            FastaReader records = source.open();
            records.countLater();
            reader = records;
            return records;
        }

        void close() {
            if (reader != null) {
                reader.close();
                reader = null;
            }
        }
    }
}
