package dev.chagres.besidete;

import dev.chagres.attention.RotaryConfig;
import dev.chagres.conformance.TokenRows;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Float8BlockScaling;
import dev.chagres.recipe.Float8CurrentScaling;
import dev.chagres.recipe.Recipe;
import org.jspecify.annotations.Nullable;

/**
 * A layer that both sides compute, in BFLOAT16 but for the factors of FP8 products.
 *
 * @param precision of the products' factors
 * @param config the layer
 * @param rotary rotation of queries and keys, null for none
 * @param scores what is added to the scores of self-attention
 * @param tokens the sequences of x
 * @param keys the sequences of the memory, which a decoder's layer reads
 * @param seed of weights and inputs
 */
record LayerCase(
        Precision precision,
        TransformerLayerConfig config,
        @Nullable RotaryConfig rotary,
        Scores scores,
        TokenRows tokens,
        TokenRows keys,
        long seed) {

    /** What is added to scores. */
    enum Scores {
        PLAIN,
        ALIBI
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
            return name().toLowerCase(java.util.Locale.ROOT).replace('_', '-');
        }
    }

    boolean decodes() {
        return config.crossAttention() != null;
    }
}
