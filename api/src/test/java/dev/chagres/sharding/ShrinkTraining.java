package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.io.Safetensors;
import dev.chagres.launch.Rank;
import dev.chagres.layer.FailingLayer;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.parameter.State;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.recipe.Quantizers;
import dev.chagres.recipe.Recipe;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;

/** A small model that data-parallel ranks train, of which some fail; who is left goes on. */
final class ShrinkTraining implements AutoCloseable {
    static final int STEPS = 8;
    private static final float RATE = 1e-3f;

    /** Where a rank fails in a step. */
    enum Moment {
        BEFORE_THE_SUMS,
        BEFORE_BACKWARD,
        /** In the midst of backward: others have summed the gradients of some layers, and fail in their own backward. */
        IN_BACKWARD,
        AFTER_SOME_SUMS,
        /** Others may have completed the step. */
        AFTER_THE_SUMS,
        /** Fails once the rank that {@link #COMPLETES} has made the step. */
        AFTER_ANOTHERS_STEP,
        /** Does not fail, and lets another one fail when it has made the step. */
        COMPLETES,
        /** Does not fail, but learns of others before it has completed the step. */
        LAGS,
        SILENT,
        /** Does not fail, and waits for one that is silent. */
        WAITS
    }

    /** A rank that is to fail. */
    record Victim(int rank, int step, Moment moment) {}

    /** How it fails. */
    interface Failing {
        void fail(Victim victim) throws InterruptedException;
    }

    /** What a rank has after training. */
    record Trained(int begun, float[] losses, float[][] weights) {}

    final AdamW optimizer;
    DataParallel strategy;
    private final SmallModel model;
    private final Pass pass;
    private final GradientNorm norm;
    private final Scope scope;
    final Tensor labelled;
    private final Stream stream;
    private final List<Victim> victims;
    private final Failing failing;
    private final int world;
    private final float[] losses = new float[STEPS];
    private Runnable beforeUpdate = () -> {};
    private final List<FailingLayer> layers = new ArrayList<>();

    ShrinkTraining(Rank rank, DType dtype, List<Victim> victims, Failing failing) {
        this.victims = victims;
        this.failing = failing;
        world = rank.index();
        Device device = rank.device();
        stream = device.stream();
        model = new SmallModel(device, dtype, 0.1f, this::wrap, plan -> {});
        strategy = DataParallel.of(
                model.parameters,
                rank.communicator(),
                DataParallelConfig.standard().withBucketBytes(1));
        optimizer = new AdamW(model.parameters, AdamW.Config.standard());
        pass = Pass.training(device);
        norm = new GradientNorm(model.parameters, 1);
        scope = device.openScope();
        labelled = scope.tensor(DType.INT32, 1);
        strategy.follow(pass);
    }

    private Layer wrap(Layer layer) {
        if (!(layer instanceof TransformerLayer)) {
            return layer;
        }
        FailingLayer wrapped = FailingLayer.around(layer, FailingLayer.Fails.NEVER);
        layers.add(wrapped);
        return wrapped;
    }

    /** Computes in eight bits, with scales that are those of all ranks; returns their state. */
    State withRecipe(Recipe recipe) {
        Quantizers quantizers = Quantizers.allocate(model.parameters, recipe);
        pass.autocast(quantizers);
        strategy.reduceAmax(quantizers);
        return quantizers.state();
    }

    /** Runs {@code action} in each step when the sums are done. */
    void beforeUpdate(Runnable action) {
        beforeUpdate = action;
    }

    private State state() {
        return State.of(model.parameters.state(), optimizer.state());
    }

    private void fail(int step, Moment moment) throws InterruptedException {
        Victim victim = new Victim(world, step, moment);
        if (victims.contains(victim)) {
            failing.fail(victim);
        }
    }

    void step(int step) throws InterruptedException {
        Communicator communicator = strategy.communicator();
        fail(step, Moment.BEFORE_THE_SUMS);
        fail(step, Moment.SILENT);
        fail(step, Moment.WAITS);
        int[] lengths = {3 + communicator.rank(), 5};
        int[][] batch = SmallModel.batch(100L * step + communicator.rank(), lengths);
        int count = 0;
        for (int label : batch[1]) {
            count += label >= 0 ? 1 : 0;
        }
        labelled.set(stream, count);
        strategy.sumOverRanks(labelled);
        pass.begin();
        strategy.lastMicroBatch();
        pass.seed(7, step, communicator.rank());
        Tensor logits = model.logits(pass, batch[0], lengths);
        Tensor loss = model.crossEntropy.forward(logits, model.ints(pass.scope(), batch[1]), labelled, pass);
        float value = loss.toFloats(stream)[0];
        fail(step, Moment.BEFORE_BACKWARD);
        if (victims.contains(new Victim(world, step, Moment.IN_BACKWARD))) {
            layers.get(1).fails(FailingLayer.Fails.BACKWARD);
        }
        model.backward(pass);
        fail(step, Moment.AFTER_SOME_SUMS);
        strategy.sumGradients();
        fail(step, Moment.LAGS);
        // @start region="step"
        strategy.awaitGradients(); // a failure is thrown here, and the weights stay as they were
        // @end
        beforeUpdate.run();
        // @start region="step"
        norm.compute();
        optimizer.step(RATE, norm);
        // @end
        losses[step] = value;
        fail(step, Moment.COMPLETES);
        fail(step, Moment.AFTER_ANOTHERS_STEP);
        fail(step, Moment.AFTER_THE_SUMS);
    }

    /** Trains, without ranks that fail meanwhile; calls {@code goesOn} when others are left out. */
    Trained train(Path file, Runnable goesOn) throws InterruptedException {
        int begun = 0;
        while (strategy.completedSteps() < STEPS) {
            try {
                makeStep();
                // @start region="shrink"
            } catch (RankFailedException failed) {
                strategy = strategy.shrink(optimizer);
                // @end
                goesOn.run();
                begun = (int) strategy.completedSteps();
                if (strategy.communicator().rank() == 0) {
                    Safetensors.save(file, state(), stream, Map.of());
                }
            }
        }
        return trained(begun);
    }

    private void makeStep() throws InterruptedException {
        try {
            step((int) strategy.completedSteps());
        } catch (RankFailedException failed) {
            spoilGradients();
            throw failed;
        }
    }

    /** Writes to the gradients, padding included, as an aborted sum of NCCL may do. */
    private void spoilGradients() {
        Tensor gradients = model.parameters.gradients();
        float[] values = new float[Math.toIntExact(gradients.count())];
        Arrays.fill(values, 0.5f);
        gradients.set(stream, values);
    }

    /** Trains from a saved state. */
    Trained resume(Path file, int begun) throws InterruptedException {
        Safetensors.load(file, state(), stream);
        for (int step = begun; step < STEPS; step++) {
            step(step);
        }
        return trained(begun);
    }

    private Trained trained(int begun) {
        return new Trained(begun, losses, weights());
    }

    float[][] weights() {
        return model.parameters.all().stream()
                .map(parameter -> parameter.weight().toFloats(stream))
                .toArray(float[][]::new);
    }

    @Override
    public void close() {
        strategy.close();
        scope.close();
        pass.close();
        optimizer.close();
        model.close();
    }
}
