package dev.chagres.optim;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.CaptureException;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Numbers;
import dev.chagres.ops.Elementwise;
import dev.chagres.ops.OptimizerStep;
import dev.chagres.ops.OptimizerStep.Method;
import dev.chagres.parameter.Parameters;
import dev.chagres.te.MultiTensor.BiasCorrection;
import dev.chagres.te.MultiTensor.WeightDecay;
import java.util.List;

/**
 * AdamW that averages its steps, so that the learning rate needs no schedule but a warm-up: {@code y = (1 - b1) z + b1 x}, {@code v = b2 v + (1
 * - b2) g^2}, {@code z = z - lr (g / (sqrt(v / (1 - b2^t)) + epsilon) + decay y)}, {@code x = (1 - c) x + c z}.
 *
 * <p>g is the gradient at y, t the number of the step from 1 on. {@code c = w / (sum of w so far)} with {@code w = t^power (highest
 * lr so far)^ratePower}, for each parameter group. x and z begin with the weights, v at 0.
 *
 * <p>The weights are y, in their type. {@link #beginEvaluation} makes them x, the averages, to evaluate or to save them alone, and {@link
 * #endEvaluation} makes them y again, with the same bits. Between the two no step can be taken and the state cannot be saved.
 *
 * <p>After {@link Parameters#changed} the next step begins with x and z at the weights. Weight decay applies to matrices, not to biases
 * and norms. The state has {@code name.x}, {@code name.z} and {@code name.exp_avg_sq} of each trained parameter, FLOAT32, and {@code
 * optimizer.averages}.
 *
 * {@snippet file="dev/chagres/optim/ScheduleFreeAdamWTest.java" region="optimizer"}
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: Defazio et al., The road less scheduled (2024); {@code ops_optimizer_step} in {@code ops.h}.
 */
public final class ScheduleFreeAdamW extends FlatOptimizer {
    /**
     * Numbers of the method.
     *
     * @param beta1 the share of the average in where gradients are taken, within [0, 1)
     * @param beta2 the share of the running square that a step keeps, within [0, 1)
     * @param epsilon added to the root, positive
     * @param weightDecay weight decay of matrices, not negative
     * @param power of the step's number in its weight, not negative
     * @param ratePower of the highest learning rate in that weight, not negative
     */
    public record Config(float beta1, float beta2, float epsilon, float weightDecay, float power, float ratePower)
            implements OptimizerConfig {
        /** The defaults of its authors: 0.9, 0.999, 1e-8, no decay, weights by the square of the rate. */
        public static Config standard() {
            return new Config(0.9f, 0.999f, 1e-8f, 0, 0, 2);
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
            if (!(power >= 0) || !(ratePower >= 0) || Float.isInfinite(power) || Float.isInfinite(ratePower)) {
                throw new IllegalArgumentException(
                        "power, ratePower: expected numbers of at least 0, got " + power + " and " + ratePower);
            }
        }

        @Override
        public ScheduleFreeAdamW make(Parameters parameters, List<ParameterGroup> groups) {
            return new ScheduleFreeAdamW(parameters, this, groups);
        }

        /** Returns this: averages are what weights of 16 bits are rounded from. */
        @Override
        public Config withMasters(AdamW.Masters masters) {
            return this;
        }

        /**
         * Returns this with other betas.
         *
         * @throws IllegalArgumentException when one is not within [0, 1)
         */
        public Config withBetas(float newBeta1, float newBeta2) {
            return new Config(newBeta1, newBeta2, epsilon, weightDecay, power, ratePower);
        }

        /**
         * Returns this with another epsilon.
         *
         * @throws IllegalArgumentException when it is not positive
         */
        public Config withEpsilon(float newEpsilon) {
            return new Config(beta1, beta2, newEpsilon, weightDecay, power, ratePower);
        }

        /**
         * Returns this with another weight decay of matrices.
         *
         * @throws IllegalArgumentException when it is negative
         */
        public Config withWeightDecay(float newWeightDecay) {
            return new Config(beta1, beta2, epsilon, newWeightDecay, power, ratePower);
        }

        /**
         * Returns this with other weights of steps in the average.
         *
         * @throws IllegalArgumentException when one is negative
         */
        public Config withPowers(float newPower, float newRatePower) {
            return new Config(beta1, beta2, epsilon, weightDecay, newPower, newRatePower);
        }
    }

    private static final String NAME = "ScheduleFreeAdamW";
    private static final List<String> VECTORS = List.of(".z", StateVector.SQUARE);

    private final Config config;
    private final StepUpdate update;
    private final OptimizerStep point;
    private final Tensor sums;
    private final Tensor shares;

    /**
     * Allocates memory for the state, in a scope of its own: averages and what they average, with the present values of the weights, and the
     * square.
     *
     * @throws IllegalArgumentException when a weight that is not frozen is kept {@code QUANTIZED_ONLY}
     * @throws IllegalStateException when the parameters are closed
     */
    public ScheduleFreeAdamW(Parameters parameters, Config config) {
        this(parameters, config, List.of());
    }

    /**
     * Allocates memory for the state as the other constructor does, with parameter groups.
     *
     * @param groups parameters with their own rate or decay; a parameter belongs to the first group that accepts it. All ranks of a pipeline
     *     make the same groups; a group may have parameters of other stages alone
     * @throws IllegalArgumentException when a group has no trained parameter, or a weight that is not frozen is kept {@code QUANTIZED_ONLY}
     * @throws IllegalStateException when the parameters are closed
     */
    public ScheduleFreeAdamW(Parameters parameters, Config config, List<ParameterGroup> groups) {
        float decay = Checks.given("config", config).weightDecay();
        OptimizerState.Masters averages = (all, scope, vectors) ->
                new Averages(parameters, all, scope, vectors.getFirst().elements());
        super(parameters, config, groups, decay, DType.FLOAT32, VECTORS, averages);
        this.config = config;
        point = OptimizerStep.of(Method.SCHEDULE_FREE_POINT, config.beta1(), config.beta2());
        sums = state.numbers.keepAverages();
        shares = state.scope.like(state.numbers.rates);
        update = begun(() -> {
            shares.zero(state.scope.stream());
            OptimizerStep method = new OptimizerStep(
                    Method.SCHEDULE_FREE,
                    config.beta1(),
                    config.beta2(),
                    config.epsilon(),
                    WeightDecay.DECOUPLED,
                    BiasCorrection.YES);
            return new StepUpdate(method, state, shares);
        });
    }

    @Override
    public String explain() {
        return "ops_average_share; " + update.explain();
    }

    @Override
    void update(Tensor gradientScale, Tensor skip) {
        Stream stream = state.scope.stream();
        OptimizerStep.averageShare(
                state.numbers.rates,
                state.numbers.step,
                skip,
                sums,
                shares,
                config.power(),
                config.ratePower(),
                stream);
        update.run(gradientScale, skip);
    }

    /**
     * Makes the weights the averages. A second call does nothing.
     *
     * @throws IllegalStateException when this or the parameters are closed
     * @throws CaptureException while the stream captures
     */
    @Override
    public void beginEvaluation() {
        state.ensureSwitches(NAME, "beginEvaluation");
        if (!state.numbers.isEvaluating()) {
            state.masters.write(); // Weights that were written from outside are the averages from now on.
            ((Averages) state.masters).give();
            state.rewritten(true);
        }
    }

    /**
     * Makes the weights again those that the next step's gradients are taken at. A second call does nothing.
     *
     * @throws IllegalStateException when this or the parameters are closed
     * @throws CaptureException while the stream captures
     */
    @Override
    public void endEvaluation() {
        state.ensureSwitches(NAME, "endEvaluation");
        if (state.numbers.isEvaluating()) {
            update.run(point, one, neverSkip);
            state.rewritten(false);
        }
    }

    /**
     * The averages of schedule-free methods, FLOAT32, in the order of the gradients, beside weights of any type. They and the vector that they
     * average begin with the weights.
     */
    private static final class Averages extends MasterCopies {
        static final String ENDING = ".x";

        private final List<Tensor> weights;
        private final List<Tensor> averageRanges;
        private final List<Tensor> averagedRanges;

        /**
         * Allocates the averages.
         *
         * @param averaged FLOAT32, as many as the gradients
         */
        Averages(Parameters parameters, List<UpdateRange> ranges, Scope scope, Tensor averaged) {
            Tensor averages = OptimizerState.zeros(averaged.count(), scope);
            super(parameters, new StateVector(ENDING, averages, 1), scope);
            weights = ranges.stream().map(range -> range.weights(scope)).toList();
            averageRanges = parts(averages, ranges, scope);
            averagedRanges = parts(averaged, ranges, scope);
        }

        @Override
        void take() {
            for (int i = 0; i < weights.size(); i++) {
                Elementwise.cast(weights.get(i), averageRanges.get(i), scope.stream());
                Elementwise.cast(weights.get(i), averagedRanges.get(i), scope.stream());
            }
        }

        /** Enqueues weights that are the averages. */
        void give() {
            for (int i = 0; i < weights.size(); i++) {
                Elementwise.cast(averageRanges.get(i), weights.get(i), scope.stream());
            }
        }

        private static List<Tensor> parts(Tensor vector, List<UpdateRange> ranges, Scope scope) {
            return ranges.stream()
                    .map(range -> scope.view(vector, range.gradientOffset(), range.count()))
                    .toList();
        }
    }
}
