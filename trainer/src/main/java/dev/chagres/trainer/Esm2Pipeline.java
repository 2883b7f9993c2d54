package dev.chagres.trainer;

import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.batch.ModelInput;
import dev.chagres.batch.StepReadback;
import dev.chagres.batch.UploadRing;
import dev.chagres.layer.Pass;
import dev.chagres.models.esm.Esm2Stages;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.LossScaler;
import dev.chagres.parameter.State;
import dev.chagres.pipeline.PipelineParallel;
import dev.chagres.pipeline.PipelineStage;
import dev.chagres.sharding.ShardedState;
import dev.chagres.sharding.Strategy;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Forward and backward of the micro-batches of a step through what one rank of a pipeline has of an ESM-2.
 *
 * <p>Threading: the device's thread.
 */
final class Esm2Pipeline implements PipelineStage, AutoCloseable {
    private final PipelineParallel pipeline;
    private final Strategy strategy;
    private final Esm2Stages stages;
    /** Of a step; each rank is given the tokens of all micro-batches. */
    private final Scope scope;

    private final @Nullable ModelInput[] inputs;
    private final double[] shares;
    private @Nullable Tensor lossScale;
    private @Nullable StepReadback readback;

    /**
     * Takes memory for the tokens of a step.
     *
     * @param pipeline closed together with this object
     * @param strategy of this rank's stages
     * @param microBatches the most of a step
     */
    Esm2Pipeline(Device device, PipelineParallel pipeline, Strategy strategy, Esm2Stages stages, int microBatches) {
        this.pipeline = pipeline;
        this.strategy = strategy;
        this.stages = stages;
        scope = device.openScope();
        inputs = new ModelInput[microBatches];
        shares = new double[microBatches];
    }

    /** Returns the passes of this rank. */
    List<Pass> passes() {
        return pipeline.passes();
    }

    /**
     * Enqueues forward and backward of all micro-batches that belong to this rank's copy of the model.
     *
     * @param ranks say whether a micro-batch does
     * @param scaler of the loss, null for none
     * @param losses gets those of the last stage, null for nowhere
     */
    void compute(UploadRing uploads, RankShare ranks, @Nullable LossScaler scaler, @Nullable StepReadback losses) {
        scope.restart();
        int count = 0;
        int microBatch = 0;
        boolean last = false;
        while (!last) {
            ModelInput input = uploads.next(scope);
            boolean own = ranks.isOwn(microBatch);
            if (own || ranks.helps(microBatch, input)) {
                inputs[count] = input;
                shares[count++] = own ? input.share() : 0;
            }
            microBatch++;
            last = input.isLast();
        }
        lossScale = scaler == null ? null : scaler.scale();
        readback = losses;
        if (count > 0) {
            pipeline.run(this, count);
        }
    }

    /** Returns the state of the whole model. */
    ShardedState state(AdamW optimizer, State others) {
        return pipeline.state(strategy, optimizer, others);
    }

    private ModelInput input(int microBatch) {
        ModelInput input = inputs[microBatch];
        if (input == null) {
            throw new IllegalArgumentException("microBatch: expected one of this step, got " + microBatch);
        }
        return input;
    }

    @Override
    public long tokens(int microBatch) {
        return stages.rows(input(microBatch).ids());
    }

    @Override
    public void forward(int stage, int microBatch, @Nullable Tensor x, @Nullable Tensor y, Pass pass) {
        ModelInput input = input(microBatch);
        pass.sequences(input.sequences());
        Tensor loss = stages.forward(stage, input.ids(), input.labels(), x, y, pass);
        StepReadback present = readback;
        if (loss != null && present != null && shares[microBatch] > 0) {
            present.addLoss(loss, shares[microBatch]);
        }
    }

    @Override
    public void backward(int stage, int microBatch, @Nullable Tensor dy, @Nullable Tensor dx, Pass pass) {
        stages.backward(stage, (float) shares[microBatch], lossScale, dy, dx, pass);
    }

    @Override
    public void close() {
        pipeline.close();
        scope.close();
    }
}
