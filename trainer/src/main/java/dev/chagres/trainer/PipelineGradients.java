package dev.chagres.trainer;

import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.batch.LayeredModel;
import dev.chagres.batch.ModelInput;
import dev.chagres.batch.StepReadback;
import dev.chagres.batch.UploadRing;
import dev.chagres.checkpoint.RunState;
import dev.chagres.optim.LossScaler;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Sequential;
import dev.chagres.pipeline.PipelineParallel;
import dev.chagres.pipeline.PipelinePlan;
import dev.chagres.pipeline.PipelineStage;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.BiConsumer;
import org.jspecify.annotations.Nullable;

/**
 * Forward and backward of the micro-batches of a step through what one rank of a pipeline has of a model: what comes before the layers is in
 * the first stage, what comes after them in the last one.
 *
 * <p>Threading: the device's thread.
 */
final class PipelineGradients implements PipelineStage, AutoCloseable {
    private final PipelineParallel pipeline;
    private final LayeredModel model;
    /** The layers of each stage. */
    private final List<Layer> stages = new ArrayList<>();
    /** Of a step; each rank is given the tokens of all micro-batches. */
    private final Scope scope;

    private @Nullable ModelInput[] inputs;
    private double[] shares;
    private @Nullable Tensor lossScale;
    private @Nullable StepReadback readback;
    /** Null while a step is computed. */
    private @Nullable BiConsumer<Tensor, ModelInput> evaluated;

    /**
     * Takes memory for the tokens of a step.
     *
     * @param pipeline closed together with this object
     * @param plan from {@link #place}
     * @param microBatches the most of a step
     */
    PipelineGradients(
            Device device, PipelineParallel pipeline, LayeredModel model, PipelinePlan plan, int microBatches) {
        this.pipeline = pipeline;
        this.model = model;
        List<Layer> all = model.layers();
        for (int stage = 0; stage < plan.stages(); stage++) {
            stages.add(new Sequential(
                    "stage " + stage,
                    all.subList(plan.firstLayer(all.size(), stage), plan.firstLayer(all.size(), stage + 1))
                            .toArray(Layer[]::new)));
        }
        scope = device.openScope();
        inputs = new ModelInput[microBatches];
        shares = new double[microBatches];
    }

    /**
     * Says which stage has which parameters.
     *
     * @throws IllegalArgumentException when there are fewer layers than stages
     */
    static PipelinePlan place(ModelPlan declared, LayeredModel.Parts parts, int ranks, int stagesPerRank) {
        PipelinePlan plan = PipelinePlan.of(declared, ranks, stagesPerRank);
        int layers = parts.layers().size();
        plan.place(0, parts.begin());
        for (int stage = 0; stage < plan.stages(); stage++) {
            int after = plan.firstLayer(layers, stage + 1);
            for (int i = plan.firstLayer(layers, stage); i < after; i++) {
                plan.place(stage, parts.layers().get(i));
            }
        }
        return plan.place(plan.stages() - 1, parts.end());
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
        int count = bring(uploads, ranks);
        lossScale = scaler == null ? null : scaler.scale();
        readback = losses;
        if (count > 0) {
            pipeline.run(this, count);
        }
    }

    /** Returns the pass of {@link #evaluate}. */
    Pass evaluationPass() {
        return pipeline.evaluationPass();
    }

    /**
     * Enqueues forward of all micro-batches that belong to this rank's copy of the model, without dropout.
     *
     * @param ranks say whether a micro-batch does
     * @param losses gets those of the last stage
     */
    void evaluate(UploadRing uploads, RankShare ranks, BiConsumer<Tensor, ModelInput> losses) {
        int count = bring(uploads, ranks);
        readback = null;
        evaluated = losses;
        try {
            if (count > 0) {
                pipeline.evaluate(this, count);
            }
        } finally {
            evaluated = null;
        }
    }

    /** Brings the micro-batches of a batch to the device, and returns how many are computed here. */
    private int bring(UploadRing uploads, RankShare ranks) {
        scope.restart();
        int count = 0;
        int microBatch = 0;
        boolean last = false;
        while (!last) {
            ModelInput input = uploads.next(scope);
            boolean own = ranks.isOwn(microBatch);
            if (own || ranks.helps(microBatch, input)) {
                if (count == inputs.length) { // An evaluation may have more micro-batches than a step.
                    inputs = Arrays.copyOf(inputs, 2 * count);
                    shares = Arrays.copyOf(shares, 2 * count);
                }
                inputs[count] = input;
                shares[count++] = own ? input.share() : 0;
            }
            microBatch++;
            last = input.isLast();
        }
        return count;
    }

    /** Returns the state of all stages. */
    RunState stagesOf(RunState state) {
        return state.stages(pipeline);
    }

    private ModelInput input(int microBatch) {
        ModelInput input = inputs[microBatch];
        if (input == null) {
            throw new IllegalArgumentException("microBatch: expected one of this step, got " + microBatch);
        }
        return input;
    }

    /** A row for each token, or for each of this rank's part where sequence-parallel ranks have one each. */
    @Override
    public long tokens(int microBatch) {
        TensorParallel tensor = model.parameters().tensorParallel();
        long tokens = input(microBatch).ids().size(0);
        return tensor.isSequenceParallel() ? tokens / tensor.size() : tokens;
    }

    @Override
    public void forward(int stage, int microBatch, @Nullable Tensor x, @Nullable Tensor y, Pass pass) {
        ModelInput input = input(microBatch);
        pass.sequences(input.sequences());
        // So a resumed run drops what the whole one does, and each stage something else.
        pass.seed(stage, model.parameters().step(), microBatch);
        Tensor in = x != null ? x : model.begin(input, pass);
        if (y != null) {
            stages.get(stage).forward(in, y, pass);
            return;
        }
        Tensor loss = model.end(stages.get(stage).forward(in, pass), input, pass);
        StepReadback present = readback;
        if (present != null && shares[microBatch] > 0) {
            present.addLoss(loss, shares[microBatch]);
        }
        BiConsumer<Tensor, ModelInput> consumer = evaluated;
        if (consumer != null && shares[microBatch] > 0) {
            consumer.accept(loss, input);
        }
    }

    @Override
    public void backward(int stage, int microBatch, @Nullable Tensor dy, @Nullable Tensor dx, Pass pass) {
        Tensor gradient = dy != null ? dy : model.endBackward((float) shares[microBatch], lossScale, pass);
        if (dx != null) {
            stages.get(stage).backward(gradient, dx, pass);
        } else {
            stages.get(stage).backward(gradient, gradient, pass);
            model.beginBackward(gradient, pass);
        }
    }

    @Override
    public void close() {
        pipeline.close();
        scope.close();
    }
}
