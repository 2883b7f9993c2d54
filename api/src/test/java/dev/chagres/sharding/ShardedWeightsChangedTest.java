package dev.chagres.sharding;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Tensor;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.Linear;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.ops.Elementwise;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Sequential;
import java.util.Arrays;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Layers with sharded weights read what was written to the shards from outside. */
@Tag("L0")
@Tag("L2")
class ShardedWeightsChangedTest {
    private static final int SIZE = 16;
    private static final int LAYERS = 4;

    /** Who writes. */
    private enum Writer {
        TENSOR,
        KERNEL
    }

    private static Linear[] layers(ModelPlan plan) {
        Linear[] layers = new Linear[LAYERS];
        for (int i = 0; i < LAYERS; i++) {
            layers[i] = new Linear(SIZE, SIZE, Initializer.normal(0.5f), plan.group("layers." + i));
        }
        return layers;
    }

    private static float[] forward(Linear[] layers, Pass pass) {
        pass.begin();
        Tensor x = pass.scope().tensor(DType.BFLOAT16, 2, SIZE);
        float[] values = new float[2 * SIZE];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) Math.sin(i);
        }
        x.set(pass.stream(), values);
        return new Sequential("all", layers).forward(x, pass).toFloats(pass.stream());
    }

    /** Halves all weights that this rank has. */
    private static void halve(Parameters parameters, Writer writer, Pass pass) {
        Tensor weights = parameters.weights();
        float[] values = weights.toFloats(pass.stream());
        for (int i = 0; i < values.length; i++) {
            values[i] /= 2;
        }
        if (writer == Writer.TENSOR) {
            weights.set(pass.stream(), values);
        } else {
            Tensor halves = pass.begin().scope().like(weights);
            halves.set(pass.stream(), values);
            Elementwise.cast(halves, weights, pass.stream());
            parameters.changed();
        }
    }

    @ParameterizedTest
    @CsvSource({
        "TWO, AFTER_FORWARD, TENSOR",
        "THREE, AFTER_FORWARD, TENSOR",
        "THREE, AFTER_FORWARD, KERNEL",
        "THREE, AFTER_STEP, TENSOR",
        "THREE, AFTER_STEP, KERNEL"
    })
    void whatWasWrittenIsRead(ZeroStage stage, Reshard reshard, Writer writer) {
        DevicesNeeded.assume(2);
        float[][] expected = new float[3][];
        ModelPlan whole = new ModelPlan();
        Linear[] of = layers(whole);
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, whole, DType.BFLOAT16, 3);
                Pass pass = Pass.evaluation(device)) {
            for (int i = 0; i < expected.length; i++) {
                expected[i] = forward(of, pass);
                halve(parameters, writer, pass);
            }
        }
        assertFalse(Arrays.equals(expected[0], expected[1]));
        FullyShardedConfig config = FullyShardedConfig.of(stage).withReshard(reshard);
        Ranks.local(2).each(rank -> {
            ModelPlan plan = new ModelPlan();
            Linear[] layers = layers(plan);
            try (Mesh mesh = Mesh.of(rank.communicator(), MeshShape.ofOne().with(MeshDimension.SHARD, 2));
                    FullySharded training = FullySharded.allocate(plan, DType.BFLOAT16, 3, config, mesh);
                    Pass pass = Pass.evaluation(rank.device())) {
                training.follow(pass);
                for (float[] one : expected) {
                    assertArrayEquals(one, forward(layers, pass));
                    assertArrayEquals(one, forward(layers, pass));
                    halve(training.parameters(), writer, pass);
                }
            }
        });
    }
}
