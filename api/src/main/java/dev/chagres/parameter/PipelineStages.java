package dev.chagres.parameter;

import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.Reduction;
import dev.chagres.parallel.NormOverRanks;
import dev.chagres.parallel.NormReduction;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.function.Function;
import java.util.function.IntFunction;
import org.jspecify.annotations.Nullable;

/**
 * For sharding: the collectives of a step among the ranks of a pipeline: sums of the gradients of parameters that several ranks have, the
 * norm over all ranks, and the largest magnitudes.
 *
 * <p>Threading: the device's thread.
 */
public final class PipelineStages implements NormReduction, AutoCloseable {
    /**
     * A parameter that several ranks have, such as an embedding's table that the head reads, too.
     *
     * @param parameter a trained one
     * @param ranks the communicator of those ranks
     */
    public record Tied(Parameter parameter, Communicator ranks) {
        /** Checks that both are there. */
        public Tied {
            Checks.given("parameter", parameter, "ranks", ranks);
        }
    }

    private final Communicator ranks;
    private final Stream stream;
    private final List<Tied> tied;
    /** This rank's part of the gradient of each, null if it has none. */
    private final List<@Nullable Tensor> gradients = new ArrayList<>();

    private final Set<Parameter> countedElsewhere;
    private final IntFunction<List<Parameter>> ofRank;
    private final NormOverRanks norm;
    private final Runnable sums = this::enqueueSums;

    /**
     * Allocates a little memory.
     *
     * @param scope of the parameters
     * @param ranks of the pipeline
     * @param tied parameters that this rank has in common with others, in the same order on each rank
     * @param countedElsewhere those of them that a rank before this one counts in the norm
     * @param ofRank gives the parameters of each rank of the pipeline
     */
    public PipelineStages(
            Scope scope,
            Communicator ranks,
            List<Tied> tied,
            Set<Parameter> countedElsewhere,
            IntFunction<List<Parameter>> ofRank) {
        this.ofRank = Checks.given("ofRank", ofRank);
        this.ranks = Checks.given("ranks", ranks);
        this.tied = Checks.givenAll("tied", tied);
        this.countedElsewhere = Checks.givenAll("countedElsewhere", countedElsewhere);
        stream = Checks.given("scope", scope).stream();
        norm = new NormOverRanks(scope, ranks);
    }

    /** Marks the parameters that several ranks have; {@code kept} returns this rank's part of a gradient, or null. */
    void tie(Function<Parameter, @Nullable Tensor> kept) {
        for (Tied one : tied) {
            one.parameter.tie();
            gradients.add(kept.apply(one.parameter));
        }
    }

    /** Returns the parameters of a rank of the pipeline, of which this one need not have memory. */
    List<Parameter> of(int rank) {
        return ofRank.apply(rank);
    }

    /** Returns the number of ranks. */
    int size() {
        return ranks.ranks();
    }

    boolean countsAll() {
        return countedElsewhere.isEmpty();
    }

    boolean counts(Parameter parameter) {
        return !countedElsewhere.contains(parameter);
    }

    /** Enqueues {@code gradient = sum over ranks of gradient} for parameters that several ranks have. */
    void sumTied() {
        if (!tied.isEmpty()) {
            Communicator.group(sums);
        }
    }

    private void enqueueSums() {
        for (int i = 0; i < tied.size(); i++) {
            Tensor gradient = gradients.get(i);
            if (gradient != null) {
                tied.get(i).ranks.allReduce(gradient, gradient, Reduction.SUM, stream);
            }
        }
    }

    @Override
    public void normOverRanks(Tensor value, Tensor skip) {
        norm.normOverRanks(value, skip);
    }

    /** Enqueues {@code values = sum over ranks of values}. */
    void sum(Tensor values) {
        ranks.allReduce(values, values, Reduction.SUM, stream);
    }

    void max(List<Tensor> values) {
        Communicator.group(() -> {
            for (int i = 0; i < values.size(); i++) {
                ranks.allReduce(values.get(i), values.get(i), Reduction.MAX, stream);
            }
        });
    }

    /** Frees lists of the host; the device memory is freed with its scope. A second call does nothing. */
    @Override
    public void close() {
        norm.close();
    }

    @Override
    public String toString() {
        return "rank " + ranks.rank() + " of a pipeline of " + ranks.ranks();
    }
}
