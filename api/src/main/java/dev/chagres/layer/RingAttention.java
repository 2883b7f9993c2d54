package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.RingSequences;
import dev.chagres.attention.RingSequences.Block;
import dev.chagres.attention.RingSequences.Order;
import dev.chagres.internal.Checks;
import dev.chagres.layer.RingState.Cargo;
import dev.chagres.layer.RingState.RingTransfer;
import dev.chagres.ops.AttentionMerge;
import dev.chagres.ops.Elementwise;
import dev.chagres.parallel.ContextParallel;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.pass.ContextPool;
import dev.chagres.pass.Pass;
import dev.chagres.pass.SavedContext;
import dev.chagres.pass.SavedTensor;
import dev.chagres.te.Output;
import dev.chagres.te.SoftmaxType;
import org.jspecify.annotations.Nullable;

/**
 * Ring attention: a rank's own queries attend to keys and values that are passed round the ranks, {@code o = sum over blocks b of exp(L_b -
 * L) o_b}, with L the log-sum-exp of all scores and L_b that of a block. The next keys are received while a block is computed. In backward
 * the gradients of keys and values follow them round the ring, accumulated in FP32.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: TE's {@code AttnFuncWithCPAndKVP2P}; Liu et al., Ring attention with blockwise transformers (2023).
 */
final class RingAttention {
    /** Kernels need tensors aligned to multiples of this many bytes. */
    private static final long ALIGNMENT = 16;

    /** What backward needs of one forward call. */
    private static final class Attended extends SavedContext {
        private final SavedTensor query = new SavedTensor("the query");
        private final SavedTensor key = new SavedTensor("this rank's key");
        private final SavedTensor value = new SavedTensor("this rank's value");
        private final SavedTensor output = new SavedTensor("the output");
        private final SavedTensor statistics = new SavedTensor("the log-sum-exp");
        /** INT64 [blocks, 2], of {@link RingBlocks#draw}; null without dropout. */
        private @Nullable Tensor states;

        private @Nullable RingSequences sequences;
    }

    private final ContextParallel ranks;
    private final Order order;
    private final RingBlocks blocks;
    private final RingPair keys;
    private final RingPair gradients;
    private final ContextPool<Attended> saved = new ContextPool<>(this, Attended::new);
    private final String name;

    private RingAttention(AttentionConfig config, ModelPlan plan) {
        ranks = plan.contextParallel();
        name = plan.name();
        order = config.mask().kind() == AttentionMask.Kind.CAUSAL ? Order.CAUSAL : Order.ALL;
        blocks = new RingBlocks(HeadNorm.behind(config), plan);
        RingTransfer transfer = new RingTransfer(ranks);
        keys = new RingPair(ranks, transfer, Cargo.KEYS);
        gradients = new RingPair(ranks, transfer, Cargo.GRADIENTS);
    }

    /**
     * Makes one for the ranks of {@code plan}; null if they do not form a ring.
     *
     * @param config with this rank's heads
     * @throws IllegalArgumentException when the mask is neither none nor causal, or the softmax has another term
     */
    static @Nullable RingAttention of(AttentionConfig config, ModelPlan plan) {
        ContextParallel ranks = plan.contextParallel();
        if (!ranks.passesKeysOn()) {
            return null;
        }
        AttentionMask mask = config.mask();
        if (!mask.equals(AttentionMask.none()) && !mask.equals(AttentionMask.causal())) {
            throw new IllegalArgumentException("mask: " + plan.name() + " expected none or causal where " + ranks.size()
                    + " context-parallel ranks form a ring, got " + mask
                    + "; ContextParallel.of, which exchanges heads, allows every mask");
        }
        if (config.softmaxType() != SoftmaxType.VANILLA) {
            throw new IllegalArgumentException("softmaxType: " + plan.name() + " expected VANILLA where " + ranks.size()
                    + " context-parallel ranks form a ring, for each block would add the softmax's extra term, got "
                    + config.softmaxType() + "; ContextParallel.of, which exchanges heads, allows it");
        }
        return new RingAttention(config, plan);
    }

    /** Returns the sequences of the pass, cut up; checks that {@code rows} are this rank's part of their tokens. */
    RingSequences cut(String argument, long rows, Pass pass) {
        ranks.checkPart(argument, rows, pass.sequences().queries().tokens());
        return RingState.of(pass).cut(ranks, order);
    }

    /** Enqueues attention of [t, h, d] over [t, g, d]; returns [t, h, d]. */
    Tensor forward(Tensor q, Tensor k, Tensor v, RingSequences sequences, Pass pass) {
        Scope temporary = pass.temporary();
        Tensor output = pass.kept().like(q);
        Attended record = saved.take();
        record.query.set(q);
        record.key.set(k);
        record.value.set(v);
        record.output.set(output);
        record.statistics.set(pass.kept().tensor(DType.FLOAT32, q.size(0), q.size(1), 1));
        record.states = blocks.draw(sequences, q.dtype(), pass);
        record.sequences = sequences;
        boolean single = q.dtype() == DType.FLOAT32;
        Tensor merged = single ? output : temporary.tensor(DType.FLOAT32, q.size(0), q.size(1), q.size(2));
        keys.begin(k, v, sequences.tokens(), temporary);
        for (int step = 0; step < ranks.size(); step++) {
            beginStep(step, pass);
            for (int i = 0; i < sequences.blocks(); i++) {
                Block block = sequences.block(i);
                if (keys.has(block, step)) {
                    merge(block, step, record, merged, pass);
                }
            }
        }
        keys.end();
        if (!single) {
            Elementwise.cast(merged, output, pass.stream());
        }
        saved.keep(record, pass);
        return output;
    }

    /** Makes the pass wait for the keys of a step, and enqueues the transfer of the next ones. */
    private void beginStep(int step, Pass pass) {
        if (step > 0) {
            keys.await(pass);
        }
        if (step + 1 < ranks.size()) {
            keys.send(step, pass);
        }
    }

    private void merge(Block block, int step, Attended record, Tensor merged, Pass pass) {
        try (Scope own = pass.temporary().open()) {
            Tensor queries = queries(block, record.query.get(), own);
            Tensor partial = own.like(queries);
            Tensor numbers = own.tensor(DType.FLOAT32, queries.size(0), queries.size(1), 1);
            blocks.tensors
                    .query(queries)
                    .key(keys.first(block, step, own))
                    .value(keys.second(block, step, own))
                    .output(partial)
                    .statistics(numbers);
            blocks.forward(block, record.states, own, pass);
            AttentionMerge.attentionMerge(
                    partial,
                    numbers,
                    queries(block, merged, own),
                    queries(block, record.statistics.get(), own),
                    block.isOwn() ? Output.OVERWRITE : Output.ADD,
                    pass.stream());
        }
    }

    private static Tensor queries(Block block, Tensor of, Scope views) {
        return RingPair.rows(of, block.firstQuery(), block.sequences().tokens(), views);
    }

    /** Enqueues the gradients of {@link #forward}, each like its tensor. */
    void backward(Tensor dO, Tensor dq, Tensor dk, Tensor dv, Pass pass) {
        Attended record = saved.pop(pass);
        RingSequences sequences = Checks.given("sequences", record.sequences);
        Tensor k = record.key.get();
        Scope temporary = pass.temporary();
        Tensor dqSum = zeros(record.query.get(), temporary, pass);
        keys.begin(k, record.value.get(), sequences.tokens(), temporary);
        gradients.begin(zeros(k, temporary, pass), zeros(k, temporary, pass), sequences.tokens(), temporary);
        for (int step = 0; step < ranks.size(); step++) {
            beginStep(step, pass);
            boolean here = step == 0;
            for (int i = 0; i < sequences.blocks(); i++) {
                Block block = sequences.block(i);
                if (keys.has(block, step)) {
                    backward(block, step, record, dO, dqSum, here ? Arrival.HERE : Arrival.UNDER_WAY, pass);
                    here = true;
                }
            }
            gradients.send(step, pass);
        }
        gradients.await(pass);
        Elementwise.cast(dqSum, dq, pass.stream());
        Elementwise.cast(gradients.first(ranks.size(), temporary), dk, pass.stream());
        Elementwise.cast(gradients.second(ranks.size(), temporary), dv, pass.stream());
        keys.end();
        gradients.end();
    }

    /** Whether the sums of gradients that a block adds to were received. */
    private enum Arrival {
        HERE,
        UNDER_WAY
    }

    private static Tensor zeros(Tensor like, Scope scope, Pass pass) {
        Tensor sum = scope.tensor(DType.FLOAT32, like.size(0), like.size(1), like.size(2));
        sum.zero(pass.stream());
        return sum;
    }

    private void backward(Block block, int step, Attended record, Tensor dO, Tensor dqSum, Arrival arrival, Pass pass) {
        try (Scope own = pass.temporary().open()) {
            Tensor key = keys.first(block, step, own);
            Tensor statistics = aligned(queries(block, record.statistics.get(), own), own, pass);
            Tensor queries = queries(block, record.query.get(), own);
            Tensor dq = own.like(queries);
            Tensor dk = own.like(key);
            Tensor dv = own.like(key);
            blocks.tensors
                    .query(queries)
                    .key(key)
                    .value(keys.second(block, step, own))
                    .output(queries(block, record.output.get(), own))
                    .statistics(statistics)
                    .outputGradient(queries(block, dO, own))
                    .queryGradient(dq)
                    .keyGradient(dk)
                    .valueGradient(dv);
            blocks.backward(block, record.states, own.like(statistics), own, pass);
            Elementwise.accumulate(dq, queries(block, dqSum, own), Output.ADD, pass.stream());
            if (arrival == Arrival.UNDER_WAY) {
                gradients.await(pass);
            }
            Elementwise.accumulate(dk, gradients.first(block, step, own), Output.ADD, pass.stream());
            Elementwise.accumulate(dv, gradients.second(block, step, own), Output.ADD, pass.stream());
        }
    }

    /** Returns the same numbers where kernels can read them: a block's first query may be any. */
    private static Tensor aligned(Tensor numbers, Scope scope, Pass pass) {
        if (numbers.address() % ALIGNMENT == 0) {
            return numbers;
        }
        Tensor copy = scope.like(numbers);
        copy.copyFrom(pass.stream(), numbers);
        return copy;
    }

    /** Frees what the latest forward call saved, if no backward call follows. */
    void discard(Pass pass) {
        saved.pop(pass);
    }

    /** Describes the ring. */
    String explain() {
        return "keys and values of the other " + (ranks.size() - 1)
                + " ranks one after another by ncclSend and ncclRecv,"
                + " on a stream of their own while a block is computed; blocks merged in FP32 by ops_attention_merge";
    }

    @Override
    public String toString() {
        return name;
    }

    /**
     * Two tensors of each rank's tokens that are passed round the ranks, such as keys and values: after s steps this rank has those of the s-th
     * rank before it.
     */
    private static final class RingPair {
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
                    first(step, views),
                    second(step, views),
                    first(step + 1, views),
                    second(step + 1, views),
                    cargo,
                    pass);
        }

        /** Makes later work of the pass wait for the step that was enqueued last. */
        void await(Pass pass) {
            RingState.of(pass).await(cargo);
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
}
