package dev.chagres.models.esm;

import dev.chagres.Tensor;
import dev.chagres.layer.Layer;
import dev.chagres.layer.Pass;
import dev.chagres.layer.Sequential;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.pipeline.PipelinePlan;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * An ESM-2 in stages for pipeline-parallel ranks: the embedding is in the first stage, norm, head and loss are in the last one, and so is
 * the embedding's table, which the head reads.
 *
 * <p>Threading: the device's thread.
 */
public final class Esm2Stages {
    private final Esm2 model;
    private final List<Layer> layers = new ArrayList<>();

    /**
     * Divides a model.
     *
     * @param plan of the model's parameters, from {@link #place}
     */
    public Esm2Stages(Esm2 model, PipelinePlan plan) {
        this.model = model;
        List<Layer> all = model.layers.layers();
        for (int stage = 0; stage < plan.stages(); stage++) {
            layers.add(new Sequential(
                    "stage " + stage,
                    all.subList(plan.firstLayer(all.size(), stage), plan.firstLayer(all.size(), stage + 1))
                            .toArray(Layer[]::new)));
        }
    }

    /**
     * Says which stage has which parameters.
     *
     * @param declared where an {@link Esm2} has declared its parameters
     * @throws IllegalArgumentException when there are fewer layers than stages
     */
    public static PipelinePlan place(ModelPlan declared, Esm2Config config, int ranks, int stagesPerRank) {
        PipelinePlan plan = PipelinePlan.of(declared, ranks, stagesPerRank);
        int end = plan.stages() - 1;
        plan.place(0, declared.group("embedding").parameters());
        for (int stage = 0; stage <= end; stage++) {
            int after = plan.firstLayer(config.layers(), stage + 1);
            for (int i = plan.firstLayer(config.layers(), stage); i < after; i++) {
                plan.place(stage, declared.group("layers." + i).parameters());
            }
        }
        return plan.place(end, declared.group("norm").parameters())
                .place(end, declared.group("head").parameters())
                .place(end, declared.group("embedding").parameters());
    }

    /**
     * Returns how many rows travel between stages: as many as there are tokens, or this rank's part where sequence-parallel ranks have one
     * each.
     *
     * @param ids INT32 [T]
     */
    public long rows(Tensor ids) {
        return model.parameters().tensorParallel().isSequenceParallel()
                ? ids.size(0) / model.parameters().tensorParallel().size()
                : ids.size(0);
    }

    /**
     * Enqueues forward of a stage.
     *
     * @param ids INT32 [T], which the first stage reads
     * @param labels INT32 [T], which the last stage reads
     * @param x [{@link #rows}, H]; null in the first stage
     * @param y [{@link #rows}, H]; null in the last stage
     * @return in the last stage the mean cross-entropy of the labelled tokens, FLOAT32 [1]; else null
     */
    public @Nullable Tensor forward(
            int stage, Tensor ids, Tensor labels, @Nullable Tensor x, @Nullable Tensor y, Pass pass) {
        Tensor in = x != null ? x : model.embedding.forward(ids, pass);
        if (y != null) {
            layers.get(stage).forward(in, y, pass);
            return null;
        }
        Tensor out = model.norm.forward(layers.get(stage).forward(in, pass), pass);
        return model.crossEntropy.forward(model.head.forward(model.gather.forward(out, pass), pass), labels, pass);
    }

    /**
     * Enqueues backward of a stage.
     *
     * @param factor on the loss: the micro-batch's share of the labelled tokens of its step
     * @param lossScale FLOAT32 [1], null for none
     * @param dy [{@link #rows}, H]; null in the last stage
     * @param dx [{@link #rows}, H]; null in the first stage
     */
    public void backward(
            int stage, float factor, @Nullable Tensor lossScale, @Nullable Tensor dy, @Nullable Tensor dx, Pass pass) {
        Tensor gradient = dy != null ? dy : gradientOfLoss(factor, lossScale, pass);
        if (dx != null) {
            layers.get(stage).backward(gradient, dx, pass);
        } else {
            layers.get(stage).backward(gradient, gradient, pass);
            model.embedding.backward(gradient, pass);
        }
    }

    private Tensor gradientOfLoss(float factor, @Nullable Tensor lossScale, Pass pass) {
        Tensor dlogits = lossScale == null
                ? model.crossEntropy.backward(factor, pass)
                : model.crossEntropy.backward(factor, lossScale, pass);
        return model.norm.backward(model.gather.backward(model.head.backward(dlogits, pass), pass), pass);
    }
}
