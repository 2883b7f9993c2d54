package dev.chagres.layer;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.DevicesNeeded;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.checkpoint.RunState;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.sharding.DataParallel;
import dev.chagres.sharding.FullySharded;
import dev.chagres.sharding.FullyShardedConfig;
import dev.chagres.sharding.Strategy;
import dev.chagres.sharding.ZeroStage;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Tensor-parallel ranks that have no row of a small vocabulary train, save and load like the others. */
@Tag("L0")
@Tag("L2")
class EmptyPartsTest {
    private static final int VOCABULARY = 5;
    private static final int HIDDEN = 8;
    private static final int TOKENS = 12;

    /** Losses of the steps, and of one more behind a state that was saved and loaded. */
    private static float[] train(Rank rank, MeshDimension data, int parts, int tensor, Path file) throws Exception {
        Stream stream = rank.device().stream();
        MeshShape shape = MeshShape.ofOne().with(data, parts).with(MeshDimension.TENSOR, tensor);
        try (Mesh mesh = Mesh.of(rank.communicator(), shape)) {
            ModelPlan plan = new ModelPlan(TensorParallel.of(mesh.along(MeshDimension.TENSOR)));
            Embedding embedding =
                    Embedding.vocabularyParallel(VOCABULARY, HIDDEN, Initializer.normal(1), plan.group("embedding"));
            LayerNorm norm = new LayerNorm(NormConfig.layerNorm(HIDDEN), plan.group("norm"));
            Linear decoder = Linear.tied(embedding.weight(), plan.group("decoder"));
            CrossEntropy crossEntropy = CrossEntropy.vocabularyParallel(VOCABULARY, VOCABULARY, plan);
            Strategy strategy = strategy(rank, plan, data, mesh);
            try (Parameters parameters = strategy.parameters();
                    strategy;
                    AdamW optimizer = new AdamW(parameters, AdamW.Config.standard());
                    Pass pass = Pass.training(rank.device())) {
                GradientNorm gradientNorm = new GradientNorm(parameters, 1);
                strategy.follow(pass);
                float[] losses = new float[4];
                for (int step = 0; step < losses.length; step++) {
                    if (step == losses.length - 1) {
                        RunState state = RunState.of(strategy).over(mesh).optimizer(optimizer);
                        state.save(file, Map.of());
                        state.load(file);
                    }
                    for (int i = 0; i < 2; i++) {
                        pass.begin();
                        Tensor ids = pass.scope().tensor(DType.INT32, TOKENS);
                        ids.set(stream, numbers(step + i));
                        if (i == 1) {
                            strategy.lastMicroBatch();
                        }
                        Tensor x = norm.forward(embedding.forward(ids, pass), pass);
                        Tensor labels = pass.scope().tensor(DType.INT32, TOKENS);
                        labels.set(stream, numbers(7 * step + i + 1));
                        losses[step] = crossEntropy.forward(decoder.forward(x, pass), labels, pass)
                                .toFloats(stream)[0];
                        Tensor dlogits = crossEntropy.backward(0.5f / parts, pass);
                        embedding.backward(norm.backward(decoder.backward(dlogits, pass), pass), pass);
                    }
                    strategy.sumGradients();
                    gradientNorm.compute();
                    optimizer.step(0.01f, gradientNorm);
                }
                return losses;
            }
        }
    }

    private static Strategy strategy(Rank rank, ModelPlan plan, MeshDimension data, Mesh mesh) {
        return data == MeshDimension.SHARD
                ? FullySharded.allocate(plan, DType.FLOAT32, 5, FullyShardedConfig.of(ZeroStage.THREE), mesh)
                : DataParallel.of(Parameters.allocate(rank.device(), plan, DType.FLOAT32, 5), mesh.along(data));
    }

    private static int[] numbers(int seed) {
        int[] numbers = new int[TOKENS];
        for (int i = 0; i < TOKENS; i++) {
            numbers[i] = (i * 3 + seed) % VOCABULARY;
        }
        return numbers;
    }

    @ParameterizedTest
    @CsvSource({"REPLICATE, 1, 4", "REPLICATE, 2, 4", "REPLICATE, 1, 8", "SHARD, 1, 4", "SHARD, 2, 4"})
    void ranksWithoutARowTrainAndSave(MeshDimension data, int parts, int tensor, @TempDir Path folder)
            throws Exception {
        DevicesNeeded.assume(parts * tensor);
        Path one = folder.resolve("one.safetensors");
        Path many = folder.resolve("many.safetensors");
        float[] expected = Ranks.local(1)
                .run(rank -> train(rank, MeshDimension.REPLICATE, 1, 1, one))
                .getFirst();
        List<float[]> ranks = Ranks.local(parts * tensor).run(rank -> train(rank, data, parts, tensor, many));
        for (float[] losses : ranks) {
            assertArrayEquals(expected, losses, 1e-4f);
        }
        assertEquals(Files.size(one), Files.size(many));
    }
}
