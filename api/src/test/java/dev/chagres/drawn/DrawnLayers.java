package dev.chagres.drawn;

import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.RotaryConfig;
import dev.chagres.bindings.Provider;
import dev.chagres.conformance.TokenRows;
import dev.chagres.drawn.DrawnLayer.Precision;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.Bias;
import dev.chagres.layer.BranchOrder;
import dev.chagres.layer.CrossAttentionConfig;
import dev.chagres.layer.Dropout;
import dev.chagres.layer.MlpConfig;
import dev.chagres.layer.MlpConfig.Recomputation;
import dev.chagres.layer.NormConfig;
import dev.chagres.layer.NormPlacement;
import dev.chagres.layer.QkNorm;
import dev.chagres.layer.ResidualSource;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.model.Initializer;
import dev.chagres.te.Activation;
import dev.chagres.te.AttentionProblem.Order;
import dev.chagres.te.ClampedSwiglu;
import dev.chagres.te.FusedRope.Pairing;
import dev.chagres.te.Normalization.Gamma;
import dev.chagres.te.QkvFormat;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import net.jqwik.api.Arbitraries;
import net.jqwik.api.Arbitrary;
import net.jqwik.api.Combinators;
import net.jqwik.api.Tuple;

/** Draws layers: each option by itself, the plainest first, which is what failures shrink to. */
final class DrawnLayers {
    private static final int MOST_SEQUENCES = 4;
    private static final int LONGEST = 19;

    private DrawnLayers() {}

    /** Layers of one precision. FP8 products want sizes of whole blocks of 16. */
    static Arbitrary<DrawnLayer> of(Precision precision) {
        Arbitrary<Integer> hidden = precision.recipe() != null
                ? Arbitraries.of(16, 32, 48)
                : Arbitraries.oneOf(
                        Arbitraries.of(16, 32, 48), Arbitraries.integers().between(8, 53));
        return hidden.flatMap(size -> encoder(precision, size).flatMap(config -> layer(precision, config)));
    }

    private static Arbitrary<DrawnLayer> layer(Precision precision, TransformerLayerConfig config) {
        Arbitrary<TokenRows> tokens =
                config.crossAttention() == null ? Arbitraries.oneOf(packed(0), dense(), padded()) : packed(1);
        return tokens.flatMap(rows -> Combinators.combine(
                        rotary(config.attention().headDim()).injectNull(0.5),
                        Arbitraries.integers()
                                .between(0, 30)
                                .list()
                                .ofSize(rows.lengths().size()),
                        memory(rows.lengths().size()),
                        Arbitraries.longs())
                .as((rotary, starts, keys, seed) -> new DrawnLayer(
                        precision,
                        config,
                        rotary,
                        rows,
                        starts.stream().mapToInt(Integer::intValue).sum() % 2 == 0 ? List.of() : starts,
                        keys,
                        seed)));
    }

    private static Arbitrary<TokenRows> packed(int shortest) {
        return Arbitraries.integers()
                .between(shortest, LONGEST)
                .list()
                .ofMinSize(1)
                .ofMaxSize(MOST_SEQUENCES)
                .filter(lengths -> lengths.stream().anyMatch(length -> length > 0))
                .map(lengths -> new TokenRows(QkvFormat.THD, lengths, 0));
    }

    private static Arbitrary<TokenRows> memory(int sequences) {
        return Arbitraries.integers()
                .between(1, LONGEST)
                .list()
                .ofSize(sequences)
                .map(lengths -> new TokenRows(QkvFormat.THD, lengths, 0));
    }

    private static Arbitrary<TokenRows> dense() {
        return Combinators.combine(
                        Arbitraries.of(QkvFormat.BSHD, QkvFormat.SBHD),
                        Arbitraries.integers().between(1, MOST_SEQUENCES),
                        Arbitraries.integers().between(1, LONGEST))
                .as((format, batch, length) -> new TokenRows(format, Collections.nCopies(batch, length), length));
    }

    private static Arbitrary<TokenRows> padded() {
        return Combinators.combine(
                        Arbitraries.of(QkvFormat.BSHD, QkvFormat.SBHD),
                        packed(1),
                        Arbitraries.integers().between(0, 5))
                .as((format, rows, more) -> new TokenRows(format, rows.lengths(), rows.longest() + more));
    }

    private static Arbitrary<TransformerLayerConfig> encoder(Precision precision, int hidden) {
        boolean blocks = precision.recipe() != null;
        Arbitrary<TransformerLayerConfig> plain = Combinators.combine(
                        norm(hidden), attention(blocks), mlp(precision, hidden), Arbitraries.of(Bias.class))
                .as((norm, attention, mlp, bias) -> TransformerLayerConfig.encoder(hidden, attention)
                        .withMlp(mlp)
                        .withNorm(norm)
                        .withBias(bias)
                        .withInitializer(Initializer.zeros()));
        return plain.flatMap(config -> Combinators.combine(
                        Arbitraries.of(0f, 0f, 0.2f).map(Dropout::of),
                        Arbitraries.of(0f, 0f, 0.4f).map(Dropout::of),
                        arrangement(config, blocks))
                .as((values, paths, arranged) ->
                        arranged.withHiddenDropout(values).withDropPath(paths)));
    }

    /** Where norms stand, what is added to what, and whether there is cross-attention. */
    private static Arbitrary<TransformerLayerConfig> arrangement(TransformerLayerConfig config, boolean blocks) {
        Arbitrary<TransformerLayerConfig> serial = Combinators.combine(
                        Arbitraries.of(ResidualSource.class), Arbitraries.of(NormPlacement.class))
                .as((residual, placement) -> config.withResidual(residual).withNormPlacement(placement));
        Arbitrary<TransformerLayerConfig> decoder = Combinators.combine(
                        serial, heads(blocks), mask(), norm(hidden(config)), qkNorm())
                .as((arranged, heads, mask, norm, qkNorm) -> arranged.withCrossAttention(CrossAttentionConfig.of(
                                config.hidden(),
                                AttentionConfig.of(heads.get1() * heads.get2(), heads.get3(), mask)
                                        .withKeyHeads(heads.get2())
                                        .withQkNorm(qkNorm))
                        .withMemoryColumns(DrawnLayer.MEMORY)
                        .withNorm(norm)));
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
    private static Arbitrary<Tuple.Tuple3<Integer, Integer, Integer>> heads(boolean blocks) {
        return Combinators.combine(
                        Arbitraries.of(1, 2, 3),
                        Arbitraries.of(1, 2),
                        blocks ? Arbitraries.of(16, 32) : Arbitraries.of(8, 16, 24, 32, 40))
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

    private static Arbitrary<AttentionConfig> attention(boolean blocks) {
        return Combinators.combine(
                        heads(blocks), mask(), qkNorm(), Arbitraries.of(1f, 0.5f), Arbitraries.of(Order.class))
                .as((heads, mask, qkNorm, scale, order) -> {
                    AttentionConfig config = AttentionConfig.of(heads.get1() * heads.get2(), heads.get3(), mask)
                            .withKeyHeads(heads.get2())
                            .withQkNorm(qkNorm);
                    AttentionConfig scaled = config.withScale(config.scale() * scale);
                    return order == Order.FASTEST ? scaled : scaled.deterministic();
                });
    }

    /**
     * Where a derivative jumps, one rounding moves a gradient by its whole size: such activations are drawn in FLOAT32, and not on
     * CUDA, whose products round to 11 bits. Squares
     * magnify what FP8 rounds.
     */
    private static Arbitrary<MlpConfig> mlp(Precision precision, int hidden) {
        Arbitrary<Integer> inner = precision.recipe() != null
                ? Arbitraries.of(32, 64)
                : Arbitraries.integers().between(1, 8).map(i -> 8 * i);
        Set<Activation> jumps = Set.of(Activation.RELU, Activation.REGLU, Activation.CLAMPED_SWIGLU);
        Set<Activation> squares = Set.of(Activation.SRELU, Activation.SREGLU);
        boolean exact = precision == Precision.FLOAT32 && Provider.current() == Provider.REFERENCE;
        boolean coarse = precision.recipe() != null;
        Arbitrary<MlpConfig> usual = Combinators.combine(
                        inner,
                        Arbitraries.of(Activation.class)
                                .filter(f -> (exact || !jumps.contains(f)) && !(coarse && squares.contains(f))))
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
        return Combinators.combine(
                        Arbitraries.of(headDim, headDim / 2),
                        Arbitraries.of(Pairing.class),
                        Arbitraries.of(10_000.0, 500.0),
                        Arbitraries.of(1.0, 2.0))
                .as((rotated, pairing, base, factor) -> RotaryConfig.of(headDim)
                        .withRotatedDim(rotated)
                        .withPairing(pairing)
                        .withBase(base)
                        .withInterpolation(factor));
    }
}
