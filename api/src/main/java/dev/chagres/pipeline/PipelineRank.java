package dev.chagres.pipeline;

import dev.chagres.Stream;
import dev.chagres.nccl.Communicator;

/**
 * What all runs of one rank of a pipeline have in common.
 *
 * <p>Threading: the device's thread.
 *
 * @param ranks those of the pipeline
 * @param stream on which everything is enqueued
 */
record PipelineRank(PipelinePlan plan, Communicator ranks, Stream stream, PipelinePlaces places) {
    /** Returns whether a stage is the last one of the model. */
    boolean isLast(int stage) {
        return stage == plan.stages() - 1;
    }

    @Override
    public String toString() {
        return "pipeline of " + plan.stages() + " stages, rank " + ranks.rank() + " of " + ranks.ranks();
    }
}
