package dev.chagres.optim;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Numbers;
import dev.chagres.ops.AdafactorMatrices;
import dev.chagres.ops.AdafactorRange;
import dev.chagres.ops.AdafactorRanges;
import dev.chagres.ops.AdafactorStep;
import dev.chagres.ops.AdafactorStep.Rate;
import dev.chagres.ops.AdafactorStep.Scale;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import java.util.ArrayList;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * Adafactor, on FP32 master weights: AdamW's running mean of squares as the product of a mean for each row and one for each column, so that a matrix
 * [R, C] has R + C numbers of state. With {@code b = 1 - t^-decayRate}:
 *
 * <pre>
 * row = b row + (1 - b) mean of a row of (g^2 + 1e-30), column likewise
 * u = g / (sqrt(row / mean(row)) sqrt(column)),  size = r max(epsilon, RMS(w)),  d = size u / max(1, RMS(u) / threshold)
 * m = beta1 m + (1 - beta1) d with beta1, else m = d,  w = w - size decay w - m
 * </pre>
 *
 * <p>g is the gradient, w the weight, t the number of the step from 1 on, RMS the root of the mean of squares of a parameter, r what {@link Rate} makes
 * of the learning rate: by default {@code min(rate, 1 / sqrt(t))}. A vector has a mean for each element. A parameter of more than two dimensions is a
 * matrix of the first one and the rest.
 *
 * <p>Weights that are not FLOAT32 have a master copy, from which they are rounded after each step. Weight decay applies to matrices, not to
 * biases and norms. The state has {@code name.exp_avg_sq_row} and {@code name.exp_avg_sq_col} of each trained matrix, {@code name.exp_avg_sq} of
 * each vector, with beta1 {@code name.exp_avg}, and the master. Every rank has the means of the whole model; ranks that update parts of a matrix add up
 * sums of rows and columns in each step.
 *
 * {@snippet file="dev/chagres/optim/AdafactorTest.java" region="optimizer"}
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: Shazeer and Stern, Adafactor: Adaptive learning rates with sublinear memory cost (2018); {@code transformers.Adafactor}; {@code
 * ops_adafactor} in {@code ops.h}.
 */
public final class Adafactor extends FlatOptimizer {
    private static final float TINY = 1e-30f;

    /**
     * Numbers of the method.
     *
     * @param beta1 the share of the mean of updates that a step keeps, within [0, 1); 0 for none
     * @param decayRate how fast the share of one step in the means of squares falls, not negative
     * @param epsilon the least root of the mean of squared weights that a step is proportional to, not negative
     * @param threshold of the root of the mean of squared updates, from which they are clipped; positive
     * @param weightDecay weight decay of matrices, not negative
     * @param rate what is made of the learning rate
     * @param scale whether a step is proportional to the weights
     * @param masters how masters of 16-bit weights are kept
     */
    public record Config(
            float beta1,
            float decayRate,
            float epsilon,
            float threshold,
            float weightDecay,
            Rate rate,
            Scale scale,
            AdamW.Masters masters)
            implements OptimizerConfig {
        /** The defaults of its authors: no mean of updates, 0.8, 1e-3, 1 and no decay; a rate of 1e-2 suits them. */
        public static Config standard() {
            return new Config(0, 0.8f, 1e-3f, 1, 0, Rate.CAPPED, Scale.OF_WEIGHTS, AdamW.Masters.FLOAT32);
        }

        /**
         * Checks the numbers.
         *
         * @throws IllegalArgumentException when one is out of its range
         */
        public Config {
            Numbers.betas(beta1, 0);
            Numbers.notNegative("decayRate", decayRate);
            Numbers.notNegative("epsilon", epsilon);
            Numbers.positive("threshold", threshold);
            Numbers.notNegative("weightDecay", weightDecay);
            Checks.given("rate", rate, "scale", scale, "masters", masters);
        }

        private AdafactorStep step() {
            return new AdafactorStep(decayRate, TINY, epsilon, threshold, beta1, rate, scale);
        }

        @Override
        public Adafactor make(Parameters parameters, List<ParameterGroup> groups) {
            return new Adafactor(parameters, this, groups);
        }

        /**
         * Returns this with a mean of updates; 0 for none.
         *
         * @throws IllegalArgumentException when it is not within [0, 1)
         */
        public Config withBeta1(float newBeta1) {
            return new Config(newBeta1, decayRate, epsilon, threshold, weightDecay, rate, scale, masters);
        }

        /**
         * Returns this with another threshold of updates.
         *
         * @throws IllegalArgumentException when it is not positive
         */
        public Config withThreshold(float newThreshold) {
            return new Config(beta1, decayRate, epsilon, newThreshold, weightDecay, rate, scale, masters);
        }

        /**
         * Returns this with another weight decay of matrices.
         *
         * @throws IllegalArgumentException when it is negative
         */
        public Config withWeightDecay(float newWeightDecay) {
            return new Config(beta1, decayRate, epsilon, threshold, newWeightDecay, rate, scale, masters);
        }

        /** Returns this with something else made of the learning rate. */
        public Config withRate(Rate newRate) {
            return new Config(beta1, decayRate, epsilon, threshold, weightDecay, newRate, scale, masters);
        }

        /** Returns this with steps that are proportional to the weights, or not. */
        public Config withScale(Scale newScale) {
            return new Config(beta1, decayRate, epsilon, threshold, weightDecay, rate, newScale, masters);
        }

        @Override
        public Config withMasters(AdamW.Masters newMasters) {
            return new Config(beta1, decayRate, epsilon, threshold, weightDecay, rate, scale, newMasters);
        }
    }

    private final AdafactorStep method;
    private final FactoredMoments moments;
    /** This rank's parts of matrices whose sums it counts, of each type of weights. */
    private final List<AdafactorRanges> counted;
    /** Those that it updates: also of matrices that another rank counts. */
    private final List<AdafactorRanges> updated;

    /**
     * Allocates memory for the state, in a scope of its own, and for 16-bit weights masters with the present values of the weights.
     *
     * @throws IllegalArgumentException when a weight that is not frozen is kept {@code QUANTIZED_ONLY}
     * @throws IllegalStateException when the parameters are closed
     */
    public Adafactor(Parameters parameters, Config config) {
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
    public Adafactor(Parameters parameters, Config config, List<ParameterGroup> groups) {
        List<String> vectors = Checks.given("config", config).beta1() > 0 ? List.of(".exp_avg") : List.of();
        OptimizerState.Masters masters = MasterCopies.of(parameters, config.masters());
        ensureFloat32Gradients(parameters);
        super(parameters, config, groups, config.weightDecay(), DType.FLOAT32, vectors, masters);
        method = config.step();
        moments = begun(() -> new FactoredMoments(parameters, state));
        state.keepBeside(moments::addTo);
        List<Parameter> trained = parameters.all().stream()
                .filter(one -> one.isTrained() && one.shape().count() > 0)
                .toList();
        updated = begun(() -> tables(trained, config));
        counted = begun(() -> trained.stream().allMatch(parameters.access()::counts)
                ? updated
                : tables(trained.stream().filter(parameters.access()::counts).toList(), config));
    }

    private List<AdafactorRanges> tables(List<Parameter> of, Config config) {
        Map<DType, List<AdafactorRange>> byType = new EnumMap<>(DType.class);
        Scope scope = state.scope;
        for (Parameter parameter : of) {
            MatrixPart part = MatrixPart.of(parameters(), parameter);
            UpdateRange range = part.range(state.ranges);
            if (range != null) {
                byType.computeIfAbsent(range.weights().dtype(), _ -> new ArrayList<>())
                        .add(new AdafactorRange(
                                moments.of(parameter),
                                moments.place(part),
                                state.gradients(range),
                                range.weights(scope),
                                state.masters.of(range),
                                mean(range, config),
                                range.weightDecay()));
            }
        }
        return byType.values().stream()
                .map(alike -> AdafactorRanges.of(alike, scope))
                .toList();
    }

    private @Nullable Tensor mean(UpdateRange range, Config config) {
        return config.beta1() == 0 ? null : state.scope.view(state.vector(0), range.gradientOffset(), range.count());
    }

    @Override
    public String explain() {
        return "ops_adafactor: "
                + updated.stream().mapToInt(AdafactorRanges::count).sum() + " parameters in "
                + updated.size() + (updated.size() == 1 ? " type" : " types")
                + ", in five kernels, three of them for each type; the update of a matrix needs sums over all of it";
    }

    @Override
    void update(Tensor gradientScale, Tensor skip) {
        AdafactorMatrices matrices = moments.table;
        if (matrices == null) {
            return;
        }
        Stream stream = state.scope.stream();
        Tensor step = state.numbers.step;
        moments.sums.zero(stream);
        moments.updateSums.zero(stream);
        for (int i = 0; i < counted.size(); i++) {
            method.sums(counted.get(i), step, gradientScale, skip, stream);
        }
        parameters().access().sumOfModel(moments.sums);
        method.factors(matrices, step, gradientScale, skip, stream);
        for (int i = 0; i < counted.size(); i++) {
            method.updates(counted.get(i), step, gradientScale, skip, stream);
        }
        parameters().access().sumOfModel(moments.updateSums);
        method.clip(matrices, step, gradientScale, skip, stream);
        for (int i = 0; i < updated.size(); i++) {
            method.step(updated.get(i), step, gradientScale, skip, stream);
        }
    }
}
