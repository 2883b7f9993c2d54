package dev.chagres.layer;

import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.internal.Checks;
import dev.chagres.nccl.Communicator;
import dev.chagres.ops.Columns;
import dev.chagres.parallel.ContextParallel;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.pass.Pass;
import org.jspecify.annotations.Nullable;

/**
 * The all-to-all before and after the attention of N context-parallel ranks: from all heads of a rank's tokens to all tokens of a rank's
 * heads, and back. Each direction is the gradient of the other.
 *
 * <p>A row has sections of heads, such as query, key and value, of W columns in all. Rank p attends with the p-th of N equal parts of each
 * section, and has the tokens that {@link ContextParallel#begin} gives it: ranks may have unequal numbers of tokens.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: TE's {@code flash_attn_a2a_communicate}.
 */
final class HeadAllToAll {
    private enum Direction {
        TO_HEADS,
        TO_TOKENS
    }

    private final ContextParallel ranks;
    /** Columns of each section, with all heads. */
    private final long[] sections;

    private final long columns;
    /** Whether all sections have equally many columns. */
    private final boolean isEven;

    private final Runnable transfers = this::transfer;
    /** The buffers of {@link #transfer} while it runs: a block [t, W / N] for each rank. */
    private @Nullable Tensor blocks;
    /** [T, W / N]. */
    private @Nullable Tensor heads;

    private @Nullable Pass pass;
    private Direction direction = Direction.TO_HEADS;

    /**
     * Makes one for the ranks of {@code plan}.
     *
     * @param heads of each section, those that a rank attends with
     */
    static HeadAllToAll of(ModelPlan plan, int headDim, int... heads) {
        ContextParallel ranks = plan.contextParallel();
        long[] sections = new long[heads.length];
        for (int i = 0; i < heads.length; i++) {
            sections[i] = (long) heads[i] * headDim * (ranks.dividesHeads() ? ranks.size() : 1);
        }
        return new HeadAllToAll(ranks, sections);
    }

    private HeadAllToAll(ContextParallel ranks, long[] sections) {
        this.ranks = ranks;
        this.sections = sections;
        long sum = 0;
        boolean even = true;
        for (long section : sections) {
            sum += section;
            even &= section == sections[0];
        }
        columns = sum;
        isEven = even;
    }

    /** Returns whether ranks have parts of the tokens. */
    boolean isNeeded() {
        return ranks.dividesHeads();
    }

    /** Checks that {@code rows} are this rank's part of the tokens of {@code sequences}, or all of them. */
    void checkTokens(String argument, Tensor tensor, long rows, Sequences sequences) {
        if (isNeeded()) {
            ranks.checkPart(argument, rows, sequences.tokens());
        } else {
            sequences.checkTokens(argument, tensor, rows);
        }
    }

    /**
     * Enqueues all tokens of this rank's heads.
     *
     * @param own [t, W], this rank's tokens
     * @param tokens T, of all ranks
     * @param scope owns the result
     * @return [T, W / N]; {@code own} itself where a rank has all tokens
     */
    Tensor toHeads(Tensor own, long tokens, Scope scope, Pass current) {
        if (!isNeeded()) {
            return own;
        }
        int size = ranks.size();
        long rows = own.size(0);
        Tensor result = scope.tensor(own.dtype(), tokens, columns / size);
        Tensor packed = current.temporary().tensor(own.dtype(), size * rows, columns / size);
        for (int rank = 0; rank < size; rank++) {
            Tensor block = rank == ranks.rank() ? chunk(result, rank, current) : block(packed, rank, rows, current);
            copy(own, rank, block, Direction.TO_HEADS, current);
        }
        exchange(packed, result, Direction.TO_HEADS, current);
        return result;
    }

    /**
     * Enqueues all heads of this rank's tokens.
     *
     * @param own [T, W / N], of this rank's heads
     * @param scope owns the result
     * @return [t, W]; {@code own} itself where a rank has all tokens
     */
    Tensor toTokens(Tensor own, Scope scope, Pass current) {
        if (!isNeeded()) {
            return own;
        }
        int size = ranks.size();
        long rows = ranks.count(own.size(0));
        Tensor result = scope.tensor(own.dtype(), rows, columns);
        Tensor packed = current.temporary().tensor(own.dtype(), size * rows, columns / size);
        exchange(packed, own, Direction.TO_TOKENS, current);
        for (int rank = 0; rank < size; rank++) {
            Tensor block = rank == ranks.rank() ? chunk(own, rank, current) : block(packed, rank, rows, current);
            copy(result, rank, block, Direction.TO_TOKENS, current);
        }
        return result;
    }

    /** Copies the heads of {@code rank} between {@code all} [t, W] and {@code block} [t, W / N]. */
    private void copy(Tensor all, int rank, Tensor block, Direction towards, Pass current) {
        long rows = all.size(0);
        int size = ranks.size();
        if (isEven) { // Equal sections can be copied as rows of one matrix.
            Scope temporary = current.temporary();
            long section = sections[0];
            Tensor wide = temporary.view(all, 0, rows * sections.length, section);
            Tensor narrow = temporary.view(block, 0, rows * sections.length, section / size);
            copyColumns(wide, rank * section / size, narrow, 0, section / size, towards, current);
            return;
        }
        long offset = 0;
        for (long section : sections) {
            long part = section / size;
            copyColumns(all, offset + rank * part, block, offset / size, part, towards, current);
            offset += section;
        }
    }

    private static void copyColumns(
            Tensor all, long column, Tensor block, long blockColumn, long count, Direction towards, Pass current) {
        if (towards == Direction.TO_HEADS) {
            Columns.copyColumns(all, column, block, blockColumn, count, current.stream());
        } else {
            Columns.copyColumns(block, blockColumn, all, column, count, current.stream());
        }
    }

    /** Returns what is sent to, or received from, {@code rank}. */
    private Tensor block(Tensor packed, int rank, long rows, Pass current) {
        long part = columns / ranks.size();
        return current.temporary().view(packed, rank * rows * part, rows, part);
    }

    /** Returns the tokens of {@code rank} among all. */
    private Tensor chunk(Tensor whole, int rank, Pass current) {
        long part = columns / ranks.size();
        long first = ranks.begin(whole.size(0), rank);
        long end = ranks.begin(whole.size(0), rank + 1);
        return current.temporary().view(whole, first * part, end - first, part);
    }

    private void exchange(Tensor packed, Tensor whole, Direction towards, Pass current) {
        blocks = packed;
        heads = whole;
        pass = current;
        direction = towards;
        try {
            Communicator.group(transfers);
        } finally {
            blocks = null;
            heads = null;
            pass = null;
        }
    }

    /** Sends to every other rank, and receives from it. */
    private void transfer() {
        Pass current = Checks.given("pass", pass);
        Tensor packed = Checks.given("blocks", blocks);
        Tensor whole = Checks.given("heads", heads);
        Communicator group = ranks.group();
        long rows = packed.size(0) / ranks.size();
        for (int rank = 0; rank < ranks.size(); rank++) {
            if (rank == ranks.rank()) {
                continue;
            }
            Tensor block = block(packed, rank, rows, current);
            Tensor chunk = chunk(whole, rank, current);
            group.send(direction == Direction.TO_HEADS ? block : chunk, rank, current.stream());
            group.receive(direction == Direction.TO_HEADS ? chunk : block, rank, current.stream());
        }
    }

    /** Describes the exchange of heads; empty if a rank has all tokens. */
    String explain() {
        return isNeeded()
                ? "tokens of this rank's heads from the other " + (ranks.size() - 1)
                        + " ranks, and back behind attention, by ncclSend and ncclRecv, packed by cudaMemcpy2DAsync"
                : "";
    }
}
