package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.checkpoint.RunState;
import dev.chagres.launch.Rank;
import dev.chagres.mesh.Mesh;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.parameter.State;
import dev.chagres.pass.Pass;
import dev.chagres.recipe.Quantizers;
import dev.chagres.recipe.Recipe;
import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.function.UnaryOperator;

/** A small model that copies of two ranks each train, of which some fail; whole copies go on. */
final class HybridShrinkTraining implements AutoCloseable {
    static final int STEPS = 6;
    static final float RATE = 1e-3f;
    private static final long SEED = 7;

    /** Where a rank fails in a step. */
    enum Moment {
        IN_FORWARD,
        BEFORE_THE_SUMS,
        BEFORE_THE_UPDATE,
        /** Others may have completed the step, or not. */
        AFTER_THE_STEP,
    }

    /** A rank that fails. */
    record Victim(int rank, int step, Moment moment) {}

    /** How a rank fails. */
    interface Failing {
        void fail(Victim victim) throws InterruptedException;
    }

    /** What a rank has after training. */
    record Trained(int begun, float[] losses) {}

    private final SmallModel model;
    final AdamW optimizer;
    private final Pass pass;
    final GradientNorm norm;
    private final Scope scope;
    private final Tensor labelled;
    private final Stream stream;
    private final int world;
    private final List<Victim> victims;
    private final Failing failing;
    private final float[] losses = new float[STEPS];
    FullySharded strategy;
    private State scales = State.of();
    private Runnable beforeUpdate = () -> {};

    /** {@code maxNorm}: to which gradients are clipped. */
    HybridShrinkTraining(
            Rank rank,
            FullyShardedConfig config,
            Mesh mesh,
            DType dtype,
            float maxNorm,
            List<Victim> victims,
            Failing failing) {
        this.failing = failing;
        world = rank.index();
        this.victims = victims;
        stream = rank.device().stream();
        FullySharded[] made = new FullySharded[1];
        model = new SmallModel(rank.device(), dtype, 0.1f, UnaryOperator.identity(), plan -> {}, plan -> {
            made[0] = FullySharded.allocate(plan, dtype, SEED, config, mesh);
            return made[0].parameters();
        });
        strategy = made[0];
        optimizer = new AdamW(model.parameters, AdamW.Config.standard());
        pass = Pass.training(rank.device());
        norm = new GradientNorm(model.parameters, maxNorm);
        scope = rank.device().openScope();
        labelled = scope.tensor(DType.INT32, 1);
        strategy.follow(pass);
    }

    /** Computes in eight bits, with scales that are those of all ranks. */
    HybridShrinkTraining withRecipe(Recipe recipe) {
        Quantizers quantizers = Quantizers.allocate(model.parameters, recipe);
        pass.autocast(quantizers);
        strategy.reduceAmax(quantizers);
        scales = quantizers.state();
        return this;
    }

    /** Returns the scales of {@link #withRecipe}. */
    State scales() {
        return scales;
    }

    /** Runs {@code action} in each step when the sums are done. */
    void beforeUpdate(Runnable action) {
        beforeUpdate = action;
    }

    private void fail(int step, Moment moment) throws InterruptedException {
        Victim victim = new Victim(world, step, moment);
        if (victims.contains(victim)) {
            failing.fail(victim);
        }
    }

    void step(int step, int rank) throws InterruptedException {
        int[] lengths = {3 + rank, 5};
        int[][] batch = SmallModel.batch(100L * step + rank, lengths);
        int count = 0;
        for (int label : batch[1]) {
            count += label >= 0 ? 1 : 0;
        }
        labelled.set(stream, count);
        strategy.sumOverRanks(labelled);
        pass.begin();
        strategy.lastMicroBatch();
        pass.seed(SEED, step, rank);
        fail(step, Moment.IN_FORWARD);
        Tensor logits = model.logits(pass, batch[0], lengths);
        Tensor loss = model.crossEntropy.forward(logits, model.ints(pass.scope(), batch[1]), labelled, pass);
        float value = loss.toFloats(stream)[0];
        model.backward(pass);
        fail(step, Moment.BEFORE_THE_SUMS);
        // @start region="step"
        strategy.sumGradients();
        norm.compute();
        strategy.awaitGradients(); // a failure is thrown here, or all ranks that are left make this step
        // @end
        fail(step, Moment.BEFORE_THE_UPDATE);
        losses[step] = value;
        beforeUpdate.run();
        optimizer.step(RATE, norm);
        fail(step, Moment.AFTER_THE_STEP);
    }

    /** Trains, and saves the state from which the copies that are left go on. */
    Trained train(Mesh begun, Path file) throws IOException, InterruptedException {
        int from = 0;
        Mesh mesh = begun;
        while (strategy.completedSteps() < STEPS) {
            try {
                step((int) strategy.completedSteps(), mesh.world().rank());
                // @start region="shrink"
            } catch (RankFailedException failed) {
                strategy = strategy.shrink(optimizer); // ranks of a copy that has lost one leave with an exception
                mesh = strategy.mesh();
                // @end
                from = (int) strategy.completedSteps();
                RunState.of(strategy).optimizer(optimizer).with(scales).save(file, Map.of());
            }
        }
        return new Trained(from, losses);
    }

    /** Goes on from a saved state. */
    Trained resume(Path file, int begun, int rank) throws IOException, InterruptedException {
        RunState.of(strategy).optimizer(optimizer).with(scales).load(file);
        for (int step = begun; step < STEPS; step++) {
            step(step, rank);
        }
        return new Trained(begun, losses);
    }

    @Override
    public void close() {
        scope.close();
        pass.close();
        optimizer.close();
        model.inputs.close();
        strategy.close();
    }
}
