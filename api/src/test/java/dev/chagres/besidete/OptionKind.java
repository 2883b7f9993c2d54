package dev.chagres.besidete;

import dev.chagres.attention.AttentionMask.Kind;
import dev.chagres.besidete.LayerCase.Owner;
import dev.chagres.besidete.LayerCase.Precision;
import dev.chagres.besidete.LayerCase.Scores;
import dev.chagres.parameter.QuantizerSite.Role;
import dev.chagres.recipe.AttentionPrecision;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Float8BlockScaling;
import dev.chagres.recipe.Float8CurrentScaling;
import dev.chagres.recipe.Format;
import dev.chagres.recipe.Recipe;
import dev.chagres.recipe.Recipe.Product;
import dev.chagres.te.Gemm.Accumulator;
import dev.chagres.te.QkvFormat;
import dev.chagres.te.QuantizationConfig;
import dev.chagres.te.QuantizationConfig.Scales;
import dev.chagres.te.RecipeUpdates.AmaxAlgorithm;
import dev.chagres.te.SoftmaxType;
import java.util.function.Function;
import java.util.random.RandomGenerator;
import org.jspecify.annotations.Nullable;

/** What a layer is drawn for. Cases go through these in turn, so that each stands in as many. */
enum OptionKind {
    ALIBI(cases -> cases.with(Scores.ALIBI, Owner.ALL)),
    SLOPES(cases -> cases.with(Scores.SLOPES, Owner.ALL)),
    BIAS_OF_ALL(cases -> cases.with(Scores.BIAS, Owner.ALL)),
    BIAS_OF_HEAD(cases -> cases.with(Scores.BIAS, Owner.HEAD)),
    BIAS_OF_SEQUENCE(cases -> cases.with(Scores.BIAS, Owner.SEQUENCE)),
    BIAS_OF_HEAD_OF_SEQUENCE(cases -> cases.with(Scores.BIAS, Owner.HEAD_OF_SEQUENCE)),
    BIAS_BEFORE_SCALE(cases -> cases.with(Scores.BIAS_BEFORE_SCALE, Owner.HEAD)),
    MASK_OF_ALL(cases -> cases.with(Scores.MASK, Owner.ALL)),
    MASK_OF_HEAD(cases -> cases.with(Scores.MASK, Owner.HEAD)),
    MASK_OF_SEQUENCE(cases -> cases.with(Scores.MASK, Owner.SEQUENCE)),
    MASK_OF_HEAD_OF_SEQUENCE(cases -> cases.with(Scores.MASK, Owner.HEAD_OF_SEQUENCE)),
    SOFT_CAP(OptionCases::softCap),
    OFF_BY_ONE(cases -> cases.with(SoftmaxType.OFF_BY_ONE)),
    LEARNABLE(cases -> cases.with(SoftmaxType.LEARNABLE)),
    GAPS(OptionCases::gaps),
    GAPS_IN_DECODER(OptionCases::gapsInDecoder),
    START(OptionCases::start),
    DETERMINISTIC(OptionCases::deterministic),
    DECODER_IN_BSHD(cases -> cases.denseDecoder(QkvFormat.BSHD)),
    DECODER_IN_SBHD(cases -> cases.denseDecoder(QkvFormat.SBHD)),
    CROSS_WINDOW(cases -> cases.crossMask(Kind.NONE, true)),
    CROSS_CAUSAL_WINDOW(cases -> cases.crossMask(Kind.CAUSAL, true)),
    CROSS_BOTTOM_RIGHT(cases -> cases.crossMask(Kind.CAUSAL_BOTTOM_RIGHT, false)),
    CROSS_BOTTOM_RIGHT_WINDOW(cases -> cases.crossMask(Kind.CAUSAL_BOTTOM_RIGHT, true)),
    DELAYED_E4M3(DelayedScaling.standard().withFormat(Format.E4M3)),
    DELAYED_MARGIN(DelayedScaling.standard().withMargin(2)),
    DELAYED_HISTORY(DelayedScaling.standard().withAmaxHistoryLength(2)),
    DELAYED_MOST_RECENT(DelayedScaling.standard().withAmaxComputeAlgorithm(AmaxAlgorithm.MOST_RECENT)),
    DELAYED_FP8_DPA(
            DelayedScaling.standard().withAttention(AttentionPrecision.FP8_DPA),
            cases -> cases.quantizedAttention(true)),
    DELAYED_FP8_MHA(
            DelayedScaling.standard().withAttention(AttentionPrecision.FP8_MHA),
            cases -> cases.quantizedAttention(false)),
    CURRENT_E4M3(Float8CurrentScaling.standard().withFormat(Format.E4M3)),
    CURRENT_POWER_OF_2(Float8CurrentScaling.standard().withScales(Scales.POWER_OF_2)),
    CURRENT_LEAST_MAGNITUDE(Float8CurrentScaling.standard()
            .withQuantization(Role.INPUT, QuantizationConfig.standard().withAmaxEpsilon(8))
            .withQuantization(
                    Role.WEIGHT,
                    QuantizationConfig.standard().withScales(Scales.POWER_OF_2).withAmaxEpsilon(1))),
    CURRENT_SUMS(Float8CurrentScaling.standard()
            .withAccumulator(Product.FORWARD, Accumulator.SPLIT)
            .withAccumulator(Product.INPUT_GRADIENT, Accumulator.FAST)
            .withAccumulator(Product.WEIGHT_GRADIENT, Accumulator.FAST)),
    BLOCK_HYBRID(Float8BlockScaling.standard().withFormat(Format.HYBRID)),
    BLOCK_FLOAT32(Float8BlockScaling.standard().withScales(Scales.FLOAT32)),
    BLOCK_LEAST_MAGNITUDE(Float8BlockScaling.standard()
            .withQuantization(
                    Role.INPUT,
                    QuantizationConfig.standard().withScales(Scales.POWER_OF_2).withAmaxEpsilon(4))
            .withQuantization(Role.WEIGHT, QuantizationConfig.standard().withAmaxEpsilon(1)));

    /** Every other layer of the kinds without a recipe of their own is BF16. */
    private static final Precision[] PRECISIONS = {
        Precision.BF16,
        Precision.FP8_DELAYED,
        Precision.BF16,
        Precision.FP8_CURRENT,
        Precision.BF16,
        Precision.FP8_BLOCK
    };

    private final @Nullable Recipe recipe;
    private final Function<OptionCases, LayerCase> draw;

    OptionKind(Function<OptionCases, LayerCase> draw) {
        recipe = null;
        this.draw = draw;
    }

    OptionKind(Recipe recipe) {
        this(recipe, OptionCases::any);
    }

    OptionKind(Recipe recipe, Function<OptionCases, LayerCase> draw) {
        this.recipe = recipe;
        this.draw = draw;
    }

    /** Draws a layer; where the kind has no recipe of its own, precisions change from turn to turn. */
    LayerCase draw(int turn, RandomGenerator random) {
        Precision precision = switch (recipe) {
            case null -> PRECISIONS[turn % PRECISIONS.length];
            case DelayedScaling delayed -> Precision.FP8_DELAYED;
            case Float8CurrentScaling current -> Precision.FP8_CURRENT;
            case Float8BlockScaling block -> Precision.FP8_BLOCK;
            default -> throw new AssertionError(recipe);
        };
        LayerCase drawn = draw.apply(new OptionCases(precision, random));
        return recipe == null ? drawn : drawn.with(recipe);
    }
}
