package dev.chagres.pipeline;

import dev.chagres.Tensor;
import dev.chagres.pass.Pass;
import dev.chagres.pipeline.PipelineRank.PipelinePlaces;
import dev.chagres.pipeline.PipelineSchedule.Call;
import org.jspecify.annotations.Nullable;

/**
 * Forward of micro-batches in evaluation, all in one pass: tensors to be sent or received are kept in {@link PipelinePlaces}, so the next
 * micro-batch may begin the pass anew.
 *
 * <p>Threading: the device's thread.
 */
final class PipelineEvaluation extends PipelineRun {
    private @Nullable Pass pass;

    PipelineEvaluation(PipelineRank rank) {
        super(rank);
    }

    /** Returns the pass, which is made at the first call. */
    Pass pass() {
        Pass present = pass;
        if (present == null) {
            present = Pass.evaluation(rank.stream());
            pass = present;
        }
        return present;
    }

    @Override
    String method() {
        return "evaluate";
    }

    @Override
    String name() {
        return "an evaluation";
    }

    @Override
    PipelineSchedule make(int microBatches) {
        return PipelineSchedule.evaluation(rank.plan().ranks(), rank.plan().stagesPerRank(), microBatches);
    }

    @Override
    void take(PipelineSchedule schedule, long tokens) {
        pass();
        rank.places().take(schedule.places(rank.ranks().rank()), tokens);
    }

    @Override
    void expect(Call call, long tokens) {
        rank.places().receive(tokens);
    }

    @Override
    Tensor argument(Call call) {
        return rank.places().received();
    }

    @Override
    void compute(Call call, PipelineStage stage) {
        int number = call.stage();
        Pass own = pass().begin();
        Tensor x = number == 0 ? null : argument(call);
        Tensor y = rank.isLast(number) ? null : rank.places().begin(call.place(), tokens(stage, call.microBatch()));
        own.calls().lend(rank);
        try {
            stage.forward(number, call.microBatch(), x, y, own);
        } finally {
            own.calls().lend(null);
        }
        long draws = own.calls().draws();
        if (draws > 0 && y != null) {
            throw new IllegalStateException("stage " + number + ": expected no draws of random numbers in an evaluation"
                    + " before the last stage, got " + draws
                    + "; later stages would draw other numbers than a single rank does");
        }
    }

    @Override
    Tensor result(Call call) {
        return rank.places().result(call.place());
    }

    @Override
    void forget() {
        if (pass != null && pass.isBegun()) {
            pass.end();
        }
    }

    @Override
    public void close() {
        if (pass != null) {
            pass.close();
        }
    }
}
