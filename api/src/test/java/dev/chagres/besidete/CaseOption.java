package dev.chagres.besidete;

import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.RotaryConfig;
import dev.chagres.besidete.LayerCase.Scores;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.CrossAttentionConfig;
import dev.chagres.recipe.AttentionPrecision;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Float8BlockScaling;
import dev.chagres.recipe.Float8CurrentScaling;
import dev.chagres.recipe.Format;
import dev.chagres.recipe.Quantizations;
import dev.chagres.recipe.Recipe;
import dev.chagres.recipe.Recipe.Product;
import dev.chagres.te.FusedRope.Pairing;
import dev.chagres.te.Gemm.Accumulator;
import dev.chagres.te.QkvFormat;
import dev.chagres.te.QuantizationConfig;
import dev.chagres.te.QuantizationConfig.Scales;
import dev.chagres.te.RecipeUpdates.AmaxAlgorithm;
import dev.chagres.te.SoftmaxType;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Function;
import java.util.function.Predicate;
import org.jspecify.annotations.Nullable;

/**
 * An option that layers are drawn with beside TE. The files name those of each layer, and {@code compare_with_te.py} counts them.
 *
 * @param name in reports
 * @param has whether a layer has it
 */
record CaseOption(String name, Predicate<LayerCase> has) {
    private static final List<CaseOption> ALL = all();

    /** Returns the names of a layer's options. */
    static List<String> of(LayerCase drawn) {
        return ALL.stream()
                .filter(option -> option.has.test(drawn))
                .map(CaseOption::name)
                .toList();
    }

    /** Returns the names of all options of layers. */
    static List<String> names() {
        return ALL.stream().map(CaseOption::name).toList();
    }

    private static List<CaseOption> all() {
        List<CaseOption> options = new ArrayList<>();
        sequences(options);
        attention(options);
        rotation(options);
        delayed(options);
        measuring(options, Float8CurrentScaling.class, recipe -> configs(recipe.quantizations()));
        measuring(options, Float8BlockScaling.class, recipe -> configs(recipe.quantizations()));
        sums(options);
        return options;
    }

    private static void sequences(List<CaseOption> options) {
        for (QkvFormat format : QkvFormat.values()) {
            add(
                    options,
                    "encoder in " + format,
                    drawn -> !drawn.decodes() && drawn.tokens().format() == format);
            add(
                    options,
                    "decoder in " + format,
                    drawn -> drawn.decodes() && drawn.tokens().format() == format);
        }
        add(options, "gaps between sequences", drawn -> hasGaps(drawn.tokens().gaps()));
        add(
                options,
                "gaps between the memory's sequences",
                drawn -> drawn.decodes() && hasGaps(drawn.keys().gaps()));
    }

    private static boolean hasGaps(List<Integer> gaps) {
        return gaps.stream().anyMatch(gap -> gap > 0);
    }

    private static void attention(List<CaseOption> options) {
        for (Scores scores : Scores.values()) {
            add(options, "scores " + scores, drawn -> drawn.scores() == scores);
        }
        for (LayerCase.Owner owner : LayerCase.Owner.values()) {
            add(options, "bias of " + owner, drawn -> isBias(drawn.scores()) && drawn.owner() == owner);
            add(options, "mask of " + owner, drawn -> drawn.scores() == Scores.MASK && drawn.owner() == owner);
        }
        add(options, "deterministic", LayerCase::isDeterministic);
        add(options, "soft cap", drawn -> drawn.config().attention().softcap() > 0);
        for (SoftmaxType type : SoftmaxType.values()) {
            add(options, "softmax " + type, drawn -> drawn.config().attention().softmaxType() == type);
        }
        for (AttentionMask.Kind kind : AttentionMask.Kind.values()) {
            add(
                    options,
                    "mask " + kind,
                    drawn -> drawn.config().attention().mask().kind() == kind);
            add(options, "cross-attention's mask " + kind, drawn -> {
                AttentionConfig cross = cross(drawn);
                return cross != null && cross.mask().kind() == kind;
            });
        }
        add(options, "window", drawn -> drawn.config().attention().mask().windowLeft() >= 0);
        add(options, "cross-attention's window", drawn -> {
            AttentionConfig cross = cross(drawn);
            return cross != null && cross.mask().windowLeft() >= 0;
        });
    }

    private static boolean isBias(Scores scores) {
        return scores == Scores.BIAS || scores == Scores.BIAS_BEFORE_SCALE;
    }

    private static @Nullable AttentionConfig cross(LayerCase drawn) {
        CrossAttentionConfig present = drawn.config().crossAttention();
        return present == null ? null : present.attention();
    }

    private static void rotation(List<CaseOption> options) {
        for (Pairing pairing : Pairing.values()) {
            add(options, "rotation of " + pairing, drawn -> {
                RotaryConfig rotary = drawn.rotary();
                return rotary != null && rotary.pairing() == pairing;
            });
        }
        add(options, "start position", drawn -> drawn.start() > 0);
    }

    private static void delayed(List<CaseOption> options) {
        recipe(options, DelayedScaling.class);
        cast(options, DelayedScaling.class, "margin", recipe -> recipe.margin() != 0);
        cast(options, DelayedScaling.class, "history of its own", recipe -> recipe.amaxHistoryLength() < 1024);
        for (AmaxAlgorithm algorithm : AmaxAlgorithm.values()) {
            cast(options, DelayedScaling.class, algorithm.name(), recipe -> recipe.amaxComputeAlgorithm() == algorithm);
        }
        for (AttentionPrecision attention : AttentionPrecision.values()) {
            cast(options, DelayedScaling.class, attention.name(), recipe -> recipe.attention() == attention);
        }
    }

    private static <R extends Recipe> void recipe(List<CaseOption> options, Class<R> kind) {
        for (Format format : Format.values()) {
            cast(options, kind, format.name(), recipe -> recipe.format() == format);
        }
    }

    private static List<QuantizationConfig> configs(Quantizations all) {
        return List.of(all.input(), all.weight(), all.gradient());
    }

    /** Adds what both recipes have that measure what they cast. */
    private static <R extends Recipe> void measuring(
            List<CaseOption> options, Class<R> kind, Function<R, List<QuantizationConfig>> roles) {
        recipe(options, kind);
        for (Scales scales : Scales.values()) {
            cast(
                    options,
                    kind,
                    "scales " + scales,
                    recipe -> roles.apply(recipe).getFirst().scales() == scales);
        }
        cast(
                options,
                kind,
                "least magnitude",
                recipe -> roles.apply(recipe).getFirst().amaxEpsilon() > 0);
        cast(
                options,
                kind,
                "scales by role",
                recipe -> roles.apply(recipe).stream().distinct().count() > 1);
    }

    private static void sums(List<CaseOption> options) {
        cast(
                options,
                Float8CurrentScaling.class,
                "forward SPLIT",
                recipe -> recipe.accumulator(Product.FORWARD) == Accumulator.SPLIT);
        cast(
                options,
                Float8CurrentScaling.class,
                "gradients FAST",
                recipe -> recipe.accumulator(Product.INPUT_GRADIENT) == Accumulator.FAST);
    }

    private static void add(List<CaseOption> options, String name, Predicate<LayerCase> has) {
        options.add(new CaseOption(name, has));
    }

    private static <R extends Recipe> void cast(
            List<CaseOption> options, Class<R> kind, String name, Predicate<R> has) {
        add(options, kind.getSimpleName() + " " + name, drawn -> {
            Recipe recipe = drawn.recipe();
            return kind.isInstance(recipe) && has.test(kind.cast(recipe));
        });
    }
}
