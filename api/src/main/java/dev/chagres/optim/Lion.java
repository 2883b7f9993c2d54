package dev.chagres.optim;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Numbers;
import dev.chagres.ops.OptimizerStep;
import dev.chagres.ops.OptimizerStep.Method;
import dev.chagres.ops.StepState;
import dev.chagres.parameter.Parameters;
import java.util.List;

/**
 * Lion, on FP32 master weights: {@code w = w - lr (sign(b1 m + (1 - b1) g) + decay w)}, {@code m = b2 m + (1 - b2) g}.
 *
 * <p>g is the gradient, w the weight, m its running mean, which begins at 0; b1 and b2 are the betas, lr the learning rate. Each weight moves by
 * lr, so rates are three to ten times smaller than those of {@link AdamW}, and decays as many times larger.
 *
 * <p>Weights that are not FLOAT32 have a master copy, from which they are rounded after each step; after {@link Parameters#changed} the
 * next step copies the weights to the masters first. Weight decay applies to matrices, not to biases and norms. The state has {@code
 * name.exp_avg} of each trained parameter, of the moment's type, and its master. A moment of {@link DType#BYTE} is kept in eight bits, as
 * {@link OptimizerStep} says, with {@code name.exp_avg_absmax}, FLOAT32, for each 256 of its elements.
 *
 * {@snippet file="dev/chagres/optim/LionTest.java" region="optimizer"}
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: Chen et al., Symbolic discovery of optimization algorithms (2023); {@code ops_optimizer_step} in {@code ops.h}.
 */
public final class Lion extends FlatOptimizer {
    /**
     * Numbers of the method.
     *
     * @param beta1 the share of the mean in the sign, within [0, 1)
     * @param beta2 the share of the mean that a step keeps, within [0, 1)
     * @param weightDecay weight decay of matrices, not negative
     * @param momentDType type of the mean: FLOAT32, BFLOAT16, or BYTE for eight bits
     * @param masters how masters of 16-bit weights are kept
     */
    public record Config(float beta1, float beta2, float weightDecay, DType momentDType, AdamW.Masters masters)
            implements OptimizerConfig {
        /** The defaults of its authors: 0.9, 0.99 and no decay, with a mean and masters of FLOAT32. */
        public static Config standard() {
            return new Config(0.9f, 0.99f, 0, DType.FLOAT32, AdamW.Masters.FLOAT32);
        }

        /**
         * Checks the numbers.
         *
         * @throws IllegalArgumentException when one is out of its range
         */
        public Config {
            Numbers.betas(beta1, beta2);
            Numbers.notNegative("weightDecay", weightDecay);
            Checks.given("masters", masters);
            if (Checks.given("momentDType", momentDType) != DType.FLOAT32
                    && momentDType != DType.BFLOAT16
                    && momentDType != DType.BYTE) {
                throw new IllegalArgumentException(
                        "momentDType: expected FLOAT32, BFLOAT16 or BYTE, got " + momentDType);
            }
        }

        @Override
        public Lion make(Parameters parameters, List<ParameterGroup> groups) {
            return new Lion(parameters, this, groups);
        }

        /**
         * Returns this with other betas.
         *
         * @throws IllegalArgumentException when one is not within [0, 1)
         */
        public Config withBetas(float newBeta1, float newBeta2) {
            return new Config(newBeta1, newBeta2, weightDecay, momentDType, masters);
        }

        /**
         * Returns this with another weight decay of matrices.
         *
         * @throws IllegalArgumentException when it is negative
         */
        public Config withWeightDecay(float newWeightDecay) {
            return new Config(beta1, beta2, newWeightDecay, momentDType, masters);
        }

        /**
         * Returns this with a mean of another type.
         *
         * @throws IllegalArgumentException when it is neither FLOAT32 nor BFLOAT16 nor BYTE
         */
        public Config withMomentDType(DType newMomentDType) {
            return new Config(beta1, beta2, weightDecay, newMomentDType, masters);
        }

        @Override
        public Config withMasters(AdamW.Masters newMasters) {
            return new Config(beta1, beta2, weightDecay, momentDType, newMasters);
        }

        @Override
        public int alignment() {
            return momentDType == DType.BYTE ? StepState.BLOCK : OptimizerConfig.super.alignment();
        }
    }

    private static final List<String> VECTORS = List.of(".exp_avg");

    private final StepUpdate update;

    /**
     * Allocates memory for the state, in a scope of its own: the mean and, for 16-bit weights, masters with the present values of the weights.
     *
     * @throws IllegalArgumentException when a weight that is not frozen is kept {@code QUANTIZED_ONLY}, or the mean has eight bits and
     *     parameters are not aligned for it
     * @throws IllegalStateException when the parameters are closed
     */
    public Lion(Parameters parameters, Config config) {
        this(parameters, config, List.of());
    }

    /**
     * Allocates memory for the state as the other constructor does, with parameter groups.
     *
     * @param groups parameters with their own rate or decay; a parameter belongs to the first group that accepts it. All ranks of a pipeline
     *     make the same groups; a group may have parameters of other stages alone
     * @throws IllegalArgumentException when a group has no trained parameter, masters are remainders of FLOAT16 weights, a weight that is
     *     not frozen is kept {@code QUANTIZED_ONLY}, or the mean has eight bits and parameters are not aligned for it
     * @throws IllegalStateException when the parameters are closed
     */
    public Lion(Parameters parameters, Config config, List<ParameterGroup> groups) {
        float decay = Checks.given("config", config).weightDecay();
        OptimizerState.Masters masters = MasterCopies.of(parameters, config.masters());
        super(parameters, config, groups, decay, config.momentDType(), VECTORS, masters);
        OptimizerStep method = OptimizerStep.of(Method.LION, config.beta1(), config.beta2());
        update = begun(() -> new StepUpdate(method, state, null));
    }

    @Override
    public String explain() {
        return update.explain();
    }

    @Override
    void update(Tensor gradientScale, Tensor skip) {
        update.run(gradientScale, skip);
    }
}
