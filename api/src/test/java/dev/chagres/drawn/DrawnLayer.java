package dev.chagres.drawn;

import dev.chagres.DType;
import dev.chagres.attention.RotaryConfig;
import dev.chagres.conformance.TokenRows;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Float8BlockScaling;
import dev.chagres.recipe.Float8CurrentScaling;
import dev.chagres.recipe.Recipe;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * A layer and what it reads.
 *
 * @param precision types of weights and products
 * @param config the layer
 * @param rotary rotation of queries and keys, null for none
 * @param tokens the sequences of x
 * @param starts first position of each sequence; empty: all begin at 0
 * @param keys the sequences of the memory, which a decoder's layer reads
 * @param seed of weights, inputs and dropout
 */
record DrawnLayer(
        Precision precision,
        TransformerLayerConfig config,
        @Nullable RotaryConfig rotary,
        TokenRows tokens,
        List<Integer> starts,
        TokenRows keys,
        long seed) {
    static final int MEMORY = 24;

    /** Types of weights and of the factors of products. */
    enum Precision {
        FLOAT32(DType.FLOAT32, null),
        BFLOAT16(DType.BFLOAT16, null),
        FLOAT16(DType.FLOAT16, null),
        DELAYED(DType.BFLOAT16, DelayedScaling.standard()),
        CURRENT(DType.BFLOAT16, Float8CurrentScaling.standard()),
        BLOCK(DType.BFLOAT16, Float8BlockScaling.standard());

        private final DType dtype;
        private final @Nullable Recipe recipe;

        Precision(DType dtype, @Nullable Recipe recipe) {
            this.dtype = dtype;
            this.recipe = recipe;
        }

        DType dtype() {
            return dtype;
        }

        @Nullable
        Recipe recipe() {
            return recipe;
        }
    }

    boolean decodes() {
        return config.crossAttention() != null;
    }

    int hidden() {
        return Math.toIntExact(config.hidden());
    }
}
