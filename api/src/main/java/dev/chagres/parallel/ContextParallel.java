package dev.chagres.parallel;

import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Numbers;
import dev.chagres.nccl.Communicator;
import org.jspecify.annotations.Nullable;

/**
 * The ranks that split the tokens of a micro-batch: each rank computes norms, products, MLP, embedding and loss of its own tokens. Only
 * attention needs the tokens of other ranks: an all-to-all before it and one after it give each rank all tokens of some heads; {@link
 * #withAllGather} gathers all keys instead, and {@link #withRing} passes the keys of one rank after another. TE's {@code cp_group} with
 * {@code cp_comm_type="a2a"}.
 *
 * <p>Rank r of N has consecutive tokens of the T tokens in memory, across sequence boundaries: those from {@code r T / N} on, rounded down
 * to a multiple of 16 if T is at least 16 N. The pass has the sequences of all T tokens, the same on each rank. Each rank's gradients of
 * parameters are terms of a sum over the ranks, as with data-parallel ranks.
 *
 * <p>All ranks make the same calls of layers, over their parts of the same tokens.
 *
 * {@snippet file="dev/chagres/parallel/ContextParallelTest.java" region="plan"}
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: Jacobs et al., DeepSpeed Ulysses: System optimizations for enabling training of extreme long sequence transformer models
 * (2023); TE's {@code set_context_parallel_group}.
 */
public final class ContextParallel {
    private static final ContextParallel NONE = new ContextParallel(null, Exchange.HEADS);
    /** Parts begin at multiples of this many tokens, for products in eight bits, if there are enough tokens. */
    private static final long MULTIPLE = 16;

    /** Null where each rank has all tokens. */
    private final @Nullable Communicator group;

    private final Exchange exchange;

    /** What ranks exchange for attention. */
    private enum Exchange {
        HEADS,
        KEYS,
        RING,
        BALANCED_RING
    }

    private ContextParallel(@Nullable Communicator group, Exchange exchange) {
        this.group = group;
        this.exchange = exchange;
    }

    /** Returns the value for a plan whose layers read all tokens. */
    public static ContextParallel none() {
        return NONE;
    }

    /**
     * Splits tokens among the ranks of {@code group}, such as those along a mesh's dimension {@code CONTEXT}. A single rank has all tokens.
     *
     * @param group closed after the last call of a layer
     */
    public static ContextParallel of(Communicator group) {
        return Checks.given("group", group).ranks() == 1 ? NONE : new ContextParallel(group, Exchange.HEADS);
    }

    /**
     * Returns the same ranks, where each attends with its own queries to the keys and values of all tokens: these are gathered, and their
     * gradients reduced and scattered. The ranks need not divide the heads. The pass needs the sequences that {@code PackedChunk.of} makes.
     * Masks and windows are those of the whole sequences; masks by element, biases of scores and cross-attention are refused.
     *
     * <p>Source: TE's {@code cp_comm_type="all_gather"}.
     */
    public ContextParallel withAllGather() {
        return group == null ? this : new ContextParallel(group, Exchange.KEYS);
    }

    /**
     * Returns the same ranks, where each attends with its own queries to keys and values that are passed from rank to rank in a ring: while
     * a rank attends to one block it receives the next, and in backward their gradients are passed on, too. No rank ever has all keys. The
     * ranks need not divide the heads. The pass needs the sequences of all T tokens, packed and without gaps. Masks are none or causal;
     * windows, biases of scores and cross-attention are refused.
     *
     * <p>Source: TE's {@code cp_comm_type="p2p"}; Liu et al., Ring attention with blockwise transformers (2023).
     */
    public ContextParallel withRing() {
        return group == null ? this : new ContextParallel(group, Exchange.RING);
    }

    /**
     * Returns the same as {@link #withRing} for causal models: rank r has the chunks r and 2 N - 1 - r of 2 N chunks of the tokens, so that
     * all ranks compute equally much attention. {@link #own} then copies the two chunks into one tensor.
     *
     * <p>Source: TE's {@code cp_comm_type="p2p"}, which splits the tokens in this way.
     */
    public ContextParallel withBalancedRing() {
        return group == null ? this : new ContextParallel(group, Exchange.BALANCED_RING);
    }

    /** Returns whether ranks pass keys and values on in a ring. */
    public boolean passesKeysOn() {
        return exchange == Exchange.RING || exchange == Exchange.BALANCED_RING;
    }

    /** Returns the number of chunks of consecutive tokens that a rank has. */
    public int chunks() {
        return exchange == Exchange.BALANCED_RING ? 2 : 1;
    }

    /**
     * Returns the index of a rank's chunk among the chunks of all ranks, in the order of tokens.
     *
     * @param rank from 0 to N - 1
     * @param index which of its {@link #chunks}, in the order in which it has them
     * @throws IllegalArgumentException when there is no such rank, or it has no such chunk
     */
    public int chunk(int rank, int index) {
        Numbers.within("rank", rank, 0, size() - 1L);
        Numbers.within("index", index, 0, chunks() - 1L);
        return index == 0 ? rank : 2 * size() - 1 - rank;
    }

    /**
     * Returns the first token of a chunk; T for the index after the last chunk.
     *
     * @param tokens T, of all ranks together
     * @param chunk from 0 to N times {@link #chunks}
     * @throws IllegalArgumentException when there is no such chunk, or there are fewer tokens than chunks
     */
    public long chunkBegin(long tokens, int chunk) {
        int all = size() * chunks();
        if (tokens < all) {
            throw new IllegalArgumentException("tokens: expected at least " + all + ", one of each of the " + all
                    + (chunks() == 1 ? "" : " stretches of " + size()) + " context-parallel ranks, got " + tokens
                    + "; make the micro-batch larger");
        }
        Numbers.within("chunk", chunk, 0, all);
        if (chunk == all) {
            return tokens;
        }
        long first = tokens / all * chunk
                + tokens % all * chunk / all; // chunk tokens / all, which may be more than a long holds
        return tokens < MULTIPLE * all ? first : first / MULTIPLE * MULTIPLE;
    }

    /** Returns whether attention gathers the keys and values of all tokens. */
    public boolean gathersKeys() {
        return exchange == Exchange.KEYS;
    }

    /** Returns whether each rank attends with some of the heads. */
    public boolean dividesHeads() {
        return group != null && exchange == Exchange.HEADS;
    }

    /** Returns the number of ranks; 1 if tokens are not split. */
    public int size() {
        return group == null ? 1 : group.ranks();
    }

    /** Returns this rank's number, from 0 on. */
    public int rank() {
        return group == null ? 0 : group.rank();
    }

    /** Returns whether tokens are split among several ranks. */
    public boolean isSplit() {
        return group != null;
    }

    /**
     * Returns the communicator of the ranks.
     *
     * @throws IllegalStateException when tokens are not split
     */
    public Communicator group() {
        Communicator present = group;
        if (present == null) {
            throw new IllegalStateException(
                    "group: expected tokens split among ranks, got all on each; check isSplit() first");
        }
        return present;
    }

    /**
     * Returns a rank's share of {@code count} heads inside attention: all if keys are gathered or passed on in a ring.
     *
     * @param what named in the error, such as {@code heads}
     * @param layer named in the error
     * @throws IllegalArgumentException when the ranks do not divide it, or it is negative
     */
    public long share(String what, String layer, long count) {
        Checks.given("what", what, "layer", layer);
        if (count < 0) {
            throw new IllegalArgumentException(what + ": expected no negative number, got " + count);
        }
        if (!dividesHeads()) {
            return count;
        }
        if (count % size() != 0) {
            throw new IllegalArgumentException(what + ": " + (layer.isEmpty() ? "the layer" : layer)
                    + " expected a multiple of the " + size() + " context-parallel ranks, each of which attends with"
                    + " some of them over all tokens, got " + count
                    + "; withRing() and withAllGather() need no multiple");
        }
        return count / size();
    }

    /**
     * Returns the first token of the part of rank {@code rank}; {@code tokens} for rank N, the end of the last part.
     *
     * @param tokens T, of all ranks together
     * @param rank from 0 to N
     * @throws IllegalArgumentException when there is no such rank, or fewer tokens than ranks
     * @throws IllegalStateException when a rank has two chunks
     */
    public long begin(long tokens, int rank) {
        int ranks = size();
        if (tokens < ranks) {
            throw new IllegalArgumentException("tokens: expected at least " + ranks + ", one of each of the " + ranks
                    + " context-parallel ranks, got " + tokens + "; make the micro-batch larger");
        }
        Numbers.within("rank", rank, 0, ranks);
        if (chunks() > 1) {
            throw new IllegalStateException(
                    "begin: expected ranks that have one stretch each, got " + this + "; ask chunkBegin");
        }
        return chunkBegin(tokens, rank);
    }

    /**
     * Returns how many of {@code tokens} this rank has; a single rank has all, also if there are none.
     *
     * @throws IllegalArgumentException when there are fewer tokens than ranks, or it is negative
     */
    public long count(long tokens) {
        if (tokens < 0) {
            throw new IllegalArgumentException("tokens: expected no negative number, got " + tokens);
        }
        return isSplit() ? count(tokens, rank()) : tokens;
    }

    /**
     * Returns how many of {@code tokens} rank {@code rank} has.
     *
     * @throws IllegalArgumentException when there are fewer tokens than ranks, or no such rank
     */
    public long count(long tokens, int rank) {
        long count = 0;
        for (int i = 0; i < chunks(); i++) {
            int chunk = chunk(rank, i);
            count += chunkBegin(tokens, chunk + 1) - chunkBegin(tokens, chunk);
        }
        return count;
    }

    /**
     * Returns this rank's part of a tensor with a row for each token, such as identifiers or labels.
     *
     * @param whole [T] or [T, columns], of any type
     * @param scope hands out the view, or memory for two chunks, which are copied on its stream
     * @return [t] or [t, columns]; {@code whole} itself if tokens are not split
     * @throws IllegalArgumentException when it has other dimensions, or fewer tokens than there are ranks
     */
    public Tensor own(Tensor whole, Scope scope) {
        Checks.given("whole", whole, "scope", scope);
        if (!isSplit()) {
            return whole;
        }
        int dimensions = whole.rank();
        if (dimensions != 1 && dimensions != 2) {
            throw new IllegalArgumentException("whole: expected [T] or [T, columns], got " + Checks.describe(whole));
        }
        long tokens = whole.size(0);
        if (chunks() == 1) {
            return stretch(whole, begin(tokens, rank()), count(tokens), scope);
        }
        Tensor own = dimensions == 1
                ? scope.tensor(whole.dtype(), count(tokens))
                : scope.tensor(whole.dtype(), count(tokens), whole.size(1));
        long copied = 0;
        for (int i = 0; i < chunks(); i++) {
            long first = chunkBegin(tokens, chunk(rank(), i));
            long count = chunkBegin(tokens, chunk(rank(), i) + 1) - first;
            stretch(own, copied, count, scope).copyFrom(scope.stream(), stretch(whole, first, count, scope));
            copied += count;
        }
        return own;
    }

    private static Tensor stretch(Tensor whole, long first, long count, Scope scope) {
        return whole.rank() == 1
                ? scope.view(whole, first, count)
                : scope.view(whole, first * whole.size(1), count, whole.size(1));
    }

    /**
     * Checks that {@code rows} are this rank's part of {@code tokens}.
     *
     * @param argument named in the error
     * @throws IllegalArgumentException when they are more or fewer
     */
    public void checkPart(String argument, long rows, long tokens) {
        if (rows != count(tokens)) {
            throw new IllegalArgumentException(
                    argument + ": expected " + count(tokens) + " tokens, the part of " + this + " of the " + tokens
                            + " that the sequences have, got " + rows + "; ContextParallel.own cuts it out");
        }
    }

    @Override
    public String toString() {
        return isSplit()
                ? "context-parallel rank " + rank() + " of " + size() + (gathersKeys() ? ", gathering keys" : "")
                        + (passesKeysOn() ? ", passing keys on" : "")
                : "all tokens";
    }
}
