package dev.chagres.drawn;

import dev.chagres.DType;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.RotaryConfig;
import dev.chagres.conformance.TokenRows;
import dev.chagres.drawn.DrawnRecipe.Group;
import dev.chagres.drawn.DrawnScores.Added;
import dev.chagres.drawn.DrawnScores.Mask;
import dev.chagres.drawn.DrawnScores.Owner;
import dev.chagres.drawn.DrawnScores.Slopes;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.Bias;
import dev.chagres.layer.MlpConfig.Recomputation;
import dev.chagres.layer.NormConfig;
import dev.chagres.layer.QkNorm;
import dev.chagres.layer.TransformerLayerConfig.BranchOrder;
import dev.chagres.layer.TransformerLayerConfig.NormPlacement;
import dev.chagres.layer.TransformerLayerConfig.ResidualSource;
import dev.chagres.parameter.WeightStorage;
import dev.chagres.recipe.BackwardOverride;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Float8BlockScaling;
import dev.chagres.recipe.Float8CurrentScaling;
import dev.chagres.recipe.Format;
import dev.chagres.recipe.Quantizations;
import dev.chagres.recipe.Recipe;
import dev.chagres.te.Activation;
import dev.chagres.te.AttentionProblem.Order;
import dev.chagres.te.ClampedSwiglu;
import dev.chagres.te.FusedRope.Pairing;
import dev.chagres.te.Gemm.Accumulator;
import dev.chagres.te.Normalization.Gamma;
import dev.chagres.te.QkvFormat;
import dev.chagres.te.QuantizationConfig;
import dev.chagres.te.QuantizationConfig.Scales;
import dev.chagres.te.RecipeUpdates.AmaxAlgorithm;
import dev.chagres.te.SoftmaxType;
import java.util.ArrayList;
import java.util.List;
import java.util.function.BiPredicate;
import java.util.function.Function;
import java.util.function.Predicate;

/**
 * An option that layers are drawn with. {@code DrawnLayersTest} fails where one is drawn too seldom.
 *
 * @param name in reports
 * @param has whether a layer has it, which explains so what computes it
 */
record DrawnOption(String name, BiPredicate<DrawnLayer, String> has) {
    /** Returns all options. */
    static List<DrawnOption> all() {
        List<DrawnOption> options = new ArrayList<>();
        types(options);
        arrangements(options);
        attentions(options);
        scores(options);
        kernels(options);
        tokens(options);
        rotations(options);
        recipes(options);
        delayed(options);
        return options;
    }

    private static void add(List<DrawnOption> options, String name, Predicate<DrawnLayer> has) {
        options.add(new DrawnOption(name, (drawn, explanation) -> has.test(drawn)));
    }

    /** Adds an option for each of {@code values}. */
    private static <T> void addEach(
            List<DrawnOption> options, T[] values, String name, BiPredicate<DrawnLayer, T> has) {
        for (T value : values) {
            add(options, name + " " + value, drawn -> has.test(drawn, value));
        }
    }

    private static void types(List<DrawnOption> options) {
        addEach(
                options,
                new DType[] {DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16},
                "type",
                (drawn, dtype) -> drawn.dtype() == dtype);
        add(options, "FLOAT16 and a recipe", drawn -> drawn.casts() && drawn.dtype() == DType.FLOAT16);
    }

    private static void arrangements(List<DrawnOption> options) {
        addEach(
                options,
                BranchOrder.values(),
                "branches",
                (drawn, order) -> drawn.config().branchOrder() == order);
        addEach(
                options,
                ResidualSource.values(),
                "residual",
                (drawn, source) -> drawn.config().residual() == source);
        addEach(
                options,
                NormPlacement.values(),
                "norm",
                (drawn, place) -> drawn.config().normPlacement() == place);
        addEach(
                options,
                NormConfig.Kind.values(),
                "norm",
                (drawn, kind) -> drawn.config().norm().kind() == kind);
        addEach(
                options,
                Gamma.values(),
                "gamma",
                (drawn, gamma) -> drawn.config().norm().gamma() == gamma);
        addEach(
                options,
                Bias.values(),
                "bias of products",
                (drawn, bias) -> drawn.config().bias() == bias);
        addEach(
                options,
                Recomputation.values(),
                "MLP recomputes",
                (drawn, what) -> drawn.config().mlp().recomputation() == what);
        addEach(options, DrawnLayer.Calls.values(), "calls", (drawn, calls) -> drawn.calls() == calls);
        add(options, "cross-attention", DrawnLayer::decodes);
        add(options, "hidden dropout", drawn -> !drawn.config().hiddenDropout().isNone());
        add(options, "drop path", drawn -> !drawn.config().dropPath().isNone());
        activations(options);
    }

    private static void activations(List<DrawnOption> options) {
        for (Activation activation : Activation.values()) {
            if (DrawnLayers.draws(activation)) {
                add(
                        options,
                        "activation " + activation,
                        drawn -> drawn.config().mlp().activation() == activation);
            }
        }
        if (DrawnLayers.draws(Activation.CLAMPED_SWIGLU)) {
            add(
                    options,
                    "clamped SwiGLU with other numbers",
                    drawn -> drawn.config().mlp().activation() == Activation.CLAMPED_SWIGLU
                            && !drawn.config().mlp().clampedSwiglu().equals(ClampedSwiglu.standard()));
        }
    }

    /** Adds an option of either attention. */
    private static void ofAttention(List<DrawnOption> options, String name, Predicate<AttentionConfig> has) {
        add(options, name, drawn -> drawn.attentions().stream().anyMatch(has));
    }

    private static void ofScores(List<DrawnOption> options, String name, Predicate<DrawnScores> has) {
        add(options, name, drawn -> drawn.allScores().stream().anyMatch(has));
    }

    private static void attentions(List<DrawnOption> options) {
        ofAttention(options, "grouped heads", config -> config.keyHeads() < config.heads());
        ofAttention(options, "soft cap", config -> config.softcap() > 0);
        ofAttention(options, "attention dropout", config -> !config.dropout().isNone());
        ofAttention(options, "deterministic", config -> config.order() == Order.DETERMINISTIC);
        ofAttention(options, "window", config -> config.mask().windowLeft() >= 0);
        for (AttentionMask.Kind kind : AttentionMask.Kind.values()) {
            ofAttention(options, "mask " + kind, config -> config.mask().kind() == kind);
            add(
                    options,
                    "ALiBi under " + kind,
                    drawn -> drawn.config().attention().mask().kind() == kind
                            && drawn.scores().slopes() != Slopes.NONE);
        }
        for (SoftmaxType type : SoftmaxType.values()) {
            ofAttention(options, "softmax " + type, config -> config.softmaxType() == type);
        }
        for (QkNorm.Kind kind : QkNorm.Kind.values()) {
            ofAttention(
                    options, "norm of heads " + kind, config -> config.qkNorm().kind() == kind);
        }
        for (QkNorm.Place place : QkNorm.Place.values()) {
            ofAttention(
                    options,
                    "norm of heads " + place,
                    config -> !config.qkNorm().isNone() && config.qkNorm().place() == place);
        }
    }

    private static void scores(List<DrawnOption> options) {
        for (Slopes slopes : Slopes.values()) {
            ofScores(options, "ALiBi " + slopes, scores -> scores.slopes() == slopes);
        }
        for (Added added : Added.values()) {
            ofScores(options, "bias of scores " + added, scores -> scores.bias() == added);
        }
        for (Owner owner : Owner.values()) {
            ofScores(options, "bias of " + owner, scores -> scores.bias() != Added.NOTHING && scores.biasOf() == owner);
            ofScores(options, "mask of " + owner, scores -> scores.mask() != Mask.NONE && scores.maskOf() == owner);
        }
        add(
                options,
                "changed scores in cross-attention",
                drawn -> !drawn.crossScores().isPlain());
        add(
                options,
                "soft cap, ALiBi, bias and mask at once",
                drawn -> drawn.config().attention().softcap() > 0
                        && drawn.scores().slopes() != Slopes.NONE
                        && drawn.scores().bias() != Added.NOTHING
                        && drawn.scores().mask() != Mask.NONE);
    }

    private static void kernels(List<DrawnOption> options) {
        String fused = "te_fused_attn_fwd_v2";
        explained(options, "attention by cuDNN's kernels", fused);
        explained(options, "attention by our own kernels", "ops_attention_forward");
        explained(options, "bias by cuDNN's kernels", fused, "; bias of SharedInput");
        explained(options, "ALiBi by cuDNN's kernels", fused, "; ALiBi");
        explained(options, "sinks by cuDNN's kernels", fused, "; softmax LEARNABLE");
        explained(options, "FP8_DPA in eight bits", "; in eight bits by FP8_DPA");
        explained(options, "FP8_MHA in eight bits", "; in eight bits by FP8_MHA");
        explained(options, "attention that stays in 16 bits", "; not in eight bits by FP8_");
    }

    /** Adds an option that a line of what the layer explains shows: it has all of {@code parts}. */
    private static void explained(List<DrawnOption> options, String name, String... parts) {
        options.add(new DrawnOption(
                name,
                (drawn, explanation) -> explanation
                        .lines()
                        .anyMatch(line -> List.of(parts).stream().allMatch(line::contains))));
    }

    private static void tokens(List<DrawnOption> options) {
        addEach(
                options,
                QkvFormat.values(),
                "arrangement",
                (drawn, format) -> drawn.tokens().format() == format);
        addEach(
                options,
                QkvFormat.values(),
                "memory's arrangement",
                (drawn, format) -> drawn.decodes() && drawn.keys().format() == format);
        add(options, "gaps between sequences", drawn -> hasGaps(drawn.tokens()));
        add(options, "gaps between the memory's sequences", drawn -> drawn.decodes() && hasGaps(drawn.keys()));
        add(options, "padded sequences", drawn -> isPadded(drawn.tokens()));
        add(
                options,
                "full sequences over a padded memory",
                drawn -> drawn.decodes()
                        && drawn.tokens().format() != QkvFormat.THD
                        && !isPadded(drawn.tokens())
                        && isPadded(drawn.keys()));
        add(options, "empty sequences", drawn -> drawn.tokens().lengths().contains(0));
        add(
                options,
                "empty sequences of the memory",
                drawn -> drawn.decodes() && drawn.keys().lengths().contains(0));
        add(options, "start positions", drawn -> drawn.starts().stream().anyMatch(start -> start > 0));
    }

    private static boolean hasGaps(TokenRows rows) {
        return rows.gaps().stream().anyMatch(gap -> gap > 0);
    }

    private static boolean isPadded(TokenRows rows) {
        return rows.format() != QkvFormat.THD && rows.paddingRows().length > 0;
    }

    private static void rotations(List<DrawnOption> options) {
        add(options, "no rotation", drawn -> drawn.rotary() == null);
        rotated(options, "rotation", rotary -> true);
        for (Pairing pairing : Pairing.values()) {
            rotated(options, "rotation of " + pairing, rotary -> rotary.pairing() == pairing);
        }
        rotated(options, "rotation of a part of a head", rotary -> rotary.rotatedDim() < rotary.headDim());
        rotated(
                options,
                "rotation by given frequencies",
                rotary -> !rotary.frequencies().isEmpty());
        rotated(options, "interpolated rotation", rotary -> rotary.interpolationFactor() != 1);
        rotated(options, "rotation scaled as in Llama 3", rotary -> rotary.scaling() != null);
    }

    private static void rotated(List<DrawnOption> options, String name, Predicate<RotaryConfig> has) {
        add(options, name, drawn -> {
            RotaryConfig rotary = drawn.rotary();
            return rotary != null && has.test(rotary);
        });
    }

    /** Adds an option of a recipe that casts in the layer. */
    private static <R extends Recipe> void cast(
            List<DrawnOption> options, Class<R> kind, String name, Predicate<R> has) {
        add(options, kind.getSimpleName() + " " + name, drawn -> {
            DrawnRecipe recipe = drawn.recipe();
            return recipe != null
                    && recipe.casts()
                    && kind.isInstance(recipe.recipe())
                    && has.test(kind.cast(recipe.recipe()));
        });
    }

    private static void recipes(List<DrawnOption> options) {
        for (Class<? extends Recipe> kind :
                List.of(DelayedScaling.class, Float8CurrentScaling.class, Float8BlockScaling.class)) {
            for (Format format : Format.values()) {
                cast(options, kind, format.name(), recipe -> recipe.format() == format);
            }
            for (BackwardOverride override : overrides(kind)) {
                cast(options, kind, "override " + override, recipe -> recipe.backwardOverride() == override);
            }
            add(options, kind.getSimpleName() + " with QUANTIZED weights", drawn -> {
                DrawnRecipe recipe = drawn.recipe();
                return recipe != null
                        && kind.isInstance(recipe.recipe())
                        && recipe.storage() == WeightStorage.QUANTIZED;
            });
        }
        add(options, "group that keeps the model's type", drawn -> {
            DrawnRecipe recipe = drawn.recipe();
            return recipe != null && recipe.group() == Group.KEPT;
        });
        quantizations(options, Float8CurrentScaling.class, recipe -> configs(recipe.quantizations()));
        quantizations(options, Float8BlockScaling.class, recipe -> configs(recipe.quantizations()));
        for (Recipe.Product product : Recipe.Product.values()) {
            for (Accumulator sums : Accumulator.values()) {
                String name = product + " " + sums;
                cast(options, DelayedScaling.class, name, recipe -> recipe.accumulator(product) == sums);
                cast(options, Float8CurrentScaling.class, name, recipe -> recipe.accumulator(product) == sums);
            }
        }
    }

    private static List<QuantizationConfig> configs(Quantizations all) {
        return List.of(all.input(), all.weight(), all.gradient());
    }

    /** Adds how scales are found; {@code roles} gives that of inputs, weights and gradients. */
    private static <R extends Recipe> void quantizations(
            List<DrawnOption> options, Class<R> kind, Function<R, List<QuantizationConfig>> roles) {
        List<String> names = List.of("inputs", "weights", "gradients");
        for (int i = 0; i < names.size(); i++) {
            int role = i;
            for (Scales scales : Scales.values()) {
                cast(
                        options,
                        kind,
                        "scales " + scales + " of " + names.get(i),
                        recipe -> roles.apply(recipe).get(role).scales() == scales);
            }
            cast(
                    options,
                    kind,
                    "least magnitude of " + names.get(i),
                    recipe -> roles.apply(recipe).get(role).amaxEpsilon() > 0);
        }
        cast(
                options,
                kind,
                "scales found otherwise by role",
                recipe -> roles.apply(recipe).stream().distinct().count() > 1);
    }

    private static void delayed(List<DrawnOption> options) {
        cast(options, DelayedScaling.class, "margin", recipe -> recipe.margin() > 0);
        for (AmaxAlgorithm algorithm : AmaxAlgorithm.values()) {
            cast(options, DelayedScaling.class, algorithm.name(), recipe -> recipe.amaxComputeAlgorithm() == algorithm);
        }
        for (int length : new int[] {1, 2, 16, 1024}) {
            cast(options, DelayedScaling.class, "history " + length, recipe -> recipe.amaxHistoryLength() == length);
        }
    }

    /** Returns what TE has of overrides for a recipe. */
    private static List<BackwardOverride> overrides(Class<? extends Recipe> kind) {
        return kind == DelayedScaling.class ? List.of(BackwardOverride.NONE) : List.of(BackwardOverride.values());
    }
}
