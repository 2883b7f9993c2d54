package dev.chagres.models.data;

import java.util.List;

/**
 * Sequences of several streams: the one that each comes from is drawn by the streams' weights, from the seed and the sequence's number.
 *
 * <p>Threading: one thread at a time.
 */
final class MixedSequences implements SequenceStream {
    private static final int DOUBLE_BITS = 53;
    private static final long DRAW = 0x6d6978L;

    private final List<SequenceStream> streams;
    /** Sums of the weights up to each stream, of which the last one is 1. */
    private final double[] upTo;

    private final long key;
    private long number;
    private SequenceStream current;

    /** Owns the streams, which have no end, from here on. */
    MixedSequences(List<SequenceStream> streams, double[] weights, long seed) {
        this.streams = streams;
        key = SplitMix.key(seed, DRAW);
        upTo = new double[weights.length];
        double sum = 0;
        for (int i = 0; i < weights.length; i++) {
            sum += weights[i];
            upTo[i] = sum;
        }
        for (int i = 0; i < weights.length; i++) {
            upTo[i] /= sum;
        }
        current = streams.getFirst();
    }

    @Override
    public boolean advance() {
        double drawn = (SplitMix.key(key, number++) >>> (Long.SIZE - DOUBLE_BITS)) * 0x1p-53;
        int chosen = 0;
        while (drawn >= upTo[chosen]) {
            chosen++;
        }
        current = streams.get(chosen);
        return current.advance();
    }

    @Override
    public byte[] residues() {
        return current.residues();
    }

    @Override
    public int offset() {
        return current.offset();
    }

    @Override
    public int length() {
        return current.length();
    }

    @Override
    public long key() {
        return current.key();
    }

    @Override
    public void close() {
        streams.forEach(SequenceStream::close);
    }
}
