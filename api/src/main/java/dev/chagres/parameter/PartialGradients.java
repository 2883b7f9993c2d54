package dev.chagres.parameter;

import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.nccl.Communicator;
import dev.chagres.parallel.TensorParallel;
import java.util.ArrayList;
import java.util.List;
import java.util.function.BiFunction;
import org.jspecify.annotations.Nullable;

/**
 * All-reduces the gradients of which each tensor-parallel rank has computed a term, in one call, once a step; then those of parameters that
 * several stages of a pipeline have. With sharded gradients each rank does so with its shard.
 *
 * <p>Threading: the device's thread.
 */
final class PartialGradients {
    private static final int NEVER = -1;

    private final List<Parameter> parameters;
    private final TensorParallel ranks;
    private final Scope scope;
    private final Stream stream;
    /** Returns this rank's part of a gradient, or null. */
    private final BiFunction<Parameter, Scope, @Nullable Tensor> kept;

    private final Runnable sums = this::enqueue;
    /** Allocated by the first sum. */
    private @Nullable List<Tensor> terms;
    /** Null if this rank has all stages of the model. */
    private @Nullable PipelineStages stages;
    /** The generation of gradients that was summed last. */
    private int summed = NEVER;

    PartialGradients(
            List<Parameter> all,
            TensorParallel ranks,
            Scope scope,
            BiFunction<Parameter, Scope, @Nullable Tensor> kept) {
        this.ranks = ranks;
        this.scope = scope;
        this.kept = kept;
        stream = scope.stream();
        parameters = all.stream()
                .filter(parameter -> parameter.isPartial() && parameter.isTrained())
                .toList();
    }

    /** From now on also sums over stages. */
    void sumOverStages(PipelineStages newStages) {
        stages = newStages;
        newStages.tie(parameter -> kept.apply(parameter, scope));
    }

    /** Enqueues the sums, unless they were enqueued for this generation of gradients. */
    void sum(int generation) {
        PipelineStages present = stages;
        if ((parameters.isEmpty() && present == null) || summed == generation) {
            return;
        }
        if (!parameters.isEmpty()) {
            Communicator.group(sums);
        }
        if (present != null) {
            present.sumTied();
        }
        summed = generation;
    }

    private void enqueue() {
        List<Tensor> all = terms == null ? terms() : terms;
        for (int i = 0; i < all.size(); i++) {
            ranks.sum(all.get(i), stream);
        }
    }

    private List<Tensor> terms() {
        List<Tensor> made = new ArrayList<>();
        for (Parameter parameter : parameters) {
            Tensor own = kept.apply(parameter, scope);
            if (own != null) {
                made.add(own);
            }
        }
        terms = made;
        return made;
    }

    boolean isSummed(int generation) {
        return summed == generation;
    }

    /** Records that this generation of gradients has the sums. */
    void summed(int generation) {
        summed = generation;
    }

    void ensureUnsummed(Parameter parameter, int generation) {
        if (summed == generation) {
            throw new IllegalStateException("gradient of " + parameter.name() + ": summed over the "
                    + (parameter.isPartial() ? ranks.size() + " tensor-parallel ranks" : "stages that have it")
                    + " already, got another backward call; call norm.compute() after the step's"
                    + " last backward call, and the optimizer's step before the next");
        }
    }
}
