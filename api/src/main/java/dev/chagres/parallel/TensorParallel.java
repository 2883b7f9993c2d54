package dev.chagres.parallel;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Numbers;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.Reduction;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * The ranks among which the layers of a {@link dev.chagres.parameter.ModelPlan} are split: each computes some of the heads of an attention and some of the
 * columns inside an MLP, for the same tokens. TE's {@code tp_group} and {@code tp_size}.
 *
 * <p>All ranks make the same calls of layers, over the same tokens.
 *
 * {@snippet file="dev/chagres/parallel/TensorParallelTest.java" region="plan"}
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: Shoeybi et al., Megatron-LM: Training multi-billion parameter language models using model parallelism (2019); TE's
 * {@code set_tensor_parallel_group}.
 */
public final class TensorParallel {
    private static final TensorParallel NONE = new TensorParallel(null, Tokens.ALL);

    /** Which tokens a rank has between layers. */
    private enum Tokens {
        ALL,
        PART
    }

    /** Null if nothing is split. */
    private final @Nullable Communicator group;

    private final Tokens tokens;

    private TensorParallel(@Nullable Communicator group, Tokens tokens) {
        this.group = group;
        this.tokens = tokens;
    }

    /** Returns the value for a plan whose layers are not split. */
    public static TensorParallel none() {
        return NONE;
    }

    /**
     * Splits layers among the ranks of {@code group}, such as those along a mesh's dimension {@code TENSOR}. With a single rank they are
     * not split.
     *
     * @param group closed after the last call of a layer
     */
    public static TensorParallel of(Communicator group) {
        return Checks.given("group", group).ranks() == 1 ? NONE : new TensorParallel(group, Tokens.ALL);
    }

    /**
     * Returns the same ranks with sequence parallelism: between branches, rank r has the residual stream and norms of the r-th of N equal
     * parts of the tokens. A branch gathers its input tokens, and reduces and scatters its output, instead of a sum over the ranks. Put a
     * {@code TokenScatter} before such layers and a {@code TokenGather} after them.
     *
     * <p>Source: Korthikanti et al., Reducing activation recomputation in large transformer models (2022); TE's {@code
     * sequence_parallel}.
     */
    public TensorParallel withSequenceParallel() {
        return group == null ? this : new TensorParallel(group, Tokens.PART);
    }

    /** Returns the same ranks without sequence parallelism, for a layer that reads all tokens of it. */
    public TensorParallel withoutSequenceParallel() {
        return isSequenceParallel() ? of(group()) : this;
    }

    /** Returns whether each rank has a part of the tokens between the branches of layers. */
    public boolean isSequenceParallel() {
        return tokens == Tokens.PART;
    }

    /** Returns the number of ranks; 1 if layers are not split. */
    public int size() {
        return group == null ? 1 : group.ranks();
    }

    /** Returns this rank's number, from 0 on. */
    public int rank() {
        return group == null ? 0 : group.rank();
    }

    /** Returns whether layers are split. */
    public boolean isSplit() {
        return group != null;
    }

    /**
     * Returns the communicator of the ranks.
     *
     * @throws IllegalStateException where layers are whole
     */
    public Communicator group() {
        Communicator present = group;
        if (present == null) {
            throw new IllegalStateException(
                    "group: expected layers split among ranks, got whole ones; check isSplit() first");
        }
        return present;
    }

    /**
     * Returns the first of a rank's consecutive elements of {@code count}, such as rows of a vocabulary, which the ranks need not divide:
     * {@code min(count, rank ceil(count / N))}. They end where those of rank {@code rank + 1} begin; the last ranks may have none.
     *
     * @param rank from 0 to the number of ranks
     * @throws IllegalArgumentException when the count is negative, or there is no such rank
     */
    public long begin(long count, int rank) {
        Numbers.atLeastZero("count", count);
        Numbers.within("rank", rank, 0, size());
        return ParameterSplit.begin(count, rank, size());
    }

    /**
     * Returns a rank's share of {@code count}.
     *
     * @param what named in the error, such as {@code heads}
     * @param layer named in the error
     * @throws IllegalArgumentException when the ranks do not divide it
     */
    public long share(String what, String layer, long count) {
        if (count % size() != 0) {
            throw new IllegalArgumentException(what + ": " + (layer.isEmpty() ? "the layer" : layer)
                    + " expected a multiple of the " + size() + " tensor-parallel ranks, among which they are divided,"
                    + " got " + count);
        }
        return count / size();
    }

    /**
     * Enqueues {@code tensor = sum over ranks of tensor}; nothing if layers are not split or there are no elements.
     *
     * @throws dev.chagres.nccl.RankFailedException when another rank failed or did not come
     */
    public void sum(Tensor tensor, Stream stream) {
        Communicator present = group;
        if (present != null && tensor.count() > 0) {
            present.allReduce(tensor, tensor, Reduction.SUM, stream);
        }
    }

    /**
     * Enqueues {@code whole[i R .. (i + 1) R) = part of rank i}, for parts of R rows.
     *
     * @param part [R, columns]
     * @param whole [N R, columns] in the same type
     * @throws IllegalStateException where layers are whole
     * @throws dev.chagres.nccl.RankFailedException when another rank failed or did not come
     */
    public void gather(Tensor part, Tensor whole, Stream stream) {
        if (Checks.given("whole", whole).count() > 0) {
            group().allGather(part, whole, stream);
        }
    }

    /**
     * Enqueues {@code part = sum over ranks of whole[r R .. (r + 1) R)}, where r is this rank.
     *
     * @param whole [N R, columns]
     * @param part [R, columns] in the same type
     * @throws IllegalStateException where layers are whole
     * @throws dev.chagres.nccl.RankFailedException when another rank failed or did not come
     */
    public void reduceScatter(Tensor whole, Tensor part, Stream stream) {
        if (Checks.given("whole", whole).count() > 0) {
            group().reduceScatter(whole, part, Reduction.SUM, stream);
        }
    }

    /**
     * Enqueues {@code tensor = max over ranks of tensor}; nothing if layers are not split or there are no elements.
     *
     * @throws dev.chagres.nccl.RankFailedException when another rank failed or did not come
     */
    public void max(Tensor tensor, Stream stream) {
        Communicator present = group;
        if (present != null && tensor.count() > 0) {
            present.allReduce(tensor, tensor, Reduction.MAX, stream);
        }
    }

    /**
     * Enqueues {@code value = max over ranks of value} for each of {@code values} in one call; nothing if layers are not split.
     *
     * @throws dev.chagres.nccl.RankFailedException when another rank failed or did not come
     */
    public void max(List<Tensor> values, Stream stream) {
        Communicator present = group;
        if (present != null) {
            Communicator.group(() -> {
                for (int i = 0; i < values.size(); i++) {
                    present.allReduce(values.get(i), values.get(i), Reduction.MAX, stream);
                }
            });
        }
    }

    @Override
    public String toString() {
        return isSplit()
                ? "tensor-parallel rank " + rank() + " of " + size()
                        + (isSequenceParallel() ? ", sequence-parallel" : "")
                : "whole layers";
    }
}
