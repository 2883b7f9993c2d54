package dev.chagres.sharding;

import dev.chagres.Tensor;
import dev.chagres.layer.Pass;
import org.jspecify.annotations.Nullable;

/**
 * What the stages of one rank of a pipeline compute: {@link PipelineParallel#run} calls it in the order of the schedule, and {@link
 * PipelineParallel#evaluate} its forward alone, with a pass of evaluation.
 *
 * {@snippet file="dev/chagres/layer/PipelineModel.java" region="stage"}
 *
 * <p>There {@code lengths} are those of a micro-batch's sequences, {@code enter} sets them and the seed of the pass, {@code embed} looks
 * up the tokens, and {@code score} and {@code scoreGradient} are head and loss.
 *
 * <p>Threading: called on the device's thread.
 */
public interface PipelineStage {
    /**
     * Returns the tokens T of a micro-batch, the same on each rank of the pipeline: of context-parallel and sequence-parallel ranks each
     * one's part.
     *
     * @param microBatch from 0 on
     */
    long tokens(int microBatch);

    /**
     * Enqueues forward of a micro-batch through a stage. The pass was begun; the sequences are to be set, and the seed where there is
     * dropout, the same on each rank. To begin, end or close the pass and to restart its scope is the pipeline's part, not the stage's.
     *
     * @param stage one of this rank's
     * @param microBatch from 0 on
     * @param x [T, width], what the stage before has given; null in stage 0
     * @param y [T, width], receives what the next stage is given; null in the last stage
     * @param pass of this micro-batch and stage
     */
    void forward(int stage, int microBatch, @Nullable Tensor x, @Nullable Tensor y, Pass pass);

    /**
     * Enqueues backward of a micro-batch through a stage; in training alone.
     *
     * @param stage one of this rank's
     * @param microBatch from 0 on
     * @param dy [T, width], gradient of {@code y}; null in the last stage
     * @param dx [T, width], receives the gradient of {@code x}, where that requires one; null in stage 0
     * @param pass of this micro-batch and stage, with what its forward has saved
     */
    void backward(int stage, int microBatch, @Nullable Tensor dy, @Nullable Tensor dx, Pass pass);
}
