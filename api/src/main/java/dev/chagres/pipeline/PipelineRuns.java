package dev.chagres.pipeline;

import dev.chagres.internal.Checks;
import dev.chagres.internal.ranks.SameMicroBatches;
import dev.chagres.parameter.Parameters;
import org.jspecify.annotations.Nullable;

/**
 * The runs of one rank of a pipeline, in training and evaluation: one at a time, the same on all ranks, and none after one that failed
 * among several ranks.
 *
 * <p>Threading: the device's thread.
 */
final class PipelineRuns implements AutoCloseable {
    private final PipelineRank rank;
    final PipelineTraining training;
    final PipelineEvaluation evaluation;
    private final SameMicroBatches trained;
    private final SameMicroBatches evaluated;
    /** The one that is under way. */
    private @Nullable PipelineRun running;
    /** The run that failed after its transfers had begun. */
    private @Nullable PipelineRun failed;

    PipelineRuns(PipelineRank rank, Parameters parameters) {
        this.rank = rank;
        training = new PipelineTraining(rank, parameters);
        evaluation = new PipelineEvaluation(rank);
        trained = new SameMicroBatches(parameters.scope(), rank.ranks(), rank.stream());
        evaluated = new SameMicroBatches(parameters.scope(), rank.ranks(), rank.stream());
    }

    void train(PipelineStage stage, int microBatches) {
        run(training, stage, microBatches, trained, microBatches);
    }

    void evaluate(PipelineStage stage, int microBatches) {
        run(evaluation, stage, microBatches, evaluated, -microBatches);
    }

    /** Runs, if all ranks call with the same {@code number}. */
    private void run(PipelineRun run, PipelineStage stage, int microBatches, SameMicroBatches numbers, int number) {
        ensureNoneRuns(run.method());
        ensureInStep(run.method());
        Checks.given("stage", stage);
        PipelineSchedule schedule = run.schedule(microBatches);
        boolean done = false;
        running = run;
        try {
            run.prepare(schedule, stage);
            failed = rank.ranks().ranks() > 1 ? run : null;
            RuntimeException difference = difference(run, numbers, number);
            if (difference != null) {
                failed = null; // All ranks know of it.
                throw difference;
            }
            run.run(schedule, stage);
            failed = null;
            done = true;
        } finally {
            running = null;
            if (!done) {
                run.forget();
            }
        }
    }

    /** Returns what to throw on all ranks because they differ, or null. */
    private static @Nullable RuntimeException difference(PipelineRun run, SameMicroBatches numbers, int number) {
        if (!numbers.areSame(number)) {
            return new IllegalArgumentException("microBatches: expected the same call with the same number on all"
                    + " ranks of the pipeline, got " + numbers.difference(PipelineRuns::call));
        }
        return run.difference();
    }

    /** Returns the text of a rank's call with {@code number}. */
    private static String call(long number) {
        return number < 0 ? "evaluate(stage, " + -number + ")" : "run(stage, " + number + ")";
    }

    /** Checks that no stage makes the call {@code method}. */
    void ensureNoneRuns(String method) {
        if (running != null) {
            throw new IllegalStateException(method + ": expected a call outside of a PipelineStage, got one by a stage"
                    + " of the " + rank + ", in the middle of " + running.name());
        }
    }

    private void ensureInStep(String method) {
        if (failed != null) {
            throw new IllegalStateException(method + ": expected ranks in step with each other, got the " + rank
                    + " after " + failed.name() + " that failed, whose transfers other ranks may still wait for; make"
                    + " ranks, Parameters and pipeline anew");
        }
    }

    @Override
    public void close() {
        evaluation.close();
        training.close();
    }
}
