package dev.chagres.spark;

import dev.chagres.bindings.ForeignText;
import dev.chagres.models.data.EsmVocabulary;
import dev.chagres.models.data.SequenceStream;
import dev.chagres.models.data.SplitMix;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import org.jspecify.annotations.Nullable;

/**
 * The protein sequences of a partition, each once, as its iterator gives them: one letter a residue, upper or lower case.
 *
 * <p>What is drawn for a sequence, such as its masks, follows from the seed, the partition and its place in it.
 *
 * <p>Threading: the task's thread, on which alone Spark's iterators may rely on the task's context.
 */
final class PartitionSequences implements SequenceStream {
    private final Iterator<@Nullable String> partition;
    private final int index;
    private final long partitionKey;
    private byte[] residues = new byte[0];
    private long taken;

    /** Reads the partition of a number. */
    PartitionSequences(Iterator<@Nullable String> partition, int index, long seed) {
        this.partition = partition;
        this.index = index;
        partitionKey = SplitMix.key(seed, index);
    }

    /**
     * {@inheritDoc}
     *
     * @throws IllegalArgumentException when the next sequence is null or empty, or has a letter that no residue has; the text names its
     *     place
     */
    @Override
    public boolean advance() {
        if (!partition.hasNext()) {
            return false;
        }
        String next = partition.next();
        taken++;
        if (next == null || next.isEmpty()) {
            throw new IllegalArgumentException(
                    place() + ": expected at least one residue, got " + (next == null ? "null" : "none"));
        }
        residues = next.getBytes(StandardCharsets.ISO_8859_1);
        for (int i = 0; i < residues.length; i++) {
            if (EsmVocabulary.residueToken(residues[i]) < 0) {
                throw new IllegalArgumentException(place() + ": expected letters of ESM-2's vocabulary, got '"
                        + ForeignText.plain(next.charAt(i)) + "' at place " + (i + 1) + " of " + residues.length);
            }
        }
        return true;
    }

    private String place() {
        return "partition " + index + ", sequence " + taken;
    }

    /** Returns how many sequences the iterator has given. */
    long taken() {
        return taken;
    }

    @Override
    public byte[] residues() {
        return residues;
    }

    @Override
    public int offset() {
        return 0;
    }

    @Override
    public int length() {
        return residues.length;
    }

    @Override
    public long key() {
        return SplitMix.key(partitionKey, taken);
    }

    @Override
    public void close() {
        // The partition is Spark's.
    }
}
