package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.RingSequences.Block;
import dev.chagres.internal.Checks;
import dev.chagres.layer.PassRing.Cargo;
import dev.chagres.parallel.ContextParallel;
import org.jspecify.annotations.Nullable;

/**
 * Two tensors of each rank's tokens that are passed round the ranks, such as keys and values: after s steps this rank has those of the s-th
 * rank before it.
 *
 * <p>Threading: the device's thread.
 */
final class RingPair {
    /** A rank's own, and two buffers for others, used in turn. */
    private static final int SLOTS = 3;

    private final ContextParallel ranks;
    private final RingTransfer transfer;
    private final Cargo cargo;
    private final @Nullable Tensor[] first = new Tensor[SLOTS];
    private final @Nullable Tensor[] second = new Tensor[SLOTS];
    private long tokens;

    RingPair(ContextParallel ranks, RingTransfer transfer, Cargo cargo) {
        this.ranks = ranks;
        this.transfer = transfer;
        this.cargo = cargo;
    }

    /** Begins with a rank's own two tensors, of equal shapes, and allocates buffers for others in {@code scope}. */
    void begin(Tensor own, Tensor ownSecond, long newTokens, Scope scope) {
        tokens = newTokens;
        first[0] = own;
        second[0] = ownSecond;
        long most = 0;
        for (int rank = 0; rank < ranks.size(); rank++) {
            most = Math.max(most, ranks.count(tokens, rank));
        }
        DType dtype = own.dtype();
        for (int i = 1; i < SLOTS; i++) {
            first[i] = scope.tensor(dtype, most, own.size(1), own.size(2));
            second[i] = scope.tensor(dtype, most, own.size(1), own.size(2));
        }
    }

    /** Enqueues the step after {@code step}, which waits for what the pass has enqueued so far. */
    void send(int step, Pass pass) {
        Scope views = pass.temporary();
        transfer.move(
                first(step, views), second(step, views), first(step + 1, views), second(step + 1, views), cargo, pass);
    }

    /** Makes later work of the pass wait for the step that was enqueued last. */
    void await(Pass pass) {
        pass.ring().await(cargo);
    }

    /** Returns the first tensor as it is after {@code step} steps. */
    Tensor first(int step, Scope views) {
        return rows(first[slot(step)], 0, count(step), views);
    }

    Tensor second(int step, Scope views) {
        return rows(second[slot(step)], 0, count(step), views);
    }

    /** Returns the rows of the first tensor after {@code step} steps that are keys of a block. */
    Tensor first(Block block, int step, Scope views) {
        return rows(
                first[slot(step)],
                firstRow(block, step),
                block.sequences().keys().tokens(),
                views);
    }

    Tensor second(Block block, int step, Scope views) {
        return rows(
                second[slot(step)],
                firstRow(block, step),
                block.sequences().keys().tokens(),
                views);
    }

    /** Returns whether the keys of a block are here after {@code step} steps. */
    boolean has(Block block, int step) {
        return index(block, step) >= 0;
    }

    private int index(Block block, int step) {
        int holder = transfer.holder(step);
        for (int i = 0; i < ranks.chunks(); i++) {
            if (ranks.chunk(holder, i) == block.keyChunk()) {
                return i;
            }
        }
        return -1;
    }

    private long firstRow(Block block, int step) {
        int holder = transfer.holder(step);
        long row = block.firstKey();
        for (int i = 0; i < index(block, step); i++) {
            int before = ranks.chunk(holder, i);
            row += ranks.chunkBegin(tokens, before + 1) - ranks.chunkBegin(tokens, before);
        }
        return row;
    }

    private long count(int step) {
        return ranks.count(tokens, transfer.holder(step));
    }

    private static int slot(int step) {
        return step == 0 ? 0 : 1 + (step - 1) % (SLOTS - 1);
    }

    /** Returns rows of a tensor [t, heads, d]. */
    static Tensor rows(@Nullable Tensor of, long first, long count, Scope views) {
        Tensor present = Checks.given("of", of);
        long columns = present.size(1) * present.size(2);
        return views.view(present, first * columns, count, present.size(1), present.size(2));
    }

    /** Drops the tensors. */
    void end() {
        for (int i = 0; i < SLOTS; i++) {
            first[i] = null;
            second[i] = null;
        }
    }
}
