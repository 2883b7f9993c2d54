package dev.chagres.sharding;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.bindings.Provider;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.pipeline.PipelineParallel;
import dev.chagres.sharding.StrategyModel.Place;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.atomic.AtomicReference;
import org.jspecify.annotations.Nullable;

/**
 * What training gave, on one rank that accumulates the parts of each step, or on the ranks of a case.
 *
 * @param losses of each step
 * @param norms of each step's gradients, before they are clipped
 */
record StrategyRun(float[] losses, float[] norms) {
    /** {@code -Dchagres.test.steps} takes more. */
    static final int STEPS = Integer.getInteger("chagres.test.steps", 8);

    private static final long SEED = 7;
    private static final float RATE = 1e-3f;
    /**
     * Where no token that counts sees more than one key, the gradients of queries and keys are 0 but for rounding, and with this epsilon Adam
     * makes steps of that: norms of later steps then differ by up to 0.3 %, beside one rank with weights a unit in the last place apart as
     * beside several ranks, and with an epsilon of 1e-3 they do not. So give the batches here sequences of several tokens.
     */
    private static final AdamW.Config ADAM = new AdamW.Config(0.9f, 0.98f, 1e-8f, 0.01f);

    private static final boolean REFERENCE = Provider.current() == Provider.REFERENCE;
    private static final double LOSS_TOLERANCE = REFERENCE ? 1e-5 : 1e-3;
    private static final double NORM_TOLERANCE = REFERENCE ? 1e-4 : 1e-2;

    StrategyRun() {
        this(new float[STEPS], new float[STEPS]);
    }

    /** How far gradients are clipped. */
    enum Clipping {
        /** To a norm of 1, less than what the model's gradients have. */
        TO_ONE(1),
        /** Not at all: what ranks add up in another order, the norm alone, decides nothing. */
        NONE(1e6f);

        private final float most;

        Clipping(float most) {
            this.most = most;
        }
    }

    private void finish(int step, StrategyModel model, GradientNorm norm, AdamW optimizer) {
        norm.compute();
        losses[step] = model.loss();
        norms[step] = norm.norm().toFloats(model.parameters.scope().stream())[0];
        optimizer.step(RATE, norm);
    }

    /** Trains on one rank that accumulates the parts of all data-parallel ranks of a case. */
    static StrategyRun ofOne(StrategyCase one, Clipping clipping) {
        try (Device device = Device.open();
                StrategyModel model = new StrategyModel(
                        device, one.variant().onOneRank(), one.layers(), 1, Place.ofOne(device, SEED));
                AdamW optimizer = new AdamW(model.parameters, ADAM);
                Pass pass = Pass.training(device)) {
            GradientNorm norm = new GradientNorm(model.parameters, clipping.most);
            StrategyRun run = new StrategyRun();
            for (int step = 0; step < STEPS; step++) {
                int parts = one.dataRanks() * one.microBatches(step);
                model.begin(step, parts);
                for (int part = 0; part < parts; part++) {
                    if (model.hasSequences(part)) {
                        pass.begin();
                        model.compute(part, pass);
                    }
                }
                run.finish(step, model, norm, optimizer);
            }
            return run;
        }
    }

    /** Trains on the ranks of a case, which are threads. */
    static StrategyRun ofRanks(StrategyCase one, Clipping clipping) {
        List<StrategyRun> runs = Ranks.local(one.ranks()).run(rank -> ofRank(rank, one, clipping));
        return joined(one, runs);
    }

    /** Adds up the losses of ranks, which those that split layers have each, and asserts that all have the same norm. */
    static StrategyRun joined(StrategyCase one, List<StrategyRun> runs) {
        int tensor = one.shape().size(MeshDimension.TENSOR);
        float[] losses = new float[STEPS];
        for (int step = 0; step < STEPS; step++) {
            float[] sums = new float[tensor];
            for (int rank = 0; rank < runs.size(); rank++) {
                sums[rank % tensor] += runs.get(rank).losses[step];
                assertEquals(
                        runs.getFirst().norms[step], runs.get(rank).norms[step], "norm of all ranks, step " + step);
            }
            for (float sum : sums) {
                assertEquals(sums[0], sum, "loss of ranks that split layers, step " + step);
            }
            losses[step] = sums[0];
        }
        return new StrategyRun(losses, runs.getFirst().norms);
    }

    private static Strategy strategy(StrategyCase one, ModelPlan plan, Mesh mesh, Device device) {
        FullyShardedConfig config = one.config();
        return config == null
                ? DataParallel.of(
                        Parameters.allocate(device, plan, DType.FLOAT32, SEED),
                        mesh.along(MeshDimension.REPLICATE, MeshDimension.SHARD, MeshDimension.CONTEXT))
                : FullySharded.allocate(plan, DType.FLOAT32, SEED, config, mesh);
    }

    private static Place place(StrategyCase one, Mesh mesh, Device device, AtomicReference<Strategy> made) {
        return new Place(
                mesh.size(MeshDimension.PIPELINE),
                mesh.coordinate(MeshDimension.PIPELINE),
                one.dataRanks(),
                mesh.coordinate(MeshDimension.REPLICATE) * mesh.size(MeshDimension.SHARD)
                        + mesh.coordinate(MeshDimension.SHARD),
                one.plan(mesh),
                plan -> {
                    made.set(strategy(one, plan, mesh, device));
                    return made.get().parameters();
                });
    }

    private static @Nullable PipelineParallel pipeline(StrategyCase one, StrategyModel model, Mesh mesh) {
        return one.isPipeline()
                ? PipelineParallel.of(model.stages(), model.parameters, StrategyModel.HIDDEN, mesh)
                : null;
    }

    /** Trains as one rank. */
    static StrategyRun ofRank(Rank rank, StrategyCase one, Clipping clipping) {
        return ofRank(rank, one, clipping, STEPS);
    }

    /** Takes the first {@code steps} alone. */
    static StrategyRun ofRank(Rank rank, StrategyCase one, Clipping clipping, int steps) {
        AtomicReference<Strategy> made = new AtomicReference<>();
        Device device = rank.device();
        try (Mesh mesh = Mesh.of(rank.communicator(), one.shape());
                StrategyModel model = new StrategyModel(
                        device, one.variant(), one.layers(), one.stagesPerRank(), place(one, mesh, device, made));
                Strategy strategy = made.get();
                PipelineParallel pipeline = pipeline(one, model, mesh);
                AdamW optimizer = new AdamW(model.parameters, ADAM);
                Pass pass = Pass.training(device)) {
            GradientNorm norm = new GradientNorm(model.parameters, clipping.most);
            (pipeline == null ? List.of(pass) : pipeline.passes()).forEach(strategy::follow);
            StrategyRun run = new StrategyRun();
            for (int step = 0; step < steps; step++) {
                int microBatches = one.microBatches(step);
                Tensor labelled = model.begin(step, microBatches);
                strategy.sumOverRanks(labelled);
                if (pipeline == null) {
                    compute(model, microBatches, strategy, pass);
                } else {
                    pipeline.run(model, microBatches);
                }
                strategy.sumGradients();
                run.finish(step, model, norm, optimizer);
            }
            return run;
        }
    }

    private static void compute(StrategyModel model, int microBatches, Strategy strategy, Pass pass) {
        for (int i = 0; i < microBatches; i++) {
            if (model.hasSequences(i) || strategy.needsEqualMicroBatches()) {
                pass.begin();
                if (i == microBatches - 1) {
                    strategy.lastMicroBatch();
                }
                model.compute(i, pass);
            }
        }
    }

    /** Returns losses and norms, such that two runs have the same text when all bits are the same. */
    String bits() {
        return bits(STEPS);
    }

    /** Returns those of the first {@code steps}. */
    String bits(int steps) {
        return Arrays.toString(Arrays.copyOf(losses, steps)) + " " + Arrays.toString(Arrays.copyOf(norms, steps));
    }

    /** Asserts that losses are within 1e-5 of these, and norms within 1e-4; on a GPU, which rounds products to TF32, a hundred times that. */
    void assertClose(StrategyRun actual) {
        assertNotEquals(losses[0], losses[STEPS - 1], "the loss changes");
        for (int step = 0; step < STEPS; step++) {
            assertEquals(losses[step], actual.losses[step], LOSS_TOLERANCE * losses[step], "loss of step " + step);
            assertEquals(norms[step], actual.norms[step], NORM_TOLERANCE * norms[step], "norm of step " + step);
        }
    }
}
