package dev.chagres.trainer;

import dev.chagres.batch.ModelInput;
import dev.chagres.checkpoint.RunState;
import dev.chagres.nccl.MovedBytes;
import dev.chagres.nccl.Operation;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.recipe.Quantizers;
import dev.chagres.sharding.Strategy;
import java.util.Objects;
import java.util.function.IntPredicate;
import org.jspecify.annotations.Nullable;

/**
 * Which micro-batches of a step are a rank's own, and what it sums with the others. A rank that is alone has all, and sums nothing.
 *
 * <p>Of each step's micro-batches a rank computes those whose number modulo the number of data-parallel ranks is its own. Ranks that split
 * layers, have some of the layers, or split tokens, compute the same ones.
 *
 * <p>Threading: the device's thread.
 */
final class RankShare implements AutoCloseable {
    /** Null where the rank is alone. */
    private final @Nullable RankModel made;

    private final int rank;
    private final int ranks;
    private final IntPredicate own = this::isOwn;
    /** Null where the rank is alone. */
    private final @Nullable StepBytes bytes;

    private final boolean ownData;

    private RankShare(@Nullable RankModel made, int rank, int ranks, boolean ownData) {
        this.ownData = ownData;
        this.made = made;
        this.rank = rank;
        this.ranks = ranks;
        bytes = made == null ? null : new StepBytes(MovedBytes.of(made.mesh().world()));
    }

    /** Returns that of a rank that is alone. */
    static RankShare ofOne() {
        return new RankShare(null, 0, 1, false);
    }

    /**
     * Returns that of one of several ranks.
     *
     * @param made closed together with this object, but for the model
     * @param rank which of the data-parallel ranks it is
     * @param ranks how many there are
     */
    static RankShare of(RankModel made, int rank, int ranks) {
        return new RankShare(made, rank, ranks, false);
    }

    /** Returns that of one of several ranks, each of which has batches of its own. */
    static RankShare ofOwnData(RankModel made) {
        return new RankShare(made, 0, 1, true);
    }

    /** Returns whether other ranks have other batches. */
    boolean hasOwnData() {
        return ownData;
    }

    /** Returns how weights are gathered and gradients reduced. */
    EffectiveWindows windows() {
        RankModel present = made;
        return present == null ? EffectiveWindows.NOTHING_SHARDED : EffectiveWindows.of(present.strategy());
    }

    /** Says that the collectives called next are those of a step. */
    void beginStep() {
        StepBytes present = bytes;
        if (present != null) {
            present.begin();
        }
    }

    /** Says that the step has called all its collectives. */
    void endStep() {
        StepBytes present = bytes;
        if (present != null) {
            present.end();
        }
    }

    /** Returns the bytes that were moved in the oldest step that was not asked for, by {@link Operation}. */
    long[] readBytes() {
        return Objects.requireNonNull(bytes).read();
    }

    private @Nullable Strategy strategy() {
        return made == null ? null : made.strategy();
    }

    /** Returns what computes a step's micro-batches of a rank that has some of the layers; null where it has all. */
    @Nullable
    PipelineGradients pipeline() {
        return made == null ? null : made.pipeline();
    }

    /** Lets {@code pass} read sharded weights, and sums the gradients that it computes. */
    void follow(Pass pass) {
        Strategy strategy = strategy();
        if (strategy != null) {
            strategy.follow(pass);
        }
    }

    /** Gives all ranks the same scales. */
    void reduceAmax(Quantizers quantizers) {
        Strategy strategy = strategy();
        if (strategy != null) {
            strategy.reduceAmax(quantizers);
        }
    }

    /** Returns whether this rank computes a micro-batch. */
    boolean isOwn(int microBatch) {
        return microBatch % ranks == rank;
    }

    /** Returns {@link #isOwn}, the same object each time. */
    IntPredicate own() {
        return own;
    }

    /** Whether this rank has one micro-batch less than others that it communicates with in each: it then takes part in their last. */
    boolean helps(int microBatch, ModelInput input) {
        Strategy strategy = strategy();
        return strategy != null && strategy.needsEqualMicroBatches() && input.isLast() && rank > microBatch % ranks;
    }

    /** Says which micro-batch is the last that this rank computes in the step, so that its backward sums gradients over ranks. */
    void announce(int microBatch, ModelInput input) {
        Strategy strategy = strategy();
        if (strategy != null && isLast(strategy, microBatch, input.following())) {
            strategy.lastMicroBatch();
        }
    }

    /** Where a rank helps others in their last, that is its last, too. */
    private boolean isLast(Strategy strategy, int microBatch, int following) {
        return strategy.needsEqualMicroBatches()
                ? microBatch / ranks == (microBatch + following) / ranks
                : following < ranks;
    }

    void sumGradients() {
        Strategy strategy = strategy();
        if (strategy != null) {
            strategy.sumGradients();
        }
    }

    /** Returns the weights that the ranks save together; those of {@code alone} where there are no others. */
    RunState state(Parameters alone) {
        RankModel present = made;
        if (present == null) {
            return RunState.of(alone);
        }
        RunState weights = RunState.of(present.strategy());
        PipelineGradients pipeline = present.pipeline();
        if (pipeline != null) {
            return pipeline.stagesOf(weights);
        }
        return alone.tensorParallel().isSplit() ? weights.over(present.mesh()) : weights;
    }

    /** Closes what joins this rank with the others. */
    @Override
    public void close() {
        RankModel present = made;
        if (present == null) {
            return;
        }
        PipelineGradients pipeline = present.pipeline();
        if (pipeline != null) {
            pipeline.close();
        }
        present.strategy().close();
        present.mesh().close();
    }

    /**
     * How many bytes a rank's collectives and transfers have moved in each of the steps whose results are unread.
     *
     * <p>Threading: the device's thread.
     */
    private static final class StepBytes {
        private static final Operation[] OPERATIONS = Operation.values();
        /** The steps whose results are unread, and the one that is enqueued. */
        private static final int STEPS = ModelTraining.UNREAD + 1;

        private final MovedBytes moved;
        private final long[] before = new long[OPERATIONS.length];
        private final long[][] steps = new long[STEPS][OPERATIONS.length];
        private int ended;
        private int read;

        /** Counts those of the rank that moves {@code moved}. */
        StepBytes(MovedBytes moved) {
            this.moved = moved;
        }

        /** Says that what is called next belongs to a step. */
        void begin() {
            for (Operation operation : OPERATIONS) {
                before[operation.ordinal()] = moved.by(operation);
            }
        }

        /** Says that the step has called everything. */
        void end() {
            long[] step = steps[ended++ % STEPS];
            for (Operation operation : OPERATIONS) {
                step[operation.ordinal()] = moved.by(operation) - before[operation.ordinal()];
            }
        }

        /** Returns those of the oldest step that was not asked for, by the operation's ordinal; read before as many more steps as results are unread. */
        long[] read() {
            return steps[read++ % STEPS].clone();
        }
    }
}
