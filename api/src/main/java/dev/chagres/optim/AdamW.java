package dev.chagres.optim;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import dev.chagres.te.MultiTensor.BiasCorrection;
import dev.chagres.te.MultiTensor.WeightDecay;
import java.util.List;

/**
 * Adam with decoupled weight decay, on FP32 master weights; {@link Config} also has L2 decay and smaller moments and masters: {@code m = b1
 * m + (1 - b1) g}, {@code v = b2 v + (1 - b2) g^2}, {@code w = w - lr (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + epsilon) + decay w)}.
 *
 * <p>g is the gradient, w the weight, m and v their running mean and square, which begin at 0; b1 and b2 are the betas, lr the
 * learning rate, t the number of the step from 1 on.
 *
 * <p>Weights that are not FLOAT32 have a master copy, from which they are rounded after each step; after {@link Parameters#changed} the
 * next step copies the weights to the masters first. Weight decay applies to matrices, not to biases and norms. The kernels read learning
 * rate, step number and gradient scale on the device, and the host does not wait. Everything runs on the parameters' stream.
 *
 * {@snippet file="dev/chagres/TrainingExamplesTest.java" region="optimizer"}
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: Loshchilov and Hutter, Decoupled weight decay regularization (2017); {@code ops_adam_ranges} in {@code ops.h}.
 */
public final class AdamW implements AutoCloseable {
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
     * @param momentDType type of mean and square, FLOAT32 or BFLOAT16
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
            BiasCorrection biasCorrection) {
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
            if (!(beta1 >= 0 && beta1 < 1) || !(beta2 >= 0 && beta2 < 1)) {
                throw new IllegalArgumentException(
                        "beta1, beta2: expected numbers within [0, 1), got " + beta1 + " and " + beta2);
            }
            if (!(epsilon > 0) || Float.isInfinite(epsilon)) {
                throw new IllegalArgumentException("epsilon: expected a positive number, got " + epsilon);
            }
            if (!(weightDecay >= 0) || Float.isInfinite(weightDecay)) {
                throw new IllegalArgumentException("weightDecay: expected a number of at least 0, got " + weightDecay);
            }
            Checks.given("decayMode", decayMode);
            Checks.given("masters", masters);
            Checks.given("biasCorrection", biasCorrection);
            if (Checks.given("momentDType", momentDType) != DType.FLOAT32 && momentDType != DType.BFLOAT16) {
                throw new IllegalArgumentException("momentDType: expected FLOAT32 or BFLOAT16, got " + momentDType);
            }
        }

        /** Returns names and numbers in brackets. */
        String text() {
            return "(beta1=" + beta1 + ", beta2=" + beta2 + ", epsilon=" + epsilon + ", weightDecay=" + weightDecay
                    + ", decayMode=" + decayMode + ", momentDType=" + momentDType + ", masters=" + masters
                    + ", biasCorrection=" + biasCorrection + ")";
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
         * @throws IllegalArgumentException when it is neither FLOAT32 nor BFLOAT16
         */
        public Config withMomentDType(DType newMomentDType) {
            return new Config(beta1, beta2, epsilon, weightDecay, decayMode, newMomentDType, masters, biasCorrection);
        }

        /** Returns this with or without bias correction of the moments. */
        public Config withBiasCorrection(BiasCorrection newCorrection) {
            return new Config(beta1, beta2, epsilon, weightDecay, decayMode, momentDType, masters, newCorrection);
        }

        /** Returns this with other masters. */
        public Config withMasters(Masters newMasters) {
            return new Config(beta1, beta2, epsilon, weightDecay, decayMode, momentDType, newMasters, biasCorrection);
        }
    }

    private final Parameters parameters;
    private final AdamState state;
    private final AdamUpdate update;
    /** FLOAT32 [1]: the gradient scale of a step without one. */
    private final Tensor one;
    /** INT32 [1] of 0: a step without a norm is never skipped. */
    private final Tensor neverSkip;

    /**
     * Allocates memory for the state, in a scope of its own: mean, square and, for 16-bit weights, masters with the present values of the
     * weights.
     *
     * @throws IllegalArgumentException when a weight that is not frozen is kept {@code QUANTIZED_ONLY}
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
        this.parameters = Checks.given("parameters", parameters);
        Checks.given("config", config);
        List<ParameterGroup> own = Checks.givenAll("groups", groups);
        ensureMasters(parameters);
        Stream stream = parameters.scope().stream();
        Checks.on(stream, "parameters", parameters.gradients());
        List<UpdateRange> ranges = UpdateRange.of(parameters, config, own);
        state = new AdamState(parameters, config, ranges, own);
        try {
            one = state.scope().tensor(DType.FLOAT32, 1);
            one.set(stream, 1f);
            neverSkip = state.scope().tensor(DType.INT32, 1);
            neverSkip.zero(stream);
            update = new AdamUpdate(config, ranges, parameters.gradients(), state);
            parameters
                    .access()
                    .optimizedBy(
                            this, AdamSettings.ofWeights(parameters, config, own), AdamSettings.ofModel(config, own));
        } catch (RuntimeException | Error failure) {
            state.close();
            throw failure;
        }
    }

    private static void ensureMasters(Parameters parameters) {
        for (Parameter parameter : parameters.all()) {
            if (parameter.isQuantizedOnly() && !parameter.isFrozen()) {
                throw new IllegalArgumentException(
                        "parameters: expected weights that can be updated, or are frozen, got "
                                + parameter.name() + " that is kept QUANTIZED_ONLY and is not frozen; freeze it before"
                                + " Parameters.allocate, or allocate with WeightStorage.QUANTIZED");
            }
        }
    }

    /** Returns the numbers of the method, and a line for each group with its own rate and decay. */
    @Override
    public String toString() {
        StringBuilder text = new StringBuilder("AdamW").append(update.config().text());
        for (ParameterGroup group : state.numbers().groups()) {
            text.append("\n  ").append(group);
        }
        return text.toString();
    }

    /** Returns which kernels run a step, and why others do not. */
    public String explain() {
        return update.explain();
    }

    /**
     * Returns the number of steps taken. After a step under a {@link LossScaler} this waits, since the device counts such steps.
     *
     * @throws IllegalStateException when this is closed
     */
    public long step() {
        state.ensureOpen();
        return state.numbers().taken();
    }

    /** Returns the bytes of the state. */
    public long byteSize() {
        return state.scope().reservedBytes();
    }

    /**
     * Enqueues one step with the gradients of the parameters, clipped as {@code norm} has computed. When a gradient is not finite, weights
     * and state stay unchanged, but the step counts; under a {@link LossScaler} it does not count.
     *
     * @param rate learning rate, not negative
     * @param norm computed after the last backward pass; usable for one step only
     * @throws IllegalArgumentException when the rate is negative, infinite with a group's factor, or no number, or the norm is that of other parameters
     * @throws IllegalStateException when this or the parameters are closed, the norm was not computed since the last step, gradients were
     *     written or forgotten since, {@link #rate} has set another rate for this step, or inside {@code Communicator.group}
     */
    public void step(float rate, GradientNorm norm) {
        if (Checks.given("norm", norm).parameters() != parameters) {
            throw new IllegalArgumentException("norm: expected that of this optimizer's parameters, got another");
        }
        check(rate, norm.scale());
        norm.use();
        parameters.completeGradients();
        LossScaler scaler = norm.scaler();
        if (scaler == null) {
            state.numbers().next(rate);
        } else {
            state.numbers().next(rate, scaler, norm.skip());
        }
        update(norm.scale(), norm.skip());
        if (scaler == null) {
            parameters.nextStep();
        } else {
            parameters.nextStep(norm.skip());
        }
    }

    /**
     * Enqueues one step with the gradients of the parameters as they are.
     *
     * @param rate learning rate, not negative
     * @throws IllegalArgumentException when the rate is negative, infinite with a group's factor, or no number
     * @throws IllegalStateException when this or the parameters are closed, {@link #rate} has set another rate for this step, or inside {@code
     *     Communicator.group}
     */
    public void step(float rate) {
        step(rate, one);
    }

    /**
     * Enqueues one step with the gradients of the parameters, each multiplied by {@code gradientScale}.
     *
     * @param rate learning rate, not negative
     * @param gradientScale FLOAT32 [1]
     * @throws IllegalArgumentException when the rate is negative, infinite with a group's factor, or no number, or shape, type or device do not fit
     * @throws IllegalStateException when this or the parameters are closed, {@link #rate} has set another rate for this step, or inside {@code
     *     Communicator.group}
     */
    public void step(float rate, Tensor gradientScale) {
        check(rate, gradientScale);
        parameters.completeGradients(); // refuses a step before its sums, when nothing is counted yet
        state.numbers().next(rate);
        update(gradientScale, neverSkip);
        parameters.nextStep();
    }

    /**
     * Sets the learning rate of steps in a {@link dev.chagres.Graph}, from its next launch on; {@link #step(float, GradientNorm)} sets it
     * as well. A step that {@code StepGraph} replays needs this call before it, also if the rate is constant: a replay does not run the code
     * that calls {@link #step(float, GradientNorm)}. The next call of {@code step} must be given the same rate: {@code StepGraph} runs the code of
     * some steps and replays others.
     *
     * @param rate learning rate, not negative
     * @throws IllegalArgumentException when the rate is negative or no number, or a group's factor makes it infinite
     * @throws IllegalStateException when this is closed
     */
    public void rate(float rate) {
        state.ensureOpen();
        state.numbers().checkRate(rate);
        state.numbers().choose(rate);
    }

    private void check(float rate, Tensor gradientScale) {
        Stream stream = state.scope().stream();
        Inside.state(stream).ensureCurrent();
        Inside.state(stream).ensureNotGrouping("step");
        state.ensureOpen();
        Checks.on(stream, "parameters", parameters.gradients());
        Checks.vector(stream, "gradientScale", gradientScale, DType.FLOAT32, 1);
        state.numbers().checkRate(rate);
        state.numbers().ensureChosen(rate);
    }

    private void update(Tensor gradientScale, Tensor skip) {
        state.masters().prepare();
        parameters.updating();
        update.run(gradientScale, skip);
    }

    /**
     * Lists the state that is needed to go on exactly: for each trained parameter {@code name.exp_avg} and {@code name.exp_avg_sq}, of the
     * moments' type, and, where its weight has 16 bits, {@code name.master}, FLOAT32, or {@code name.remainder}, BYTE [elements, 2]; and
     * the number of steps.
     *
     * @throws IllegalStateException when this is closed
     */
    public State state() {
        return state.whole();
    }

    /**
     * For sharding: returns {@link #state()} without {@link #vectors()}: the number of steps, and the actions after loading.
     *
     * @throws IllegalStateException when this is closed
     */
    public State stepState() {
        return state.step();
    }

    /** Returns the parameters that this updates. */
    public Parameters parameters() {
        return parameters;
    }

    /**
     * For sharding: returns the vectors that hold state for each element of {@link Parameters#gradients}, in the order of {@link #state()}.
     *
     * @throws IllegalStateException when this is closed
     */
    public List<StateVector> vectors() {
        return state.vectors();
    }

    /** Frees the state. A second call does nothing. */
    @Override
    public void close() {
        state.close();
        parameters.access().forgetOptimizer(this);
    }
}
