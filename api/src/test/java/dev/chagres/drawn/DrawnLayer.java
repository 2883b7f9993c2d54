package dev.chagres.drawn;

import dev.chagres.DType;
import dev.chagres.attention.RotaryConfig;
import dev.chagres.conformance.TokenRows;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.CrossAttentionConfig;
import dev.chagres.layer.TransformerLayerConfig;
import java.util.List;
import java.util.Objects;
import org.jspecify.annotations.Nullable;

/**
 * A layer and what it reads.
 *
 * @param dtype of the model
 * @param recipe of its products; null: they are computed in the model's type
 * @param config the layer
 * @param rotary rotation of queries and keys, null for none
 * @param scores what is done with those of self-attention
 * @param crossScores what is done with those of cross-attention
 * @param tokens the sequences of x
 * @param starts first position of each sequence; empty: all begin at 0
 * @param keys the sequences of the memory, which a decoder's layer reads
 * @param calls how the layer is called
 * @param seed of weights, inputs and dropout
 */
record DrawnLayer(
        DType dtype,
        @Nullable DrawnRecipe recipe,
        TransformerLayerConfig config,
        @Nullable RotaryConfig rotary,
        DrawnScores scores,
        DrawnScores crossScores,
        TokenRows tokens,
        List<Integer> starts,
        TokenRows keys,
        Calls calls,
        long seed) {
    static final int MEMORY = 24;

    /** How often a step calls the layer, and whether backward computes it again. */
    enum Calls {
        ONE,
        TWO_MICRO_BATCHES,
        RECOMPUTED,
        RECOMPUTED_MICRO_BATCHES;

        int microBatches() {
            return this == TWO_MICRO_BATCHES || this == RECOMPUTED_MICRO_BATCHES ? 2 : 1;
        }

        boolean recomputes() {
            return this == RECOMPUTED || this == RECOMPUTED_MICRO_BATCHES;
        }
    }

    boolean decodes() {
        return config.crossAttention() != null;
    }

    AttentionConfig crossAttention() {
        CrossAttentionConfig cross = Objects.requireNonNull(config.crossAttention());
        return cross.attention();
    }

    /** Returns the configurations of both attentions, or of the one that there is. */
    List<AttentionConfig> attentions() {
        return decodes() ? List.of(config.attention(), crossAttention()) : List.of(config.attention());
    }

    /** Returns what is done with the scores of both attentions, or of the one that there is. */
    List<DrawnScores> allScores() {
        return decodes() ? List.of(scores, crossScores) : List.of(scores);
    }

    int hidden() {
        return Math.toIntExact(config.hidden());
    }

    /** Returns whether products of the layer are in eight bits. */
    boolean casts() {
        DrawnRecipe present = recipe;
        return present != null && present.casts();
    }
}
