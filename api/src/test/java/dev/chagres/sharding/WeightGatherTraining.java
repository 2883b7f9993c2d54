package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.launch.Rank;
import dev.chagres.layer.Bias;
import dev.chagres.layer.LayerNormMlp;
import dev.chagres.layer.Linear;
import dev.chagres.layer.MlpConfig;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Recomputed;
import dev.chagres.pass.Sequential;
import dev.chagres.recipe.Quantizers;
import dev.chagres.recipe.Recipe;
import dev.chagres.te.Activation;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;

/** Some steps of layers with sharded weights, in groups of two sizes and one of its own, with every way to gather them. */
final class WeightGatherTraining {
    static final int STEPS = 5;
    private static final long SEED = 11;
    private static final int GROUPS = 6;
    static final int HIDDEN = 48;
    private static final int TOKENS = 16;

    private WeightGatherTraining() {}

    /**
     * What a rank has in the end.
     *
     * @param outputs of the layers, step by step
     * @param weights and moments of the whole model
     * @param bytes that travelled, step by step
     * @param described the strategy's {@code toString}
     * @param made in which memory weights were gathered
     * @param held bytes of weights and gradients before the first step, and after its forward
     */
    record Trained(
            List<float[]> outputs,
            Map<String, float[]> weights,
            List<CollectiveBytes> bytes,
            String described,
            WeightGather made,
            List<Long> held) {
        /** Returns numbers by which runs are compared. */
        String digest() {
            int outputBits = outputs.stream().map(Arrays::hashCode).toList().hashCode();
            var weightBits = new TreeMap<String, Integer>();
            weights.forEach((name, values) -> weightBits.put(name, Arrays.hashCode(values)));
            return outputBits + " " + weightBits.hashCode() + " " + weights.size() + " " + bytes;
        }
    }

    private static Layer layers(ModelPlan plan) {
        return Sequential.of(GROUPS, i -> {
            ModelPlan group = plan.group("layers." + i);
            return i == 3
                    ? new Linear(HIDDEN, HIDDEN, Initializer.normal(0.1f), group)
                    : new LayerNormMlp(
                            MlpConfig.gelu(HIDDEN)
                                    .withInner(i % 2 == 0 ? 80 : 96)
                                    .withActivation(Activation.SWIGLU),
                            group);
        });
    }

    /** Layers of one size that are recomputed together, so that the weights of all are in use at a time. */
    static Layer recomputedTogether(ModelPlan plan) {
        return new Recomputed(Sequential.of(
                GROUPS,
                i -> new Linear(HIDDEN, HIDDEN, Bias.ABSENT, Initializer.normal(0.1f), plan.group("layers." + i))));
    }

    static float[] input(int rank, int step) {
        float[] values = new float[TOKENS * HIDDEN];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) Math.sin(0.7 * i + step + 0.3 * rank);
        }
        return values;
    }

    /** Trains {@code copies} of a model; {@code recipe} is null for products in the model's type. */
    static Trained train(Rank rank, FullyShardedConfig config, int copies, DType dtype, @Nullable Recipe recipe) {
        return train(rank, config, copies, dtype, recipe, WeightGatherTraining::layers);
    }

    /** Trains other layers, which {@code declare} makes. */
    static Trained train(
            Rank rank,
            FullyShardedConfig config,
            int copies,
            DType dtype,
            @Nullable Recipe recipe,
            Function<ModelPlan, Layer> declare) {
        ModelPlan plan = new ModelPlan();
        Layer layers = declare.apply(plan);
        MeshShape shape = MeshShape.ofOne()
                .with(MeshDimension.REPLICATE, copies)
                .with(MeshDimension.SHARD, rank.count() / copies);
        FullySharded closed;
        Trained trained;
        try (Mesh mesh = Mesh.of(rank.communicator(), shape);
                FullySharded strategy = FullySharded.allocate(plan, dtype, SEED, config, mesh);
                AdamW optimizer = new AdamW(strategy.parameters(), AdamW.Config.standard());
                Pass pass = Pass.training(rank.device())) {
            strategy.follow(pass);
            if (recipe != null) {
                Quantizers quantizers = Quantizers.allocate(strategy.parameters(), recipe);
                pass.autocast(quantizers);
                strategy.reduceAmax(quantizers);
            }
            strategy.takeBytes();
            List<Long> held = new ArrayList<>(List.of(strategy.byteSize()));
            GradientNorm norm = new GradientNorm(strategy.parameters(), 1);
            List<float[]> outputs = new ArrayList<>();
            List<CollectiveBytes> bytes = new ArrayList<>();
            Stream stream = pass.stream();
            for (int step = 0; step < STEPS; step++) {
                pass.begin();
                strategy.lastMicroBatch();
                Tensor x = pass.scope().tensor(dtype, TOKENS, HIDDEN);
                x.set(stream, input(rank.index(), step));
                Tensor y = layers.forward(x, pass);
                outputs.add(y.toFloats(stream));
                if (step == 0) {
                    held.add(strategy.byteSize());
                }
                layers.backward(y, pass);
                strategy.sumGradients();
                norm.compute();
                optimizer.step(1e-2f, norm);
                bytes.add(strategy.takeBytes());
            }
            Map<String, float[]> weights = new TreeMap<>();
            strategy.gatherState(optimizer, (name, tensor) -> weights.put(name, tensor.toFloats(stream)));
            closed = strategy;
            trained = new Trained(outputs, weights, bytes, strategy.toString(), strategy.weightGather(), held);
        }
        if (!closed.toString().equals(trained.described())) {
            throw new AssertionError("expected " + trained.described() + " after it is closed, got " + closed);
        }
        return trained;
    }
}
