package dev.chagres.optim;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.Numbers;
import dev.chagres.internal.memory.DeviceMemory;
import dev.chagres.ops.Adam;
import dev.chagres.ops.OptimizerStep;
import dev.chagres.ops.OptimizerStep.Method;
import dev.chagres.ops.StepState;
import dev.chagres.parameter.Parameters;
import dev.chagres.te.MultiTensor.BiasCorrection;
import dev.chagres.te.MultiTensor.WeightDecay;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Adam with decoupled weight decay, on FP32 master weights; {@link Config} also has L2 decay and smaller moments and masters: {@code m = b1
 * m + (1 - b1) g}, {@code v = b2 v + (1 - b2) g^2}, {@code w = w - lr (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + epsilon) + decay w)}.
 *
 * <p>g is the gradient, w the weight, m and v their running mean and square, which begin at 0; b1 and b2 are the betas, lr the
 * learning rate, t the number of the step from 1 on.
 *
 * <p>Weights that are not FLOAT32 have a master copy, from which they are rounded after each step; after {@link Parameters#changed} the
 * next step copies the weights to the masters first. Weight decay applies to matrices, not to biases and norms. The state has {@code
 * name.exp_avg} and {@code name.exp_avg_sq} of each trained parameter, of the moments' type, and its master. Moments of {@link DType#BYTE}
 * are kept in eight bits, as {@link OptimizerStep} says, each with its {@code _absmax}, FLOAT32, for each 256 of its elements.
 *
 * {@snippet file="dev/chagres/TrainingExamplesTest.java" region="optimizer"}
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: Loshchilov and Hutter, Decoupled weight decay regularization (2017); {@code ops_adam_ranges} in {@code ops.h}.
 */
public final class AdamW extends FlatOptimizer {
    /** How FP32 masters of 16-bit weights are kept. */
    public enum Masters {
        /** A FLOAT32 copy, from which the weight is rounded to nearest even: 4 bytes a weight. */
        FLOAT32,
        /** For BFLOAT16 weights, the low 16 bits of that copy; the weight is its upper half, rounded: 2 bytes a weight. */
        REMAINDER
    }

    /**
     * Numbers of the method.
     *
     * @param beta1 the share of the running mean that a step keeps, within [0, 1)
     * @param beta2 the share of the running square that a step keeps, within [0, 1)
     * @param epsilon added to the root, positive
     * @param weightDecay weight decay of matrices, not negative
     * @param decayMode whether the decay is decoupled, or L2, which adds it to the gradient as in Adam itself
     * @param momentDType type of mean and square: FLOAT32, BFLOAT16, or BYTE for eight bits
     * @param masters how masters of 16-bit weights are kept
     * @param biasCorrection whether mean and square are divided by {@code 1 - b1^t} and {@code 1 - b2^t}
     */
    public record Config(
            float beta1,
            float beta2,
            float epsilon,
            float weightDecay,
            WeightDecay decayMode,
            DType momentDType,
            Masters masters,
            BiasCorrection biasCorrection)
            implements OptimizerConfig {
        /**
         * Makes a configuration with decoupled decay, FLOAT32 moments and masters, and bias correction.
         *
         * @throws IllegalArgumentException when one is out of its range
         */
        public Config(float beta1, float beta2, float epsilon, float weightDecay) {
            this(
                    beta1,
                    beta2,
                    epsilon,
                    weightDecay,
                    WeightDecay.DECOUPLED,
                    DType.FLOAT32,
                    Masters.FLOAT32,
                    BiasCorrection.YES);
        }

        /** PyTorch's defaults: 0.9, 0.999, 1e-8 and a decay of 0.01. */
        public static Config standard() {
            return new Config(0.9f, 0.999f, 1e-8f, 0.01f);
        }

        /**
         * Checks the numbers.
         *
         * @throws IllegalArgumentException when one is out of its range
         */
        public Config {
            Numbers.betas(beta1, beta2);
            Numbers.positive("epsilon", epsilon);
            Numbers.notNegative("weightDecay", weightDecay);
            Checks.given("decayMode", decayMode, "masters", masters, "biasCorrection", biasCorrection);
            if (Checks.given("momentDType", momentDType) != DType.FLOAT32
                    && momentDType != DType.BFLOAT16
                    && momentDType != DType.BYTE) {
                throw new IllegalArgumentException(
                        "momentDType: expected FLOAT32, BFLOAT16 or BYTE, got " + momentDType);
            }
        }

        /** Returns the method with moments that are not coded. */
        Adam adam() {
            return new Adam(beta1, beta2, epsilon, decayMode, biasCorrection);
        }

        private OptimizerStep step() {
            return new OptimizerStep(Method.ADAM, beta1, beta2, epsilon, decayMode, biasCorrection);
        }

        /**
         * Returns this with other betas.
         *
         * @throws IllegalArgumentException when one is not within [0, 1)
         */
        public Config withBetas(float newBeta1, float newBeta2) {
            return new Config(
                    newBeta1, newBeta2, epsilon, weightDecay, decayMode, momentDType, masters, biasCorrection);
        }

        /**
         * Returns this with another epsilon.
         *
         * @throws IllegalArgumentException when it is not positive
         */
        public Config withEpsilon(float newEpsilon) {
            return new Config(beta1, beta2, newEpsilon, weightDecay, decayMode, momentDType, masters, biasCorrection);
        }

        /**
         * Returns this with another weight decay of matrices.
         *
         * @throws IllegalArgumentException when it is negative
         */
        public Config withWeightDecay(float newWeightDecay) {
            return new Config(beta1, beta2, epsilon, newWeightDecay, decayMode, momentDType, masters, biasCorrection);
        }

        /** Returns this with decoupled or L2 decay. */
        public Config withDecayMode(WeightDecay newDecayMode) {
            return new Config(beta1, beta2, epsilon, weightDecay, newDecayMode, momentDType, masters, biasCorrection);
        }

        /**
         * Returns this with moments of another type.
         *
         * @throws IllegalArgumentException when it is neither FLOAT32 nor BFLOAT16 nor BYTE
         */
        public Config withMomentDType(DType newMomentDType) {
            return new Config(beta1, beta2, epsilon, weightDecay, decayMode, newMomentDType, masters, biasCorrection);
        }

        /** Returns this with or without bias correction of the moments. */
        public Config withBiasCorrection(BiasCorrection newCorrection) {
            return new Config(beta1, beta2, epsilon, weightDecay, decayMode, momentDType, masters, newCorrection);
        }

        /**
         * Returns the same with moments and masters in the host's memory.
         *
         * @throws IllegalArgumentException when moments have eight bits
         */
        public OffloadedConfig offloaded() {
            return new OffloadedConfig(this);
        }

        @Override
        public AdamW make(Parameters parameters, List<ParameterGroup> groups) {
            return new AdamW(parameters, this, groups);
        }

        @Override
        public int alignment() {
            return momentDType == DType.BYTE ? StepState.BLOCK : OptimizerConfig.super.alignment();
        }

        /** Returns this with other masters. */
        @Override
        public Config withMasters(Masters newMasters) {
            return new Config(beta1, beta2, epsilon, weightDecay, decayMode, momentDType, newMasters, biasCorrection);
        }
    }

    private static final List<String> VECTORS = List.of(".exp_avg", StateVector.SQUARE);

    /** The kernel of moments in eight bits; null for others. */
    private final @Nullable StepUpdate coded;

    private final @Nullable AdamUpdate update;
    /** Where moments and masters lie in the host's memory. */
    private final @Nullable OffloadedUpdate offloaded;

    /**
     * Allocates memory for the state, in a scope of its own: mean, square and, for 16-bit weights, masters with the present values of the
     * weights.
     *
     * @throws IllegalArgumentException when a weight that is not frozen is kept {@code QUANTIZED_ONLY}, or moments have eight bits and
     *     parameters are not aligned for it
     * @throws IllegalStateException when the parameters are closed
     */
    public AdamW(Parameters parameters, Config config) {
        this(parameters, config, List.of());
    }

    /**
     * Allocates memory for the state as the other constructor does, with parameter groups.
     *
     * @param groups parameters with their own rate or decay; a parameter belongs to the first group that accepts it. All ranks of a pipeline
     *     make the same groups; a group may have parameters of other stages alone
     * @throws IllegalArgumentException when a group has no trained parameter, masters are remainders of FLOAT16 weights, or a weight that
     *     is not frozen is kept {@code QUANTIZED_ONLY}
     * @throws IllegalStateException when the parameters are closed
     */
    public AdamW(Parameters parameters, Config config, List<ParameterGroup> groups) {
        float decay = Checks.given("config", config).weightDecay();
        OptimizerState.Masters masters = MasterCopies.of(parameters, config.masters());
        super(parameters, config, groups, decay, config.momentDType(), VECTORS, masters);
        boolean isCoded = config.momentDType() == DType.BYTE;
        coded = isCoded ? begun(() -> new StepUpdate(config.step(), state, null)) : null;
        update = isCoded ? null : begun(() -> new AdamUpdate(config, state.ranges, state));
        offloaded = null;
    }

    /** Keeps moments and masters in the host's memory. */
    AdamW(Parameters parameters, OffloadedConfig config, List<ParameterGroup> groups) {
        Config updates = config.updates();
        super(
                parameters,
                updates,
                groups,
                updates.weightDecay(),
                updates.momentDType(),
                VECTORS,
                MasterCopies.of(parameters, updates.masters()),
                ranges -> hostBytes(parameters, updates, ranges));
        coded = null;
        update = null;
        offloaded = begun(() -> new OffloadedUpdate(config, parameters, state.ranges, state));
    }

    /** Returns the bytes of two moments and the masters. */
    private static long hostBytes(Parameters parameters, Config config, List<UpdateRange> ranges) {
        long count = parameters.gradientCount();
        long masters = ranges.stream().allMatch(UpdateRange::isFloat32)
                ? Float.BYTES
                : count * (config.masters() == Masters.REMAINDER ? Short.BYTES : Float.BYTES);
        return 2 * pinned(count * config.momentDType().byteSize()) + pinned(masters);
    }

    private static long pinned(long bytes) {
        long rest = DeviceMemory.ALIGNMENT - 1;
        return Math.max(DeviceMemory.ALIGNMENT, (bytes + rest) & ~rest);
    }

    /** Returns which kernels run a step, and why others do not. */
    @Override
    public String explain() {
        if (offloaded != null) {
            return offloaded.explain();
        }
        return update == null ? Checks.given("coded", coded).explain() : update.explain();
    }

    @Override
    void follow(WeightAverage average) {
        if (offloaded != null) {
            offloaded.follow(average);
        }
    }

    @Override
    void update(Tensor gradientScale, Tensor skip) {
        if (update != null) {
            update.run(gradientScale, skip);
        } else if (coded != null) {
            coded.run(gradientScale, skip);
        } else if (offloaded != null) {
            offloaded.run(gradientScale, skip);
        }
    }

    @Override
    public void close() {
        if (offloaded != null) {
            Inside.state(state.scope.stream()).ensureCloses();
            offloaded.close();
        }
        super.close();
    }
}
