package dev.chagres.layer;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.layer.TransformerLayerConfig.BranchOrder;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.te.Activation;
import java.util.Arrays;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/**
 * A layer adds the bias of a branch's last product with the residual, to the rounded product, as TE does.
 *
 * <p>In BF16, whose numbers from 256 to 512 are even: the last product is 257, its bias 1, the residual -256. The product rounds to 256,
 * and 256 + 1 - 256 is 1; where the product itself adds the bias, 258 - 256 is 2.
 */
@Tag("L0")
@Tag("L1")
class ResidualBiasTest {
    private static final int TOKENS = 3;
    private static final int SIZE = 16;
    private static final float RESIDUAL = -256;
    private static final float PRODUCT = 257;

    /** The branch whose last product is not 0. */
    enum Branch {
        /** Its sum is formed by the kernel of the norm behind it. */
        ATTENTION,
        /** Its sum is formed by a kernel of its own. */
        MLP
    }

    /** A layer of zeros but for one branch, whose last product reads ones. */
    private static final class Run implements AutoCloseable {
        private final ModelPlan plan = new ModelPlan();
        private final TransformerLayer layer;
        private final Device device = Device.open();
        private final Parameters parameters;
        private final Scope scope = device.openScope();

        Run(TransformerLayerConfig config, Branch branch) {
            layer = new TransformerLayer(config, plan);
            parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 0);
            boolean attends = branch == Branch.ATTENTION;
            String last = attends ? "attention.projection" : "mlp.fc2";
            set(attends ? "attention.qkv.linear.bias" : "mlp.fc1.bias", 1);
            set(last + ".weight", (PRODUCT - 17) / (SIZE - 1));
            float[] weight = parameters.get(last + ".weight").weight().toFloats(device.stream());
            for (int row = 0; row < SIZE; row++) {
                weight[row * SIZE] = 17;
            }
            parameters.get(last + ".weight").weight().set(device.stream(), weight);
            set(last + ".bias", 1);
            parameters.changed();
        }

        private void set(String name, float value) {
            Tensor weight = parameters.get(name).weight();
            float[] values = new float[Math.toIntExact(weight.count())];
            Arrays.fill(values, value);
            weight.set(device.stream(), values);
        }

        float[] forward(Layer called, Pass begun) {
            try (Pass pass = begun) {
                pass.seed(1, 2, 3);
                pass.begin(Sequences.packed(scope, TOKENS));
                Tensor x = scope.tensor(DType.BFLOAT16, TOKENS, SIZE);
                float[] values = new float[TOKENS * SIZE];
                Arrays.fill(values, RESIDUAL);
                x.set(device.stream(), values);
                return called.forward(x, pass).toFloats(device.stream());
            }
        }

        @Override
        public void close() {
            scope.close();
            parameters.close();
            device.close();
        }
    }

    private static TransformerLayerConfig config() {
        return TransformerLayerConfig.encoder(SIZE, AttentionConfig.of(1, SIZE, AttentionMask.none()))
                .withMlp(MlpConfig.gelu(SIZE).withInner(SIZE).withActivation(Activation.RELU))
                .withInitializer(Initializer.zeros());
    }

    private static void assertAll(float expected, float[] values) {
        float[] all = new float[TOKENS * SIZE];
        Arrays.fill(all, expected);
        assertArrayEquals(all, values);
    }

    @ParameterizedTest
    @EnumSource
    void isAddedWithTheResidual(Branch branch) {
        try (Run run = new Run(config(), branch)) {
            assertAll(1, run.forward(run.layer, Pass.training(run.device)));
            assertAll(1, run.forward(run.layer, Pass.evaluation(run.device)));
            Layer alone = branch == Branch.ATTENTION ? run.layer.attention() : run.layer.mlp();
            assertAll(258, run.forward(alone, Pass.evaluation(run.device)));
            assertAll(1, run.forward(run.layer, Pass.evaluation(run.device)));
        }
    }

    /** What dropout or drop path leaves out includes the bias. */
    @ParameterizedTest
    @EnumSource
    void isAddedBeforeDropout(Branch branch) {
        try (Run run = new Run(config().withDropPath(Dropout.of(1e-9f)), branch)) {
            assertAll(2, run.forward(run.layer, Pass.training(run.device)));
            assertAll(1, run.forward(run.layer, Pass.evaluation(run.device)));
        }
    }

    /** The sum of both branches is rounded before the residual is added, as in TE, where their products add their biases. */
    @Test
    void isAddedByTheProductsOfParallelBranches() {
        try (Run run = new Run(config().withBranchOrder(BranchOrder.PARALLEL), Branch.MLP)) {
            assertAll(2, run.forward(run.layer, Pass.evaluation(run.device)));
        }
    }
}
