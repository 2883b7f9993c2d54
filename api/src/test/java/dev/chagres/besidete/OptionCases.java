package dev.chagres.besidete;

import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.RotaryConfig;
import dev.chagres.besidete.LayerCase.Course;
import dev.chagres.besidete.LayerCase.Owner;
import dev.chagres.besidete.LayerCase.Precision;
import dev.chagres.besidete.LayerCase.Scores;
import dev.chagres.conformance.TokenRows;
import dev.chagres.layer.CrossAttentionConfig;
import dev.chagres.layer.QkNorm;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.recipe.AttentionPrecision;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.te.QkvFormat;
import dev.chagres.te.SoftmaxType;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Objects;
import java.util.function.Predicate;
import java.util.random.RandomGenerator;

/** Draws layers of {@link LayerCases} and gives each the option that it is drawn for. */
final class OptionCases {
    private static final int LATEST_START = 300;
    private static final int WIDEST_GAP = 9;
    private static final int UPDATES = 8;
    private static final int HEAD_DIM_IN_EIGHT_BITS = 128;

    private final Precision precision;
    private final RandomGenerator random;

    OptionCases(Precision precision, RandomGenerator random) {
        this.precision = precision;
        this.random = random;
    }

    /** Draws until a layer fits. */
    private LayerCase plain(Predicate<LayerCase> fits) {
        LayerCase drawn = LayerCases.draw(precision, random);
        while (!fits.test(drawn)) {
            drawn = LayerCases.draw(precision, random);
        }
        return drawn;
    }

    LayerCase any() {
        return plain(drawn -> true);
    }

    LayerCase softCap() {
        return plain(drawn -> drawn.config().attention().softcap() > 0);
    }

    LayerCase with(SoftmaxType type) {
        return plain(drawn -> drawn.config().attention().softmaxType() == type);
    }

    LayerCase with(Scores scores, Owner owner) {
        return switch (scores) {
            case PLAIN, ALIBI -> plain(drawn -> drawn.scores() == scores);
            case SLOPES -> {
                LayerCase drawn = plain(found -> !found.decodes() && hasPlainScores(found));
                yield drawn.with((RotaryConfig) null, 0).with(Scores.SLOPES, Owner.ALL);
            }
            case BIAS, BIAS_BEFORE_SCALE -> {
                LayerCase drawn = plain(found ->
                        isDense(found) && hasPlainScores(found) && takes(found, scores) && !isBottomRight(found));
                yield drawn.with(scores, owner);
            }
            case MASK -> {
                LayerCase drawn = plain(found -> isDense(found)
                        && hasPlainScores(found)
                        && found.tokens().paddingRows().length == 0
                        && found.config().attention().mask().equals(AttentionMask.none()));
                yield drawn.with(Scores.MASK, owner);
            }
        };
    }

    private static boolean isDense(LayerCase drawn) {
        return !drawn.decodes() && drawn.tokens().format() != QkvFormat.THD;
    }

    private static boolean hasPlainScores(LayerCase drawn) {
        return drawn.scores() == Scores.PLAIN
                && drawn.config().attention().softcap() == 0
                && drawn.config().attention().softmaxType() == SoftmaxType.VANILLA;
    }

    /** An L2 norm of the heads takes no bias before the scale. */
    private static boolean takes(LayerCase drawn, Scores scores) {
        return scores == Scores.BIAS || drawn.config().attention().qkNorm().kind() != QkNorm.Kind.L2;
    }

    private static boolean isBottomRight(LayerCase drawn) {
        return drawn.config().attention().mask().kind() == AttentionMask.Kind.CAUSAL_BOTTOM_RIGHT;
    }

    /** Rows that belong to no sequence behind some of the packed ones. */
    LayerCase gaps() {
        LayerCase drawn =
                plain(found -> !found.decodes() && found.tokens().format() == QkvFormat.THD && hasPlainScores(found));
        return drawn.with(gapped(drawn.tokens()), drawn.keys());
    }

    LayerCase gapsInDecoder() {
        LayerCase drawn = plain(LayerCase::decodes);
        return drawn.with(gapped(drawn.tokens()), gapped(drawn.keys()));
    }

    private TokenRows gapped(TokenRows rows) {
        List<Integer> gaps = new ArrayList<>();
        int tokens = rows.tokens();
        for (int i = 0; i < rows.lengths().size(); i++) {
            gaps.add(i == 0 ? 1 + random.nextInt(WIDEST_GAP) : random.nextInt(WIDEST_GAP));
            tokens += gaps.getLast();
        }
        gaps.set(gaps.size() - 1, gaps.getLast() + Math.floorMod(-tokens, precision.tokenMultiple()));
        return new TokenRows(QkvFormat.THD, rows.lengths(), 0, gaps);
    }

    /** Positions that count from another number than 0. */
    LayerCase start() {
        LayerCase drawn = plain(found -> !found.decodes() && found.rotary() != null);
        return drawn.with(drawn.rotary(), 1 + random.nextInt(LATEST_START));
    }

    LayerCase deterministic() {
        LayerCase drawn = any();
        TransformerLayerConfig config =
                drawn.config().withAttention(drawn.config().attention().deterministic());
        CrossAttentionConfig cross = config.crossAttention();
        return drawn.with(
                cross == null
                        ? config
                        : config.withCrossAttention(
                                cross.withAttention(cross.attention().deterministic())));
    }

    /** A decoder over padded or full batches; the memory may have another length. */
    LayerCase denseDecoder(QkvFormat format) {
        LayerCase drawn = plain(LayerCase::decodes);
        int batch = 2 * (1 + random.nextInt(2));
        return drawn.with(dense(format, batch), dense(format, batch));
    }

    private TokenRows dense(QkvFormat format, int batch) {
        int padded = precision.tokenMultiple() / 2 * (1 + random.nextInt(4));
        if (random.nextBoolean()) {
            return new TokenRows(format, Collections.nCopies(batch, padded), padded);
        }
        List<Integer> lengths = new ArrayList<>();
        for (int i = 0; i < batch; i++) {
            lengths.add(1 + random.nextInt(padded));
        }
        return new TokenRows(format, lengths, padded);
    }

    /** A mask of cross-attention that leaves each query a key, for no sequence of the memory is shorter than that of x. */
    LayerCase crossMask(AttentionMask.Kind kind, boolean windowed) {
        LayerCase drawn = plain(LayerCase::decodes);
        AttentionMask mask = switch (kind) {
            case NONE -> AttentionMask.none();
            case CAUSAL -> AttentionMask.causal();
            case CAUSAL_BOTTOM_RIGHT -> AttentionMask.causalBottomRight();
        };
        int right = kind == AttentionMask.Kind.NONE ? random.nextInt(40) : 0;
        AttentionMask drawnMask = windowed ? mask.withWindow(random.nextInt(40), right) : mask;
        CrossAttentionConfig cross = Objects.requireNonNull(drawn.config().crossAttention());
        return drawn.with(drawn.config()
                        .withCrossAttention(
                                cross.withAttention(cross.attention().withMask(drawnMask))))
                .with(drawn.tokens(), longer(drawn.tokens()));
    }

    private TokenRows longer(TokenRows rows) {
        List<Integer> lengths = new ArrayList<>();
        int tokens = 0;
        for (int length : rows.lengths()) {
            lengths.add(length + random.nextInt(20));
            tokens += lengths.getLast();
        }
        int last = lengths.size() - 1;
        lengths.set(last, lengths.get(last) + Math.floorMod(-tokens, precision.tokenMultiple()));
        return new TokenRows(QkvFormat.THD, lengths, 0);
    }

    /** A layer whose attention cuDNN has in eight bits. */
    LayerCase quantizedAttention(boolean withRotation) {
        return plain(found -> fitsEightBits(found, withRotation));
    }

    private static boolean fitsEightBits(LayerCase drawn, boolean withRotation) {
        return isDense(drawn)
                && hasPlainScores(drawn)
                && drawn.config().attention().headDim() == HEAD_DIM_IN_EIGHT_BITS
                && drawn.config().attention().mask().windowLeft() < 0
                && !isBottomRight(drawn)
                && (withRotation
                        || (drawn.rotary() == null
                                && drawn.config().attention().qkNorm().isNone()));
    }

    /** A layer that is trained, dense since TE's attention in FP32 takes no packed sequences. */
    LayerCase trained() {
        return plain(found -> isDense(found) && hasPlainScores(found)).with(new Course(1, UPDATES));
    }

    /** Causal attention in eight bits with grouped heads, whose gradients become four to 32 times as large from one step to the next. */
    LayerCase jumping() {
        return plain(found -> fitsEightBits(found, false)
                        && found.config().attention().mask().kind() == AttentionMask.Kind.CAUSAL
                        && found.config().attention().keyHeads()
                                < found.config().attention().heads())
                .with(DelayedScaling.standard().withAttention(AttentionPrecision.FP8_MHA))
                .with(new Course(4 << random.nextInt(4), 0));
    }
}
