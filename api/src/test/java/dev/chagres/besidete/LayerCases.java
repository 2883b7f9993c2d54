package dev.chagres.besidete;

import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.RotaryConfig;
import dev.chagres.besidete.LayerCase.Precision;
import dev.chagres.besidete.LayerCase.Scores;
import dev.chagres.conformance.TokenRows;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.Bias;
import dev.chagres.layer.CrossAttentionConfig;
import dev.chagres.layer.MlpConfig;
import dev.chagres.layer.NormConfig;
import dev.chagres.layer.QkNorm;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.layer.TransformerLayerConfig.BranchOrder;
import dev.chagres.layer.TransformerLayerConfig.NormPlacement;
import dev.chagres.layer.TransformerLayerConfig.ResidualSource;
import dev.chagres.te.Activation;
import dev.chagres.te.ClampedSwiglu;
import dev.chagres.te.FusedRope.Pairing;
import dev.chagres.te.Normalization.Gamma;
import dev.chagres.te.QkvFormat;
import dev.chagres.te.SoftmaxType;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.random.RandomGenerator;
import org.jspecify.annotations.Nullable;

/**
 * Draws layers that TE for PyTorch has too. Dropout and drop path are off: the two sides draw other random numbers.
 */
final class LayerCases {
    private static final int LONGEST = 90;

    private final RandomGenerator random;
    private final Precision precision;

    private LayerCases(RandomGenerator random, Precision precision) {
        this.random = random;
        this.precision = precision;
    }

    /** Draws one layer. */
    static LayerCase draw(Precision precision, RandomGenerator random) {
        return new LayerCases(random, precision).layer();
    }

    private LayerCase layer() {
        boolean decodes = random.nextInt(5) == 0;
        TokenRows tokens = decodes || random.nextInt(2) == 0 ? packed() : dense();
        TokenRows keys = packedLike(tokens.lengths().size());
        AttentionConfig attention = attention(tokens, decodes);
        TransformerLayerConfig config = config(attention, decodes);
        if (decodes) {
            AttentionConfig cross = AttentionConfig.of(attention.heads(), attention.headDim(), crossMask())
                    .withKeyHeads(attention.keyHeads())
                    .withQkNorm(attention.qkNorm());
            config = config.withCrossAttention(
                    CrossAttentionConfig.of(config.hidden(), cross).withNorm(config.norm()));
        }
        config = config.withBias(oneOf(Bias.values()));
        boolean alibi = !decodes && attention.softcap() == 0 && random.nextInt(8) == 0;
        return new LayerCase(
                precision,
                config,
                alibi ? null : rotary(attention.headDim()),
                alibi ? Scores.ALIBI : Scores.PLAIN,
                tokens,
                keys,
                random.nextLong());
    }

    private TransformerLayerConfig config(AttentionConfig attention, boolean decodes) {
        int multiple = precision.columnMultiple();
        int hidden = multiple * (1 + random.nextInt(256 / multiple));
        NormConfig norm = new NormConfig(oneOf(NormConfig.Kind.values()), hidden, oneOf(1e-5f, 1e-3f))
                .withGamma(oneOf(Gamma.values()));
        int inner = multiple * (1 + random.nextInt(512 / multiple));
        TransformerLayerConfig plain = TransformerLayerConfig.encoder(hidden, attention)
                .withMlp(mlp(hidden, inner))
                .withNorm(norm);
        return switch (random.nextInt(6)) {
            case 0 -> decodes ? plain : plain.withBranchOrder(BranchOrder.PARALLEL);
            case 1 -> plain.withNormPlacement(NormPlacement.OUTPUT);
            case 2 -> plain.withResidual(ResidualSource.NORM);
            default -> plain;
        };
    }

    /** Every other activation is GELU or SwiGLU, the ones in use. */
    private MlpConfig mlp(int hidden, int inner) {
        Activation activation =
                random.nextBoolean() ? oneOf(Activation.GELU, Activation.SWIGLU) : oneOf(Activation.values());
        MlpConfig config = MlpConfig.gelu(hidden).withInner(inner).withActivation(activation);
        return activation == Activation.CLAMPED_SWIGLU
                ? config.withClampedSwiglu(new ClampedSwiglu(oneOf(1f, 7f), oneOf(1.702f, 1f), oneOf(1f, 0f)))
                : config;
    }

    private AttentionConfig attention(TokenRows tokens, boolean decodes) {
        int headDim = oneOf(16, 32, 64, 64, 128);
        int least = Math.max(1, precision.columnMultiple() / headDim);
        int keyHeads = least * (1 + random.nextInt(2));
        int heads = keyHeads * (1 + random.nextInt(3));
        AttentionMask window = AttentionMask.none().withWindow(random.nextInt(40), random.nextInt(40));
        AttentionConfig config = AttentionConfig.of(heads, headDim, random.nextInt(8) == 0 ? window : mask())
                .withKeyHeads(keyHeads);
        if (random.nextInt(3) == 0) {
            QkNorm.Kind kind = oneOf(QkNorm.Kind.RMS_NORM, QkNorm.Kind.LAYER_NORM, QkNorm.Kind.L2);
            config = config.withQkNorm(QkNorm.of(kind).withPlace(oneOf(QkNorm.Place.values())));
        }
        if (!decodes && tokens.format() != QkvFormat.THD && random.nextInt(4) == 0) {
            return random.nextBoolean()
                    ? config.withSoftcap(oneOf(5f, 30f))
                    : config.withSoftmaxType(oneOf(SoftmaxType.OFF_BY_ONE, SoftmaxType.LEARNABLE));
        }
        return config;
    }

    private AttentionMask mask() {
        return switch (random.nextInt(6)) {
            case 0 -> AttentionMask.causal();
            case 1 -> AttentionMask.causalBottomRight();
            case 2 -> AttentionMask.causal().withWindow(1 + random.nextInt(40), 0);
            default -> AttentionMask.none();
        };
    }

    /** Neither windows nor the bottom right: both may leave a query no key. */
    private AttentionMask crossMask() {
        return random.nextInt(3) == 0 ? AttentionMask.causal() : AttentionMask.none();
    }

    private @Nullable RotaryConfig rotary(int headDim) {
        if (random.nextBoolean()) {
            return null;
        }
        return RotaryConfig.of(headDim)
                .withRotatedDim(oneOf(headDim, headDim / 2))
                .withPairing(oneOf(Pairing.values()))
                .withBase(oneOf(10_000.0, 500_000.0))
                .withInterpolation(oneOf(1.0, 2.0));
    }

    private TokenRows packed() {
        return packedLike(1 + random.nextInt(5));
    }

    /** The last sequence fills the tokens up to a multiple. */
    private TokenRows packedLike(int sequences) {
        List<Integer> lengths = new ArrayList<>();
        int tokens = 0;
        for (int i = 0; i < sequences; i++) {
            lengths.add(1 + random.nextInt(LONGEST));
            tokens += lengths.getLast();
        }
        lengths.set(sequences - 1, lengths.getLast() + Math.floorMod(-tokens, precision.tokenMultiple()));
        return new TokenRows(QkvFormat.THD, lengths, 0);
    }

    private TokenRows dense() {
        int batch = 2 * (1 + random.nextInt(2));
        int padded = precision.tokenMultiple() / 2 * (1 + random.nextInt(4));
        QkvFormat format = oneOf(QkvFormat.BSHD, QkvFormat.SBHD);
        if (random.nextBoolean()) {
            return new TokenRows(format, Collections.nCopies(batch, padded), padded);
        }
        List<Integer> lengths = new ArrayList<>();
        for (int i = 0; i < batch; i++) {
            lengths.add(1 + random.nextInt(padded));
        }
        return new TokenRows(format, lengths, padded);
    }

    @SafeVarargs
    private <T> T oneOf(T... values) {
        return values[random.nextInt(values.length)];
    }
}
