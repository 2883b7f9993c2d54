package dev.chagres.optim;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Numbers;
import dev.chagres.ops.OptimizerStep;
import dev.chagres.ops.OptimizerStep.Method;
import dev.chagres.parameter.Parameters;
import java.util.List;

/**
 * Stochastic gradient descent with momentum, on FP32 master weights: {@code d = g + decay w}, {@code v = momentum v + (1 - dampening) d},
 * {@code w = w - lr v}; with Nesterov's momentum {@code w = w - lr (d + momentum v)}.
 *
 * <p>g is the gradient, w the weight, lr the learning rate. v, the momentum buffer, is d after the first step, and without momentum.
 *
 * <p>Weights that are not FLOAT32 have a master copy, from which they are rounded after each step; after {@link Parameters#changed} the
 * next step copies the weights to the masters first. Weight decay applies to matrices, not to biases and norms. The state has {@code
 * name.momentum_buffer} of each trained parameter, FLOAT32, and its master.
 *
 * {@snippet file="dev/chagres/optim/SGDTest.java" region="optimizer"}
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: PyTorch's {@code torch.optim.SGD}; {@code ops_optimizer_step} in {@code ops.h}.
 */
public final class SGD extends FlatOptimizer {
    /** What a step goes by. */
    public enum Momentum {
        /** The momentum buffer. */
        CLASSICAL,
        /** The gradient and the momentum buffer of this step. */
        NESTEROV
    }

    /**
     * Numbers of the method.
     *
     * @param momentum the share of the momentum buffer that a step keeps, within [0, 1)
     * @param dampening the share of a gradient that does not enter the momentum buffer, but for the first step's, within [0, 1)
     * @param weightDecay weight decay of matrices, which is added to the gradient, not negative
     * @param kind what a step goes by; Nesterov's needs momentum and no dampening
     * @param masters how masters of 16-bit weights are kept
     */
    public record Config(float momentum, float dampening, float weightDecay, Momentum kind, AdamW.Masters masters)
            implements OptimizerConfig {
        /**
         * Makes a configuration without dampening, with classical momentum and masters of FLOAT32.
         *
         * @throws IllegalArgumentException when one is out of its range
         */
        public Config(float momentum, float weightDecay) {
            this(momentum, 0, weightDecay, Momentum.CLASSICAL, AdamW.Masters.FLOAT32);
        }

        /**
         * Checks the numbers.
         *
         * @throws IllegalArgumentException when one is out of its range, or Nesterov's momentum has none, or dampening
         */
        public Config {
            if (!(momentum >= 0 && momentum < 1)) {
                throw new IllegalArgumentException("momentum: expected a number within [0, 1), got " + momentum);
            }
            if (!(dampening >= 0 && dampening < 1)) {
                throw new IllegalArgumentException("dampening: expected a number within [0, 1), got " + dampening);
            }
            Numbers.notNegative("weightDecay", weightDecay);
            Checks.given("masters", masters);
            if (Checks.given("kind", kind) == Momentum.NESTEROV && (momentum == 0 || dampening != 0)) {
                throw new IllegalArgumentException(
                        "kind: expected CLASSICAL without momentum or with dampening, got NESTEROV" + " with momentum "
                                + momentum + " and dampening " + dampening);
            }
        }

        @Override
        public SGD make(Parameters parameters, List<ParameterGroup> groups) {
            return new SGD(parameters, this, groups);
        }

        /** PyTorch's defaults: neither momentum nor decay. */
        public static Config standard() {
            return new Config(0, 0);
        }

        /**
         * Returns this with another momentum.
         *
         * @throws IllegalArgumentException when it is not within [0, 1), or 0 with Nesterov's
         */
        public Config withMomentum(float newMomentum) {
            return new Config(newMomentum, dampening, weightDecay, kind, masters);
        }

        /**
         * Returns this with another dampening.
         *
         * @throws IllegalArgumentException when it is not within [0, 1), or not 0 with Nesterov's momentum
         */
        public Config withDampening(float newDampening) {
            return new Config(momentum, newDampening, weightDecay, kind, masters);
        }

        /**
         * Returns this with another weight decay of matrices.
         *
         * @throws IllegalArgumentException when it is negative
         */
        public Config withWeightDecay(float newWeightDecay) {
            return new Config(momentum, dampening, newWeightDecay, kind, masters);
        }

        /**
         * Returns this with another kind of momentum.
         *
         * @throws IllegalArgumentException when it is Nesterov's without momentum, or with dampening
         */
        public Config withKind(Momentum newKind) {
            return new Config(momentum, dampening, weightDecay, newKind, masters);
        }

        @Override
        public Config withMasters(AdamW.Masters newMasters) {
            return new Config(momentum, dampening, weightDecay, kind, newMasters);
        }
    }

    private static final List<String> VECTORS = List.of(".momentum_buffer");

    private final StepUpdate update;

    /**
     * Allocates memory for the state, in a scope of its own: the momentum buffer and, for 16-bit weights, masters with the present values
     * of the weights.
     *
     * @throws IllegalArgumentException when a weight that is not frozen is kept {@code QUANTIZED_ONLY}
     * @throws IllegalStateException when the parameters are closed
     */
    public SGD(Parameters parameters, Config config) {
        this(parameters, config, List.of());
    }

    /**
     * Allocates memory for the state as the other constructor does, with parameter groups.
     *
     * @param groups parameters with their own rate or decay; a parameter belongs to the first group that accepts it. All ranks of a pipeline
     *     make the same groups; a group may have parameters of other stages alone
     * @throws IllegalArgumentException when a group has no trained parameter, masters are remainders of FLOAT16 weights, or a weight that is
     *     not frozen is kept {@code QUANTIZED_ONLY}
     * @throws IllegalStateException when the parameters are closed
     */
    public SGD(Parameters parameters, Config config, List<ParameterGroup> groups) {
        float decay = Checks.given("config", config).weightDecay;
        OptimizerState.Masters masters = MasterCopies.of(parameters, config.masters);
        super(parameters, config, groups, decay, DType.FLOAT32, VECTORS, masters);
        Method kind = config.kind == Momentum.NESTEROV ? Method.NESTEROV : Method.SGD;
        OptimizerStep method = OptimizerStep.of(kind, config.momentum, config.dampening);
        update = begun(() -> new StepUpdate(method, state, null));
    }

    @Override
    public String explain() {
        return update.explain() + ". Not nvte_multi_tensor_sgd_cuda, which takes learning rate and gradient scale"
                + " from the host: it would wait for the norm, and a graph would repeat the rate";
    }

    @Override
    void update(Tensor gradientScale, Tensor skip) {
        update.run(gradientScale, skip);
    }
}
