package dev.chagres.besidete;

import dev.chagres.Device;
import dev.chagres.attention.RotaryConfig;
import dev.chagres.conformance.TokenRows;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Float8BlockScaling;
import dev.chagres.recipe.Float8CurrentScaling;
import dev.chagres.recipe.Recipe;
import dev.chagres.te.AttentionProblem.Order;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import org.jspecify.annotations.Nullable;

/**
 * A layer that both sides compute, in BFLOAT16 but for the factors of FP8 products.
 *
 * @param precision of the products' factors
 * @param recipe of the products, null in BF16
 * @param config the layer
 * @param rotary rotation of queries and keys, null for none
 * @param scores what is done with the scores of self-attention
 * @param owner whom an element of a bias or of a mask is of
 * @param tokens the sequences of x
 * @param keys the sequences of the memory, which a decoder's layer reads
 * @param start the position of each sequence's first token
 * @param course what happens in its steps
 * @param seed of weights and inputs
 */
record LayerCase(
        Precision precision,
        @Nullable Recipe recipe,
        TransformerLayerConfig config,
        @Nullable RotaryConfig rotary,
        Scores scores,
        Owner owner,
        TokenRows tokens,
        TokenRows keys,
        int start,
        Course course,
        long seed)
        implements DrawnCase {
    /** What a first step's inputs are multiplied by where a recipe remembers magnitudes: largest and latest then differ. */
    private static final int WARM = 2;

    /** Layers with the recipe of {@code precision} as it is, whose sequences begin at position 0. */
    LayerCase(
            Precision precision,
            TransformerLayerConfig config,
            @Nullable RotaryConfig rotary,
            Scores scores,
            TokenRows tokens,
            TokenRows keys,
            long seed) {
        this(precision, precision.recipe(), config, rotary, scores, Owner.ALL, tokens, keys, 0, Course.STANDARD, seed);
    }

    /**
     * What happens in the steps.
     *
     * @param jump what the gradient of y is multiplied by in the last step, a power of two
     * @param updates steps of AdamW, which are then all steps; 0 for none
     */
    record Course(int jump, int updates) {
        static final Course STANDARD = new Course(1, 0);
    }

    /** What is done with scores. */
    enum Scores {
        PLAIN,
        /** The usual slopes. */
        ALIBI,
        /** Slopes of one's own. */
        SLOPES,
        BIAS,
        BIAS_BEFORE_SCALE,
        /** Some keys are hidden from some queries. */
        MASK;

        /** The word of {@code compare_with_te.py}. */
        String word() {
            return name().toLowerCase(Locale.ROOT).replace('_', '-');
        }
    }

    /** Whom an element of a bias or of a mask is of. */
    enum Owner {
        ALL,
        HEAD,
        SEQUENCE,
        HEAD_OF_SEQUENCE;

        int sequences(int all) {
            return this == SEQUENCE || this == HEAD_OF_SEQUENCE ? all : 1;
        }

        int heads(int all) {
            return this == HEAD || this == HEAD_OF_SEQUENCE ? all : 1;
        }
    }

    /** Types of the factors of products. */
    enum Precision {
        BF16(null, 8, 16),
        FP8_DELAYED(DelayedScaling.standard(), 16, 16),
        FP8_CURRENT(Float8CurrentScaling.standard(), 16, 16),
        FP8_BLOCK(Float8BlockScaling.standard(), 128, 128);

        private final @Nullable Recipe recipe;
        private final int columnMultiple;
        private final int tokenMultiple;

        Precision(@Nullable Recipe recipe, int columnMultiple, int tokenMultiple) {
            this.recipe = recipe;
            this.columnMultiple = columnMultiple;
            this.tokenMultiple = tokenMultiple;
        }

        @Nullable
        Recipe recipe() {
            return recipe;
        }

        /** Of which TE for PyTorch wants the columns of every product to be a multiple. */
        int columnMultiple() {
            return columnMultiple;
        }

        /** Of which it wants the tokens to be a multiple. */
        int tokenMultiple() {
            return tokenMultiple;
        }

        /** The word of {@code compare_with_te.py}. */
        String word() {
            return name().toLowerCase(Locale.ROOT).replace('_', '-');
        }
    }

    @Override
    public List<String> options() {
        return CaseOption.of(this);
    }

    @Override
    public void write(Device device, Path file) {
        LayerWriter.write(device, this, file);
    }

    LayerCase with(@Nullable Recipe newRecipe) {
        return new LayerCase(precision, newRecipe, config, rotary, scores, owner, tokens, keys, start, course, seed);
    }

    LayerCase with(TransformerLayerConfig newConfig) {
        return new LayerCase(precision, recipe, newConfig, rotary, scores, owner, tokens, keys, start, course, seed);
    }

    LayerCase with(Scores newScores, Owner newOwner) {
        return new LayerCase(precision, recipe, config, rotary, newScores, newOwner, tokens, keys, start, course, seed);
    }

    LayerCase with(TokenRows newTokens, TokenRows newKeys) {
        return new LayerCase(precision, recipe, config, rotary, scores, owner, newTokens, newKeys, start, course, seed);
    }

    LayerCase with(@Nullable RotaryConfig newRotary, int newStart) {
        return new LayerCase(precision, recipe, config, newRotary, scores, owner, tokens, keys, newStart, course, seed);
    }

    LayerCase with(Course newCourse) {
        return new LayerCase(precision, recipe, config, rotary, scores, owner, tokens, keys, start, newCourse, seed);
    }

    boolean decodes() {
        return config.crossAttention() != null;
    }

    /** Returns whether attention adds in the same order each time. */
    boolean isDeterministic() {
        return config.attention().order() == Order.DETERMINISTIC;
    }

    /** Returns what the inputs of each step are multiplied by; the last is compared. A recipe learns its scales in those before. */
    List<Integer> steps() {
        if (course.updates > 0) {
            return Collections.nCopies(course.updates, 1);
        }
        if (recipe == null) {
            return List.of(1);
        }
        return recipe instanceof DelayedScaling delayed && !delayed.equals(DelayedScaling.standard())
                ? List.of(WARM, 1, 1)
                : List.of(1, 1);
    }

    /** Returns what the gradient of y of each step is multiplied by. */
    List<Integer> gradients() {
        List<Integer> factors = new ArrayList<>(Collections.nCopies(steps().size(), 1));
        factors.set(factors.size() - 1, course.jump);
        return factors;
    }
}
