package dev.chagres.sharding;

import dev.chagres.attention.AttentionMask;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.Dropout;
import dev.chagres.layer.MlpConfig;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Recomputed;

/** What differs from a plain encoder, and on how many ranks a strategy trains it. */
enum StrategyVariant {
    PLAIN(2),
    /** The number of ranks does not divide what they shard: parameters, rows of the vocabulary, tokens or layers; one has no sequences. */
    UNEVEN(3),
    /** The embedding, the first layer, and one parameter of the second. */
    FROZEN(2),
    /** Low-rank adapters of every product of the layers, whose own weights are frozen; the head is trained. */
    ADAPTED(2),
    /** The head reads the embedding's table. */
    TIED(4),
    /** Several micro-batches, and every third step one more. */
    ACCUMULATED(2),
    RECOMPUTED(3),
    RECOMPUTED_NORMS(3),
    HIDDEN_DROPOUT(4),
    ATTENTION_DROPOUT(2),
    DROP_PATH(2),
    CAUSAL(3);

    private static final Dropout DROPOUT = Dropout.of(0.1f);
    private static final int HEADS = 24;
    private static final int HEAD_DIM = 8;
    private final int ranks;

    StrategyVariant(int ranks) {
        this.ranks = ranks;
    }

    /**
     * Returns on how many ranks a strategy trains this: of a hybrid two copies of two or three; of what splits layers four where the model
     * is uneven, for the ranks divide the heads and the columns inside.
     */
    int ranks(StrategyKind kind) {
        if (kind.isHybrid()) {
            return ranks % 2 == 0 ? 4 : 6;
        }
        boolean splits = kind == StrategyKind.TP || kind == StrategyKind.SP;
        return this == UNEVEN && splits ? 4 : ranks;
    }

    int vocabulary() {
        return this == UNEVEN ? 31 : 24;
    }

    boolean isTied() {
        return this == TIED;
    }

    Layer wrap(Layer layer) {
        return this == RECOMPUTED ? new Recomputed(layer) : layer;
    }

    TransformerLayerConfig layer() {
        AttentionConfig attention = AttentionConfig.of(
                        HEADS, HEAD_DIM, this == CAUSAL ? AttentionMask.causal() : AttentionMask.none())
                .deterministic();
        TransformerLayerConfig plain = TransformerLayerConfig.encoder(
                        StrategyModel.HIDDEN, this == ATTENTION_DROPOUT ? attention.withDropout(DROPOUT) : attention)
                .withMlp(MlpConfig.gelu(StrategyModel.HIDDEN).withInner(this == UNEVEN ? 52 : 48));
        return switch (this) {
            case HIDDEN_DROPOUT -> plain.withHiddenDropout(DROPOUT);
            case DROP_PATH -> plain.withDropPath(DROPOUT);
            case RECOMPUTED_NORMS -> plain.withRecomputation(TransformerLayerConfig.Recomputation.NORMS);
            default -> plain;
        };
    }

    /** Returns the variant whose steps one rank takes: recomputation changes none. */
    StrategyVariant onOneRank() {
        return this == RECOMPUTED || this == RECOMPUTED_NORMS ? PLAIN : this;
    }

    /** Returns the sequences of a part of a step, of mixed lengths; 24 tokens, which all numbers of ranks divide, but for uneven ones. */
    int[] lengths(int step, int part) {
        if (this == UNEVEN) {
            if (part % 3 == 2) {
                return new int[] {};
            }
            return (step + part) % 2 == 0 ? new int[] {7, 1, 12, 8} : new int[] {6, 2};
        }
        return switch ((step + part) % 4) {
            case 0 -> new int[] {7, 1, 12, 4};
            case 1 -> new int[] {3, 21};
            case 2 -> new int[] {16, 8};
            default -> new int[] {9, 9, 6};
        };
    }
}
