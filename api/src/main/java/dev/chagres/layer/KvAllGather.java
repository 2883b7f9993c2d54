package dev.chagres.layer;

import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.PackedPrefix;
import dev.chagres.attention.Sequences;
import dev.chagres.internal.Checks;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.Reduction;
import dev.chagres.parallel.ContextParallel;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.pass.Pass;
import org.jspecify.annotations.Nullable;

/**
 * Gathers the keys or values of all tokens on each context-parallel rank, which attends with its own queries, and reduces the ranks'
 * gradients of them.
 *
 * <p>If the ranks have equally many tokens it uses one all-gather, or one reduce-scatter; else a broadcast from each rank, or a reduction
 * to each, in one group call.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: TE's {@code AttnFuncWithCPAndKVAllGather}.
 */
final class KvAllGather {
    private final ContextParallel ranks;
    private final Runnable broadcasts = this::broadcast;
    private final Runnable reductions = this::reduce;
    /** The buffer of {@link #broadcasts} and {@link #reductions}, while they run, for this rank's tokens, [t, columns]. */
    private @Nullable Tensor own;
    /** Of all tokens, [T, columns]. */
    private @Nullable Tensor all;

    private @Nullable Pass pass;

    /** Which keys attention gets. */
    private enum Given {
        ALL,
        /** Those up to the last query's: all that a causal mask lets queries see. */
        PREFIX
    }

    private final Given given;

    private KvAllGather(ContextParallel ranks, Given given) {
        this.ranks = ranks;
        this.given = given;
    }

    /** Makes one for the ranks of {@code plan}. */
    static KvAllGather of(AttentionConfig config, ModelPlan plan) {
        ContextParallel ranks = plan.contextParallel();
        boolean isCausal =
                config.mask().kind() != AttentionMask.Kind.NONE || config.mask().windowRight() == 0;
        return new KvAllGather(ranks, ranks.gathersKeys() && isCausal ? Given.PREFIX : Given.ALL);
    }

    /**
     * Returns {@code config} for the keys that attention gets. The causal mask becomes bottom-right, from the last query and key of a
     * sequence, since the first query may be at any position.
     */
    AttentionConfig masked(AttentionConfig config) {
        return given == Given.PREFIX
                ? config.withMask(AttentionMask.causalBottomRight()
                        .withWindow(config.mask().windowLeft(), 0))
                : config;
    }

    /** Returns the sequences of the queries and of the keys that attention is given. */
    Sequences attended(Sequences sequences) {
        return given == Given.PREFIX ? sequences.prefix().sequences() : sequences;
    }

    /** Returns the keys that attention gets, of those of all tokens, [T, heads, d]. */
    Tensor attended(Tensor all, Sequences sequences, Scope views) {
        if (given == Given.ALL) {
            return all;
        }
        long columns = all.size(1) * all.size(2);
        PackedPrefix prefix = sequences.prefix();
        return views.view(
                all, prefix.firstKey() * columns, prefix.sequences().keys().tokens(), all.size(1), all.size(2));
    }

    /** Returns whether keys are gathered. */
    boolean isNeeded() {
        return ranks.gathersKeys();
    }

    /**
     * Returns this rank's part of the pass's sequences, which are those of all tokens or of {@link dev.chagres.attention.PackedChunk}.
     */
    Sequences sequences(Pass pass) {
        return RingState.of(pass).part(ranks);
    }

    /** Checks that {@code rows} and {@code sequences} are this rank's part. */
    void checkTokens(String argument, long rows, Sequences sequences, Pass pass) {
        long tokens = sequences.keys().tokens();
        if (sequences.part() != ranks.begin(tokens, ranks.rank()) || sequences.tokens() != ranks.count(tokens)) {
            throw new IllegalArgumentException("sequences: expected those of PackedChunk.of for tokens "
                    + ranks.begin(tokens, ranks.rank()) + " to " + ranks.begin(tokens, ranks.rank() + 1) + " of "
                    + tokens + ", the part of " + ranks + ", got " + sequences
                    + (sequences.part() < 0 ? "" : " from token " + sequences.part() + " on"));
        }
        Tensor mask = pass.sequences().scoreMask();
        if (mask != null) {
            throw new IllegalArgumentException("scoreMask: expected none with gathered keys, got "
                    + Checks.describe(mask) + "; ContextParallel.of, which exchanges heads, allows it");
        }
        ranks.checkPart(argument, rows, tokens);
    }

    /**
     * Enqueues the gather of all ranks' tokens.
     *
     * @param part [t, heads, d], of this rank's tokens
     * @param tokens T, of all ranks
     * @return [T, heads, d]
     */
    Tensor gather(Tensor part, long tokens, Scope scope, Pass current) {
        Tensor whole = scope.tensor(part.dtype(), tokens, part.size(1), part.size(2));
        if (isEven(tokens)) {
            ranks.group().allGather(part, whole, current.stream());
        } else {
            move(part, whole, broadcasts, current);
        }
        return whole;
    }

    /**
     * Enqueues the sum over ranks of {@code terms} for this rank's tokens.
     *
     * @param terms [T, heads, d], of all tokens
     * @return [t, heads, d]
     */
    Tensor sum(Tensor terms, Scope scope, Pass current) {
        long tokens = terms.size(0);
        Tensor part = scope.tensor(terms.dtype(), ranks.count(tokens), terms.size(1), terms.size(2));
        if (isEven(tokens)) {
            ranks.group().reduceScatter(terms, part, Reduction.SUM, current.stream());
        } else {
            move(part, terms, reductions, current);
        }
        return part;
    }

    private boolean isEven(long tokens) {
        return ranks.begin(tokens, 1) * ranks.size() == tokens;
    }

    private void move(Tensor part, Tensor whole, Runnable calls, Pass current) {
        own = part;
        all = whole;
        pass = current;
        try {
            Communicator.group(calls);
        } finally {
            own = null;
            all = null;
            pass = null;
        }
    }

    private void broadcast() {
        Pass current = Checks.given("pass", pass);
        for (int rank = 0; rank < ranks.size(); rank++) {
            ranks.group().broadcast(ownOf(rank), chunk(rank, current), rank, current.stream());
        }
    }

    private void reduce() {
        Pass current = Checks.given("pass", pass);
        for (int rank = 0; rank < ranks.size(); rank++) {
            ranks.group().reduce(chunk(rank, current), ownOf(rank), Reduction.SUM, rank, current.stream());
        }
    }

    private @Nullable Tensor ownOf(int rank) {
        return rank == ranks.rank() ? own : null;
    }

    private Tensor chunk(int rank, Pass current) {
        Tensor whole = Checks.given("all", all);
        long columns = whole.size(1) * whole.size(2);
        long first = ranks.begin(whole.size(0), rank);
        long end = ranks.begin(whole.size(0), rank + 1);
        return current.temporary().view(whole, first * columns, end - first, columns);
    }

    /** Describes the gather of keys; empty if a rank has all. */
    String explain() {
        return isNeeded()
                ? "; keys and values of all tokens gathered from " + ranks.size()
                        + " ranks by ncclAllGather, or ncclBroadcast where they have unequal numbers of tokens; their"
                        + " gradients summed by ncclReduceScatter, or ncclReduce"
                : "";
    }
}
