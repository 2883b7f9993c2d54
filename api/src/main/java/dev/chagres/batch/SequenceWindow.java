package dev.chagres.batch;

import org.jspecify.annotations.Nullable;

/**
 * The next sequences of the data, from which a packer chooses. It copies them, since the data has one current sequence.
 *
 * <p>Threading: one thread at a time.
 */
final class SequenceWindow implements AutoCloseable {
    /** A sequence, or as much of it as a context has. */
    static final class Copy {
        private final int[] ids;
        private final int[] labels;
        private int length;
        private int labelled;

        private Copy(int context) {
            ids = new int[context];
            labels = new int[context];
        }

        int length() {
            return length;
        }

        private void read(TokenSequences source) {
            int whole = source.length();
            if (whole < 1) {
                throw new IllegalStateException("sequences: expected at least 1 token in each, got " + whole);
            }
            length = Math.min(whole, ids.length);
            labelled = source.write(ids, labels, 0, length);
        }

        /** Writes it from {@code start} on, and returns how many tokens have a label. */
        int write(int[] allIds, int[] allLabels, int start) {
            System.arraycopy(ids, 0, allIds, start, length);
            System.arraycopy(labels, 0, allLabels, start, length);
            return labelled;
        }
    }

    private final TokenSequences source;
    /** A ring; {@link #oldest} is the place of the first sequence that is left. */
    private final Copy[] copies;

    private int oldest;
    /** How many sequences were read from the first that is left on. */
    private int read;
    /** The number of the first sequence that is left. */
    private long next;
    /** Bit i: sequence next + i was taken. */
    private long taken;

    private int chosen;
    private boolean ended;
    /** What the source threw: from then on it is thrown whenever the sequence is needed. */
    private @Nullable RuntimeException failure;

    /** The source is at {@code start} already. */
    SequenceWindow(TokenSequences source, int context, PackingOrder order, DataPosition start) {
        this.source = source;
        copies = new Copy[order.lookAhead() + 1];
        for (int i = 0; i < copies.length; i++) {
            copies[i] = new Copy(context);
        }
        next = start.next();
        taken = start.takenAhead() << 1;
    }

    long next() {
        return next;
    }

    /** Returns bits of the sequences after the next one, as {@link DataPosition#takenAhead}. */
    long takenAhead() {
        return taken >>> 1;
    }

    int padding() {
        return source.padding();
    }

    /** Returns the sequence that comes next in no more than {@code room} tokens; null if there is none. */
    @Nullable
    Copy choose(int room) {
        if (!isRead(0)) {
            return null;
        }
        chosen = 0;
        if (at(0).length <= room) {
            return at(0);
        }
        Copy longest = null;
        for (int i = 1; i < copies.length && isRead(i); i++) {
            Copy one = at(i);
            boolean left = (taken >>> i & 1) == 0;
            if (left && one.length <= room && (longest == null || one.length > longest.length)) {
                longest = one;
                chosen = i;
            }
        }
        return longest;
    }

    private Copy at(int index) {
        return copies[(oldest + index) % copies.length];
    }

    /** Takes away the sequence that was chosen. */
    void take() {
        taken |= 1L << chosen;
        while ((taken & 1) != 0) {
            if (read > 0) {
                read--;
            } else {
                source.advance(); // Taken by an earlier packer.
            }
            taken >>>= 1;
            oldest = (oldest + 1) % copies.length;
            next++;
        }
    }

    /** Reads as far as the sequence of this index, counted from the first that is left; false if the data ends before it. */
    private boolean isRead(int index) {
        while (read <= index) {
            if (index == 0 && failure != null) {
                throw failure;
            }
            if (ended || !readNext(index)) {
                ended = true;
                return false;
            }
            read++;
        }
        return true;
    }

    /** A failure is thrown once the sequence is needed: those before it are still good. */
    private boolean readNext(int index) {
        try {
            if (!source.advance()) {
                return false;
            }
            if ((taken >>> read & 1) == 0) {
                at(read).read(source);
            }
            return true;
        } catch (RuntimeException thrown) {
            failure = thrown;
            if (index == 0) {
                throw thrown;
            }
            return false;
        }
    }

    @Override
    public void close() {
        source.close();
    }
}
