package dev.chagres.model;

import dev.chagres.Stream;
import dev.chagres.nccl.Communicator;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Adds up the gradients of which each tensor-parallel rank has computed a term, in one call, once a step; then those of parameters that
 * several stages of a pipeline have.
 *
 * <p>Threading: the device's thread.
 */
final class PartialGradients {
    private static final int NEVER = -1;

    private final List<Parameter> parameters;
    private final TensorParallel ranks;
    private final Stream stream;
    private final Runnable sums = this::enqueue;
    /** Null where this rank has all stages of the model. */
    private @Nullable PipelineStages stages;
    /** The generation of gradients that was summed last. */
    private int summed = NEVER;

    PartialGradients(List<Parameter> all, TensorParallel ranks, Stream stream) {
        this.ranks = ranks;
        this.stream = stream;
        parameters = all.stream()
                .filter(parameter -> parameter.isPartial() && !parameter.isFrozen())
                .toList();
    }

    /** Sums over stages, too, from now on. */
    void sumOverStages(PipelineStages newStages) {
        stages = newStages;
        newStages.tie();
    }

    /** Enqueues the sums, unless this generation of gradients has them. */
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
        for (int i = 0; i < parameters.size(); i++) {
            ranks.sum(parameters.get(i).gradient(), stream);
        }
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
