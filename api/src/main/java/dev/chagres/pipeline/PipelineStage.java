package dev.chagres.pipeline;

import dev.chagres.Tensor;
import dev.chagres.pass.Pass;
import org.jspecify.annotations.Nullable;

/**
 * The computation of the stages of one rank of a pipeline: {@link PipelineParallel#run} calls it in the order of the schedule, and {@link
 * PipelineParallel#evaluate} calls only its forward, with an evaluation pass.
 *
 * {@snippet file="dev/chagres/pipeline/PipelineModel.java" region="stage"}
 *
 * <p>In the example {@code lengths} returns the lengths of a micro-batch's sequences, {@code enter} sets sequences and seed of the pass,
 * {@code embed} looks up the tokens, and {@code score} and {@code scoreGradient} are head and loss.
 *
 * <p>Threading: called on the device's thread.
 */
public interface PipelineStage {
    /**
     * Returns the number of tokens T of a micro-batch, the same on each rank of the pipeline; with context-parallel and sequence-parallel
     * ranks, the number of this rank's tokens.
     *
     * @param microBatch from 0 on
     */
    long tokens(int microBatch);

    /**
     * Enqueues forward of a micro-batch through a stage. The pass was begun. The stage must set the sequences, and the seed if there is
     * dropout, the same on each rank. The pass refuses to be begun, ended, closed or abandoned here; do not restart its scope.
     *
     * @param stage one of this rank's
     * @param microBatch from 0 on
     * @param x [T, width], the output of the stage before; null in stage 0
     * @param y [T, width], receives the input of the next stage; null in the last stage
     * @param pass of this micro-batch and stage
     */
    void forward(int stage, int microBatch, @Nullable Tensor x, @Nullable Tensor y, Pass pass);

    /**
     * Enqueues backward of a micro-batch through a stage; called in training only. The run fails if the stage forgets gradients, which would
     * be those of earlier micro-batches, too, or catches the failure of a backward call.
     *
     * @param stage one of this rank's
     * @param microBatch from 0 on
     * @param dy [T, width], gradient of {@code y}; null in the last stage
     * @param dx [T, width], receives the gradient of {@code x}, if that requires one; null in stage 0
     * @param pass of this micro-batch and stage, with what its forward has saved
     */
    void backward(int stage, int microBatch, @Nullable Tensor dy, @Nullable Tensor dx, Pass pass);
}
