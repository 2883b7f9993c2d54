package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.bindings.ops.OpsAttention;
import dev.chagres.bindings.ops.OpsPlace;
import dev.chagres.internal.Checks;
import dev.chagres.te.AttentionTensors;
import java.lang.foreign.MemorySegment;
import org.jspecify.annotations.Nullable;

/**
 * Which sequences, queries, keys and heads a call of {@link Attention} computes of a larger attention, such as one rank's shard. Dropout
 * draws by the indices in the whole, so that the parts drop what one call over the whole would drop: element (b, h, i, j) of the call draws
 * as {@code (sequences[b], first + h, firstQueries[b] + i, firstKeys[b] + j)} of the whole.
 *
 * <p>Without setters called, the call is the whole. Indices are trusted: none may be negative or above {@link Integer#MAX_VALUE} / 4. The
 * object is reused for the next call.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code OpsPlace} in {@code ops.h}.
 */
public final class AttentionPlace {
    /** The diagonal of the mask: the key that each query is paired with. */
    public enum Diagonal {
        /** As the problem's mask says: first query with first key, or last with last. */
        BY_MASK,
        /** The key with the same index in the whole sequence as the query. */
        BY_PLACE
    }

    private @Nullable Tensor sequences;
    private @Nullable Tensor firstQueries;
    private @Nullable Tensor firstKeys;
    private long allHeads;
    private long firstHead;
    private Diagonal diagonal = Diagonal.BY_MASK;

    /** Makes the place of a call that is the whole. */
    public AttentionPlace() {}

    /**
     * Sets which heads of the query the call has.
     *
     * @param all number of heads of the whole; 0: the call has all
     * @param first index of the call's first head
     */
    public AttentionPlace heads(long all, long first) {
        allHeads = all;
        firstHead = first;
        return this;
    }

    /** Sets the index in the whole of each sequence of the call, INT32 [B]; null: 0, 1 and so on. */
    public AttentionPlace sequences(@Nullable Tensor numbers) {
        sequences = numbers;
        return this;
    }

    /** Sets the index in its whole sequence of each sequence's first query, INT32 [B]; null: 0. */
    public AttentionPlace firstQueries(@Nullable Tensor numbers) {
        firstQueries = numbers;
        return this;
    }

    /** Sets the index in its whole sequence of each sequence's first key, INT32 [B]; null: 0. */
    public AttentionPlace firstKeys(@Nullable Tensor numbers) {
        firstKeys = numbers;
        return this;
    }

    /** Sets the diagonal of the mask; that of {@link AttentionScores#alibi} stays as it is. */
    public AttentionPlace diagonal(Diagonal newDiagonal) {
        diagonal = Checks.given("newDiagonal", newDiagonal);
        return this;
    }

    /** Fills in the place inside the struct of an attention, whose alignment was written before. */
    void writeTo(MemorySegment place, MemorySegment attention) {
        OpsPlace.sequences(place, Checks.addressOrNull(sequences));
        OpsPlace.first_queries(place, Checks.addressOrNull(firstQueries));
        OpsPlace.first_keys(place, Checks.addressOrNull(firstKeys));
        OpsPlace.heads(place, allHeads);
        OpsPlace.first_head(place, firstHead);
        if (diagonal == Diagonal.BY_PLACE) {
            OpsAttention.alignment(attention, Ops.OPS_BY_PLACE());
        }
    }

    void check(AttentionTensors tensors, Stream stream) {
        Tensor query = tensors.query();
        long heads = query.size(query.rank() - 2);
        if (allHeads == 0
                ? firstHead != 0
                : allHeads < heads || allHeads > Integer.MAX_VALUE || firstHead < 0 || firstHead > allHeads - heads) {
            throw new IllegalArgumentException("heads: expected the query's " + heads
                    + " to be some of those of the whole, got " + allHeads + " from " + firstHead + " on");
        }
        checkNumbers("sequences", sequences, tensors, stream);
        checkNumbers("firstQueries", firstQueries, tensors, stream);
        checkNumbers("firstKeys", firstKeys, tensors, stream);
    }

    private static void checkNumbers(
            String argument, @Nullable Tensor numbers, AttentionTensors tensors, Stream stream) {
        if (numbers != null) {
            Checks.vector(stream, argument, numbers, DType.INT32, tensors.sequences());
            tensors.checkRead(argument, numbers);
        }
    }
}
