package dev.chagres.optim;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Numbers;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Muon for matrices, {@link AdamW} for the rest: {@code m = momentum m + (1 - momentum) g}, {@code w = w - lr (a O + decay w)}, where O is
 * nearly the orthogonal matrix that is closest to {@code u = momentum m + (1 - momentum) g}, or to m without Nesterov's momentum.
 *
 * <p>O comes from u divided by its norm, by steps {@code X = 3.4445 X + (-4.775 A + 2.0315 A^2) X} with {@code A = X X^T}; a is {@link
 * Adjustment}. These products are FP32, TF32 on GPUs.
 *
 * <p>Of sharded groups each of N ranks computes every N-th matrix, whole: the others send it their parts of u, and get theirs of O back. Matrices
 * that tensor-parallel ranks split evenly are gathered first; those that they split unevenly are refused.
 *
 * <p>Weights that are not FLOAT32 have a master copy, from which they are rounded after each step; after {@link Parameters#changed} the
 * next step copies the weights to the masters first. The state has {@code name.exp_avg}, which is m, and {@code name.exp_avg_sq}, which matrices
 * do not use, of each trained parameter, and its master.
 *
 * {@snippet file="dev/chagres/optim/MuonTest.java" region="optimizer"}
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: Jordan et al., Muon (2024); Liu et al., Muon is scalable for LLM training (2025); PyTorch's {@code torch.optim.Muon}.
 */
public final class Muon extends FlatOptimizer {
    /** The factor on an orthogonal matrix of R rows and C columns. */
    public enum Adjustment {
        /** {@code sqrt(max(1, R / C))}. */
        ORIGINAL,
        /** {@code 0.2 sqrt(max(R, C))}: steps as large as AdamW's, so that both have one learning rate. */
        MATCH_RMS_ADAMW
    }

    /**
     * Numbers of the method.
     *
     * @param momentum the share of the mean that a step keeps, above 0 and below 1
     * @param kind what a step goes by: the mean, or with Nesterov's momentum the mean and the gradient
     * @param iterations towards an orthogonal matrix, at least 1
     * @param weightDecay weight decay of the matrices, not negative
     * @param adjustment the factor on the orthogonal matrix
     * @param excluded parts of the names of matrices that AdamW updates
     * @param others settings of AdamW, with moments of FLOAT32; its masters are those of all weights
     */
    public record Config(
            float momentum,
            SGD.Momentum kind,
            int iterations,
            float weightDecay,
            Adjustment adjustment,
            List<String> excluded,
            AdamW.Config others)
            implements OptimizerConfig {
        /** PyTorch's defaults with steps as large as AdamW's; AdamW's own for the rest, embeddings and heads. */
        public static Config standard() {
            return new Config(
                    0.95f,
                    SGD.Momentum.NESTEROV,
                    5,
                    0.1f,
                    Adjustment.MATCH_RMS_ADAMW,
                    List.of("embed", "head"),
                    AdamW.Config.standard());
        }

        /**
         * Checks the numbers.
         *
         * @throws IllegalArgumentException when one is out of its range
         */
        public Config {
            Numbers.share("momentum", momentum);
            Checks.given("kind", kind);
            Checks.atLeastOne("iterations", iterations);
            Numbers.notNegative("weightDecay", weightDecay);
            Checks.given("adjustment", adjustment);
            excluded = Checks.givenAll("excluded", excluded);
            if (Checks.given("others", others).momentDType() != DType.FLOAT32) {
                throw new IllegalArgumentException("others: expected moments of FLOAT32, got " + others.momentDType());
            }
        }

        @Override
        public Muon make(Parameters parameters, List<ParameterGroup> groups) {
            return new Muon(parameters, this, groups);
        }

        /**
         * Returns this with another momentum.
         *
         * @throws IllegalArgumentException when it is not above 0 and below 1
         */
        public Config withMomentum(float newMomentum) {
            return new Config(newMomentum, kind, iterations, weightDecay, adjustment, excluded, others);
        }

        /** Returns this with another kind of momentum. */
        public Config withKind(SGD.Momentum newKind) {
            return new Config(momentum, newKind, iterations, weightDecay, adjustment, excluded, others);
        }

        /**
         * Returns this with another weight decay of the matrices.
         *
         * @throws IllegalArgumentException when it is negative
         */
        public Config withWeightDecay(float newWeightDecay) {
            return new Config(momentum, kind, iterations, newWeightDecay, adjustment, excluded, others);
        }

        /** Returns this with another factor on orthogonal matrices. */
        public Config withAdjustment(Adjustment newAdjustment) {
            return new Config(momentum, kind, iterations, weightDecay, newAdjustment, excluded, others);
        }

        /** Returns this with other parts of names of matrices that AdamW updates. */
        public Config withExcluded(List<String> newExcluded) {
            return new Config(momentum, kind, iterations, weightDecay, adjustment, newExcluded, others);
        }

        /**
         * Returns this with other settings of AdamW.
         *
         * @throws IllegalArgumentException when its moments are not FLOAT32
         */
        public Config withOthers(AdamW.Config newOthers) {
            return new Config(momentum, kind, iterations, weightDecay, adjustment, excluded, newOthers);
        }

        @Override
        public Config withMasters(AdamW.Masters masters) {
            return withOthers(others.withMasters(masters));
        }

        private boolean takes(Parameter parameter) {
            return !parameter.isFrozen()
                    && parameter.shape().rank() == 2
                    && parameter.wholeShape().count() > 0
                    && excluded.stream().noneMatch(parameter.name()::contains);
        }
    }

    private static final List<String> VECTORS = List.of(".exp_avg", StateVector.SQUARE);

    private final List<MatrixUpdate> matrices;
    /** Null where this rank has all matrices whole. */
    private final @Nullable MatrixOwners owners;

    private final AdamUpdate rest;

    /**
     * Allocates memory for the state, in a scope of its own, for 16-bit weights masters with the present values of the weights, and for the
     * products of the largest matrix.
     *
     * @throws IllegalArgumentException when a weight that is not frozen is kept {@code QUANTIZED_ONLY}, or tensor-parallel ranks split a matrix unevenly
     * @throws IllegalStateException when the parameters are closed
     */
    public Muon(Parameters parameters, Config config) {
        this(parameters, config, List.of());
    }

    /**
     * Allocates memory for the state as the other constructor does, with parameter groups.
     *
     * @param groups parameters with their own rate or decay; a parameter belongs to the first group that accepts it. All ranks of a pipeline
     *     make the same groups; a group may have parameters of other stages alone
     * @throws IllegalArgumentException when a group has no trained parameter, masters are remainders of FLOAT16 weights, a weight that is
     *     not frozen is kept {@code QUANTIZED_ONLY}, or tensor-parallel ranks split a matrix unevenly
     * @throws IllegalStateException when the parameters are closed
     */
    public Muon(Parameters parameters, Config config, List<ParameterGroup> groups) {
        AdamW.Config others = Checks.given("config", config).others();
        OptimizerState.Masters masters = MasterCopies.of(parameters, others.masters());
        ensureFloat32Gradients(parameters);
        super(parameters, config, groups, config.weightDecay(), DType.FLOAT32, VECTORS, masters);
        List<MatrixPart> parts = begun(() -> parameters.all().stream()
                .filter(config::takes)
                .map(matrix -> MatrixPart.of(parameters, SplitMatrix.ensureEven(matrix)))
                .toList());
        List<UpdateRange> ofOthers = UpdateRange.of(parameters, others.weightDecay(), state.numbers.groups);
        rest = begun(() -> new AdamUpdate(others, MatrixPart.rest(ofOthers, parts), state));
        boolean isSharded = parameters.access().shard() != null;
        matrices = begun(() -> {
            var scratch = new MatrixUpdate.Scratch(config, parts, state.scope);
            List<@Nullable Tensor> rooms = isSharded ? MatrixOwners.rooms(parameters, parts, state.scope) : List.of();
            List<MatrixUpdate> made = new ArrayList<>();
            for (int i = 0; i < parts.size(); i++) {
                MatrixPart part = parts.get(i);
                Tensor room = isSharded ? rooms.get(i) : null;
                made.add(new MatrixUpdate(config, part, part.range(state.ranges), room, scratch, parameters, state));
            }
            return List.copyOf(made);
        });
        owners = isSharded ? begun(() -> new MatrixOwners(parameters, matrices)) : null;
    }

    @Override
    public String explain() {
        return matrices.size()
                + " matrices, each by ops_optimizer_step for the mean, products of matrices, and ops_optimizer_step for the"
                + " weights" + (owners == null ? "" : "; each matrix is computed by one rank") + "; the rest: "
                + rest.explain();
    }

    @Override
    void update(Tensor gradientScale, Tensor skip) {
        rest.run(gradientScale, skip);
        if (owners != null) {
            owners.run(gradientScale, skip);
            return;
        }
        for (int i = 0; i < matrices.size(); i++) {
            matrices.get(i).run(gradientScale, skip);
        }
    }
}
