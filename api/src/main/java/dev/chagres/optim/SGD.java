package dev.chagres.optim;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.ops.DropPath;
import dev.chagres.ops.Elementwise;
import dev.chagres.ops.LossScale;
import dev.chagres.ops.TokenPositions;
import dev.chagres.parameter.Parameters;
import dev.chagres.te.QkvFormat;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Stochastic gradient descent with momentum, on FP32 master weights: {@code v = momentum v + g + decay w}, {@code w = w - lr v}.
 *
 * <p>g is the gradient, w the weight, lr the learning rate; v, the momentum buffer, begins at 0. Without momentum v is the gradient of the step.
 *
 * <p>Weights that are not FLOAT32 have a master copy, from which they are rounded after each step; after {@link Parameters#changed} the
 * next step copies the weights to the masters first. Weight decay applies to matrices, not to biases and norms. The state has {@code
 * name.momentum_buffer} of each trained parameter, FLOAT32, and its master.
 *
 * {@snippet file="dev/chagres/optim/SGDTest.java" region="optimizer"}
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: PyTorch's {@code torch.optim.SGD} without dampening and Nesterov's momentum; {@code ops_scale_sequences_add} and {@code
 * ops_loss_scale_restore} in {@code ops.h}.
 */
public final class SGD extends FlatOptimizer {
    /**
     * Numbers of the method.
     *
     * @param momentum the share of the momentum buffer that a step keeps, within [0, 1)
     * @param weightDecay weight decay of matrices, which is added to the gradient, not negative
     */
    public record Config(float momentum, float weightDecay) {
        /**
         * Checks the numbers.
         *
         * @throws IllegalArgumentException when one is out of its range
         */
        public Config {
            if (!(momentum >= 0 && momentum < 1)) {
                throw new IllegalArgumentException("momentum: expected a number within [0, 1), got " + momentum);
            }
            if (!(weightDecay >= 0) || Float.isInfinite(weightDecay)) {
                throw new IllegalArgumentException("weightDecay: expected a number of at least 0, got " + weightDecay);
            }
        }

        /** Returns names and numbers in brackets. */
        String text() {
            return "(momentum=" + momentum + ", weightDecay=" + weightDecay + ")";
        }

        /** PyTorch's defaults: neither momentum nor decay. */
        public static Config standard() {
            return new Config(0, 0);
        }

        /**
         * Returns this with another momentum.
         *
         * @throws IllegalArgumentException when it is not within [0, 1)
         */
        public Config withMomentum(float newMomentum) {
            return new Config(newMomentum, weightDecay);
        }

        /**
         * Returns this with another weight decay of matrices.
         *
         * @throws IllegalArgumentException when it is negative
         */
        public Config withWeightDecay(float newWeightDecay) {
            return new Config(momentum, newWeightDecay);
        }
    }

    private static final List<String> VECTORS = List.of(".momentum_buffer");

    private final Update update;

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
     * @throws IllegalArgumentException when a group has no trained parameter, or a weight that is not frozen is kept {@code QUANTIZED_ONLY}
     * @throws IllegalStateException when the parameters are closed
     */
    public SGD(Parameters parameters, Config config, List<ParameterGroup> groups) {
        List<ParameterGroup> own = check(parameters, config, groups);
        List<UpdateRange> ranges = UpdateRange.of(parameters, config.weightDecay, own);
        super(
                parameters,
                "SGD" + config.text(),
                new OptimizerState("SGD", parameters, DType.FLOAT32, VECTORS, AdamW.Masters.FLOAT32, ranges, own));
        update = begun(() -> new Update(config, ranges, parameters.gradients(), state));
    }

    @Override
    public String explain() {
        return "ops_scale_sequences_add, " + update.launches()
                + " calls a step, each a factor on the device times a vector; then"
                + " ops_cast to weights of 16 bits. Not nvte_multi_tensor_sgd_cuda, which takes learning rate and gradient scale"
                + " from the host: it would wait for the norm, and a graph would repeat the rate";
    }

    @Override
    void update(Tensor gradientScale, Tensor skip) {
        update.run(gradientScale, skip);
    }

    /** A vector as rows, which a warp each computes, and the rest. */
    private record RowsOf(@Nullable Tensor rows, @Nullable Tensor rest, TokenPositions tokens) {
        private static final long COLUMNS = 512;

        static RowsOf of(Tensor vector, Scope scope) {
            long rows = vector.count() / COLUMNS;
            long rest = vector.count() % COLUMNS;
            return new RowsOf(
                    rows == 0 ? null : scope.view(vector, 0, rows, COLUMNS),
                    rest == 0 ? null : scope.view(vector, rows * COLUMNS, 1, rest),
                    new TokenPositions());
        }

        int parts() {
            return (rows == null ? 0 : 1) + (rest == null ? 0 : 1);
        }

        /** Enqueues {@code this = factor x}, plus this if {@code adds}. */
        void scaled(RowsOf x, Tensor factor, boolean adds, Stream stream) {
            scaled(x.rows, rows, factor, adds, stream);
            scaled(x.rest, rest, factor, adds, stream);
        }

        private void scaled(@Nullable Tensor x, @Nullable Tensor y, Tensor factor, boolean adds, Stream stream) {
            if (x != null && y != null) {
                tokens.padded(QkvFormat.BSHD, x.size(0));
                DropPath.scaleSequencesAdd(x, adds ? y : null, y, factor, tokens, stream);
            }
        }
    }

    /** A range of elements, and the factors that a step reads for it. */
    private record Piece(
            RowsOf gradient,
            RowsOf weight,
            RowsOf momentum,
            Tensor decay,
            Tensor rate,
            boolean decays,
            @Nullable Tensor master,
            Tensor rounded) {}

    /** The kernels of a step. All factors lie in one block, so that one kernel makes a step that is skipped one that changes nothing. */
    private static final class Update {
        private final OptimizerState state;
        private final List<Piece> pieces = new ArrayList<>();
        /** FLOAT32: momentum, gradient scale, the decay of each range, the negative rate of each group. */
        private final Tensor factors;

        /** The factors that are the same in each step. */
        private final Tensor constants;
        /** The factors of a step that changes nothing. */
        private final Tensor skipped;

        private final Tensor momentum;
        private final Tensor scale;
        /** FLOAT32 [1, groups]. */
        private final Tensor rates;

        private final Tensor negativeRates;
        /** FLOAT32 [1]: -1. */
        private final Tensor minus;

        private final TokenPositions oneSequence = new TokenPositions().padded(QkvFormat.BSHD, 1);

        Update(Config config, List<UpdateRange> ranges, Tensor gradients, OptimizerState state) {
            this.state = state;
            Scope scope = state.scope();
            int groups = state.numbers().groups().size() + 1;
            int firstRate = 2 + ranges.size();
            float[] values = new float[firstRate + groups];
            values[0] = config.momentum;
            for (int i = 0; i < ranges.size(); i++) {
                values[2 + i] = ranges.get(i).weightDecay();
            }
            factors = scope.tensor(DType.FLOAT32, values.length);
            constants = scope.like(factors);
            constants.set(scope.stream(), values);
            skipped = scope.like(factors);
            float[] none = new float[values.length];
            none[0] = 1;
            skipped.set(scope.stream(), none);
            minus = scope.tensor(DType.FLOAT32, 1);
            minus.set(scope.stream(), -1f);
            momentum = scope.view(factors, 0, 1);
            scale = scope.view(factors, 1, 1);
            rates = scope.view(state.numbers().rates(), 0, 1, groups);
            negativeRates = scope.view(factors, firstRate, 1, groups);
            for (int i = 0; i < ranges.size(); i++) {
                UpdateRange range = ranges.get(i);
                Tensor rounded = scope.view(range.weights(), range.weightOffset(), range.count());
                Tensor master = state.masters().of(range);
                pieces.add(new Piece(
                        RowsOf.of(scope.view(gradients, range.gradientOffset(), range.count()), scope),
                        RowsOf.of(master == null ? rounded : master, scope),
                        RowsOf.of(scope.view(state.vector(0), range.gradientOffset(), range.count()), scope),
                        scope.view(factors, 2L + i, 1),
                        scope.view(factors, firstRate + range.group(), 1),
                        range.weightDecay() != 0,
                        master,
                        rounded));
            }
        }

        int launches() {
            return pieces.stream()
                    .mapToInt(piece -> piece.gradient.parts() * (piece.decays ? 4 : 3))
                    .sum();
        }

        void run(Tensor gradientScale, Tensor skip) {
            Stream stream = state.scope().stream();
            factors.copyFrom(stream, constants);
            scale.copyFrom(stream, gradientScale);
            DropPath.scaleSequencesAdd(rates, null, negativeRates, minus, oneSequence, stream);
            LossScale.restore(skip, skipped, factors, stream);
            for (int i = 0; i < pieces.size(); i++) {
                Piece piece = pieces.get(i);
                piece.momentum.scaled(piece.momentum, momentum, false, stream);
                piece.momentum.scaled(piece.gradient, scale, true, stream);
                if (piece.decays) {
                    piece.momentum.scaled(piece.weight, piece.decay, true, stream);
                }
                piece.weight.scaled(piece.momentum, piece.rate, true, stream);
                if (piece.master != null) {
                    Elementwise.cast(piece.master, piece.rounded, stream);
                }
            }
        }
    }
}
