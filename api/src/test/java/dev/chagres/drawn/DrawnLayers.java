package dev.chagres.drawn;

import dev.chagres.DType;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Llama3Scaling;
import dev.chagres.attention.RotaryConfig;
import dev.chagres.bindings.Provider;
import dev.chagres.conformance.TokenRows;
import dev.chagres.drawn.DrawnLayer.Calls;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.Bias;
import dev.chagres.layer.CrossAttentionConfig;
import dev.chagres.layer.Dropout;
import dev.chagres.layer.MlpConfig;
import dev.chagres.layer.MlpConfig.Recomputation;
import dev.chagres.layer.NormConfig;
import dev.chagres.layer.QkNorm;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.layer.TransformerLayerConfig.BranchOrder;
import dev.chagres.layer.TransformerLayerConfig.NormPlacement;
import dev.chagres.layer.TransformerLayerConfig.ResidualSource;
import dev.chagres.parameter.Initializer;
import dev.chagres.te.Activation;
import dev.chagres.te.AttentionProblem.Order;
import dev.chagres.te.ClampedSwiglu;
import dev.chagres.te.FusedRope.Pairing;
import dev.chagres.te.Normalization.Gamma;
import dev.chagres.te.SoftmaxType;
import java.util.List;
import java.util.Set;
import net.jqwik.api.Arbitraries;
import net.jqwik.api.Arbitrary;
import net.jqwik.api.Combinators;
import net.jqwik.api.Tuple;
import org.jspecify.annotations.Nullable;

/** Draws layers: each option by itself, the plainest first, which is what failures shrink to. */
final class DrawnLayers {
    /** Columns of the heads that attention in eight bits takes. */
    private static final int IN_EIGHT_BITS = 128;

    /** Activations whose derivative jumps. */
    private static final Set<Activation> JUMPS = Set.of(Activation.RELU, Activation.REGLU, Activation.CLAMPED_SWIGLU);

    /** What products are computed in. */
    private record Products(DType dtype, @Nullable DrawnRecipe recipe) {
        boolean quantized() {
            return recipe != null;
        }

        boolean wantAttention() {
            return recipe != null && recipe.wantsAttention();
        }
    }

    private DrawnLayers() {}

    /** Layers whose products are in {@code dtype}. */
    static Arbitrary<DrawnLayer> of(DType dtype) {
        Arbitrary<Integer> hidden = Arbitraries.oneOf(
                Arbitraries.of(16, 32, 48), Arbitraries.integers().between(8, 53));
        return hidden.flatMap(size -> of(new Products(dtype, null), size));
    }

    /** Layers whose products are in eight bits. These want sizes of whole blocks of 16. */
    static Arbitrary<DrawnLayer> of(Arbitrary<DrawnRecipe> recipes) {
        return recipes.flatMap(recipe ->
                Arbitraries.of(16, 32, 48).flatMap(size -> of(new Products(recipe.dtype(), recipe), size)));
    }

    private static Arbitrary<DrawnLayer> of(Products products, int hidden) {
        return config(products, hidden).flatMap(config -> layer(products, config));
    }

    private static Arbitrary<DrawnLayer> layer(Products products, TransformerLayerConfig config) {
        Arbitrary<TokenRows> tokens = products.wantAttention() ? DrawnTokens.batches() : DrawnTokens.any();
        return tokens.flatMap(rows -> Combinators.combine(
                        rotary(config.attention().headDim()).injectNull(0.5),
                        scores(products, config.attention()),
                        config.crossAttention() == null
                                ? Arbitraries.just(DrawnScores.PLAIN)
                                : scores(products, config.crossAttention().attention()),
                        starts(rows.lengths().size()),
                        DrawnTokens.keysFor(rows),
                        Arbitraries.frequency(
                                Tuple.of(6, Calls.ONE),
                                Tuple.of(1, Calls.TWO_MICRO_BATCHES),
                                Tuple.of(2, Calls.RECOMPUTED),
                                Tuple.of(1, Calls.RECOMPUTED_MICRO_BATCHES)),
                        Arbitraries.longs())
                .as((rotary, scores, crossScores, starts, keys, calls, seed) -> new DrawnLayer(
                        products.dtype,
                        products.recipe,
                        config,
                        rotary,
                        scores,
                        crossScores,
                        rows,
                        starts,
                        keys,
                        calls,
                        seed)));
    }

    /** A norm of the heads that has no factor takes no bias before the scale, and attention in eight bits no change of scores. */
    private static Arbitrary<DrawnScores> scores(Products products, AttentionConfig attention) {
        boolean takesAll = attention.qkNorm().kind() != QkNorm.Kind.L2;
        Arbitrary<DrawnScores> any =
                takesAll ? DrawnScores.any() : DrawnScores.any().map(DrawnScores::withoutBiasBeforeScale);
        return products.wantAttention()
                ? Arbitraries.frequencyOf(Tuple.of(5, Arbitraries.just(DrawnScores.PLAIN)), Tuple.of(1, any))
                : any;
    }

    private static Arbitrary<List<Integer>> starts(int sequences) {
        return Arbitraries.oneOf(
                Arbitraries.just(List.of()),
                Arbitraries.integers().between(0, 30).list().ofSize(sequences));
    }

    private static Arbitrary<TransformerLayerConfig> config(Products products, int hidden) {
        Arbitrary<TransformerLayerConfig> plain = Combinators.combine(
                        norm(hidden), attention(products), mlp(products, hidden), Arbitraries.of(Bias.class))
                .as((norm, attention, mlp, bias) -> TransformerLayerConfig.encoder(hidden, attention)
                        .withMlp(mlp)
                        .withNorm(norm)
                        .withBias(bias)
                        .withInitializer(Initializer.zeros()));
        return plain.flatMap(config -> Combinators.combine(
                        Arbitraries.of(0f, 0f, 0.2f).map(Dropout::of),
                        Arbitraries.of(0f, 0f, 0.4f).map(Dropout::of),
                        arrangement(config, products))
                .as((values, paths, arranged) ->
                        arranged.withHiddenDropout(values).withDropPath(paths)));
    }

    /** Where norms stand, what is added to what, and whether there is cross-attention. */
    private static Arbitrary<TransformerLayerConfig> arrangement(TransformerLayerConfig config, Products products) {
        Arbitrary<TransformerLayerConfig> serial = Combinators.combine(
                        Arbitraries.of(ResidualSource.class), Arbitraries.of(NormPlacement.class))
                .as((residual, placement) -> config.withResidual(residual).withNormPlacement(placement));
        Arbitrary<TransformerLayerConfig> decoder = Combinators.combine(
                        serial, attention(products), norm(hidden(config)), Arbitraries.of(Bias.class))
                .as((arranged, attention, norm, bias) ->
                        arranged.withCrossAttention(CrossAttentionConfig.of(config.hidden(), attention)
                                .withMemoryColumns(DrawnLayer.MEMORY)
                                .withNorm(norm)
                                .withBias(bias)));
        return Arbitraries.frequencyOf(
                Tuple.of(3, serial),
                Tuple.of(1, Arbitraries.just(config.withBranchOrder(BranchOrder.PARALLEL))),
                Tuple.of(2, decoder));
    }

    private static int hidden(TransformerLayerConfig config) {
        return Math.toIntExact(config.hidden());
    }

    private static Arbitrary<NormConfig> norm(int hidden) {
        return Combinators.combine(
                        Arbitraries.of(NormConfig.Kind.class),
                        Arbitraries.of(1e-5f, 1e-2f),
                        Arbitraries.of(Gamma.class))
                .as((kind, epsilon, gamma) -> new NormConfig(kind, hidden, epsilon).withGamma(gamma));
    }

    /** Query heads of a key head, key heads, size of a head. */
    private static Arbitrary<Tuple.Tuple3<Integer, Integer, Integer>> heads(Products products) {
        Arbitrary<Integer> dims =
                products.quantized() ? Arbitraries.of(16, 32) : Arbitraries.of(8, 16, 24, 32, 40, 40, 72);
        return Combinators.combine(
                        Arbitraries.of(1, 2, 3),
                        Arbitraries.of(1, 2),
                        products.wantAttention() ? Arbitraries.of(IN_EIGHT_BITS, IN_EIGHT_BITS, 32) : dims)
                .as(Tuple::of);
    }

    private static Arbitrary<AttentionMask> mask() {
        Arbitrary<Long> side = Arbitraries.longs().between(-1, 9);
        return Arbitraries.oneOf(
                Arbitraries.just(AttentionMask.none()),
                Arbitraries.just(AttentionMask.causal()),
                Arbitraries.just(AttentionMask.causalBottomRight()),
                Combinators.combine(side, side).as(AttentionMask.none()::withWindow),
                side.map(left -> AttentionMask.causal().withWindow(left, 0)));
    }

    private static Arbitrary<QkNorm> qkNorm() {
        Arbitrary<QkNorm> norm = Combinators.combine(
                        Arbitraries.of(QkNorm.Kind.class),
                        Arbitraries.of(QkNorm.Place.class),
                        Arbitraries.of(1e-6f, 0.1f))
                .as((kind, place, epsilon) -> QkNorm.of(kind).withPlace(place).withEpsilon(epsilon));
        return Arbitraries.oneOf(Arbitraries.just(QkNorm.none()), norm);
    }

    private static Arbitrary<AttentionConfig> attention(Products products) {
        Arbitrary<AttentionConfig> plain = Combinators.combine(
                        heads(products), mask(), qkNorm(), Arbitraries.of(1f, 0.5f), Arbitraries.of(Order.class))
                .as((heads, mask, qkNorm, scale, order) -> {
                    AttentionConfig config = AttentionConfig.of(heads.get1() * heads.get2(), heads.get3(), mask)
                            .withKeyHeads(heads.get2())
                            .withQkNorm(qkNorm);
                    AttentionConfig scaled = config.withScale(config.scale() * scale);
                    return order == Order.FASTEST ? scaled : scaled.deterministic();
                });
        Arbitrary<AttentionConfig> changed = Combinators.combine(
                        plain,
                        Arbitraries.of(0f, 0f, 0f, 0f, 1f, 20f),
                        Arbitraries.frequency(
                                Tuple.of(4, SoftmaxType.VANILLA),
                                Tuple.of(1, SoftmaxType.OFF_BY_ONE),
                                Tuple.of(2, SoftmaxType.LEARNABLE)),
                        Arbitraries.of(0f, 0f, 0.3f).map(Dropout::of))
                .as((config, cap, softmax, dropout) -> {
                    AttentionConfig scored = config.withSoftcap(cap).withSoftmaxType(softmax);
                    return dropsByFormula(products, scored) ? scored.withDropout(dropout) : scored;
                });
        return products.wantAttention() ? Arbitraries.frequencyOf(Tuple.of(5, plain), Tuple.of(1, changed)) : changed;
    }

    /** What our own kernels drop is known, where cuDNN has no attention; what cuDNN drops, it alone knows. */
    private static boolean dropsByFormula(Products products, AttentionConfig config) {
        return products.dtype == DType.FLOAT32
                || config.softcap() > 0
                || config.mask().kind() == AttentionMask.Kind.CAUSAL_BOTTOM_RIGHT;
    }

    /** Returns whether there are layers with this activation: products on CUDA round to 11 bits, too few where a derivative jumps. */
    static boolean draws(Activation activation) {
        return !JUMPS.contains(activation) || Provider.current() == Provider.REFERENCE;
    }

    /**
     * Where a derivative jumps, one rounding moves a gradient by its whole size: such activations are drawn in FLOAT32. Squares magnify what
     * FP8 rounds.
     */
    private static Arbitrary<MlpConfig> mlp(Products products, int hidden) {
        Arbitrary<Integer> inner = products.quantized()
                ? Arbitraries.of(32, 64)
                : Arbitraries.integers().between(1, 8).map(i -> 8 * i);
        Set<Activation> squares = Set.of(Activation.SRELU, Activation.SREGLU);
        boolean exact = products.dtype == DType.FLOAT32 && draws(Activation.RELU);
        boolean coarse = products.quantized();
        Arbitrary<MlpConfig> usual = Combinators.combine(
                        inner,
                        Arbitraries.of(Activation.class)
                                .filter(f -> (exact || !JUMPS.contains(f)) && !(coarse && squares.contains(f))))
                .as((size, activation) -> MlpConfig.gelu(hidden).withInner(size).withActivation(activation));
        Arbitrary<MlpConfig> clamped = Combinators.combine(
                        inner, Arbitraries.of(1f, 7f), Arbitraries.of(1.702f, 1f), Arbitraries.of(1f, 0f))
                .as((size, limit, alpha, offset) -> MlpConfig.gelu(hidden)
                        .withInner(size)
                        .withClampedSwiglu(new ClampedSwiglu(limit, alpha, offset)));
        Arbitrary<MlpConfig> either = Arbitraries.frequencyOf(Tuple.of(5, usual), Tuple.of(exact ? 1 : 0, clamped));
        return Combinators.combine(either, Arbitraries.of(Recomputation.class)).as(MlpConfig::withRecomputation);
    }

    private static Arbitrary<RotaryConfig> rotary(int headDim) {
        Arbitrary<RotaryConfig> plain = Combinators.combine(
                        Arbitraries.of(headDim, headDim / 2),
                        Arbitraries.of(Pairing.class),
                        Arbitraries.of(10_000.0, 500.0),
                        Arbitraries.of(1.0, 2.0))
                .as((rotated, pairing, base, factor) -> RotaryConfig.of(headDim)
                        .withRotatedDim(rotated)
                        .withPairing(pairing)
                        .withBase(base)
                        .withInterpolation(factor));
        Arbitrary<RotaryConfig> given = plain.flatMap(config -> Arbitraries.doubles()
                .between(0, 2)
                .list()
                .ofSize(config.rotatedDim() / 2)
                .map(config::withFrequencies));
        Arbitrary<RotaryConfig> scaled = plain.map(config -> config.withScaling(new Llama3Scaling(8, 1, 4, 64)));
        return Arbitraries.frequencyOf(Tuple.of(4, plain), Tuple.of(1, given), Tuple.of(1, scaled));
    }
}
