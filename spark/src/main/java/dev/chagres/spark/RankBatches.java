package dev.chagres.spark;

import dev.chagres.batch.Batch;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.Batches;
import dev.chagres.batch.SequencePacker;
import dev.chagres.launch.Rank;
import dev.chagres.models.data.MaskedProteins;
import org.jspecify.annotations.Nullable;

/**
 * The batches of a rank, of the sequences of its partition, each once: as many as the rank that has most. A rank whose partition has ended
 * takes part with a token that has no label, until all have.
 *
 * <p>While the device computes a step, the task's thread takes the next sequences from the partition.
 *
 * <p>Threading: the task's thread.
 */
final class RankBatches implements Batches, AutoCloseable {
    private final BatchShape shape;
    private final SequencePacker packer;
    private final Batch batch;
    private final StepSum labelledTokens;

    RankBatches(Rank rank, BatchShape shape, PartitionSequences sequences) {
        this.shape = shape;
        packer = new SequencePacker(shape, new MaskedProteins(sequences));
        batch = new Batch(shape);
        labelledTokens = new StepSum(rank);
    }

    /** Returns this rank's part of the next step; null when no rank has any. */
    @Override
    public @Nullable Batch take() {
        int own = packer.fill(batch) ? batch.labelled() : 0;
        long all = labelledTokens.of(own);
        if (all == 0) {
            return null;
        }
        if (own == 0) {
            new SequencePacker(shape, new NoSequence()).fill(batch);
        }
        batch.partOf(all);
        return batch;
    }

    @Override
    public void recycle(Batch taken) {
        // It is filled again by the next call, when the one before has been copied.
    }

    /**
     * {@inheritDoc}
     *
     * @throws UnsupportedOperationException always, since the other ranks would wait
     */
    @Override
    public void stop() {
        throw new UnsupportedOperationException(
                "stop: the ranks of a barrier stage end together, when no partition has sequences left");
    }

    @Override
    public void close() {
        labelledTokens.close();
        packer.close();
    }
}
