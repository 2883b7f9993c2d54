package dev.chagres.models.decoder;

import dev.chagres.attention.RotaryConfig;
import dev.chagres.layer.Bias;
import java.util.List;
import java.util.Objects;

/**
 * What decoders differ in besides their sizes. {@link #of} has the usual values of an architecture; the {@code with} methods change one
 * each.
 *
 * <p>Threading: immutable.
 *
 * @param architecture norms of heads, and which products can have biases
 * @param attentionBias of the products of attention: of all four of Llama and Qwen 3, of query, key and value of Qwen 2, where it is {@link
 *     Bias#PRESENT}, and {@link Bias#ABSENT} of Mistral
 * @param mlpBias of the products of the MLP, which Llama alone can have
 * @param head where the weight of the logits comes from
 * @param normEpsilon of all norms, above 0
 * @param rotary which pairs of a head's columns turn, and how fast
 * @param windows the number of keys that a query sees, its own included, in each layer, 0 for all of them; empty: all of them in each layer
 */
public record DecoderForm(
        DecoderArchitecture architecture,
        Bias attentionBias,
        Bias mlpBias,
        Head head,
        float normEpsilon,
        RotaryConfig rotary,
        List<Integer> windows) {
    private static final float EPSILON = 1e-6f;

    /** Where the weight of the logits comes from. */
    public enum Head {
        /** It is the embedding's table. */
        TIED,
        /** It is a parameter of its own. */
        SEPARATE
    }

    /**
     * Checks that the architecture can have all of it.
     *
     * @throws IllegalArgumentException when it cannot, or epsilon is not above 0
     */
    public DecoderForm {
        Objects.requireNonNull(architecture, "architecture");
        Objects.requireNonNull(attentionBias, "attentionBias");
        Objects.requireNonNull(mlpBias, "mlpBias");
        Objects.requireNonNull(head, "head");
        Objects.requireNonNull(rotary, "rotary");
        windows = List.copyOf(windows);
        if (architecture == DecoderArchitecture.QWEN2 && attentionBias != Bias.PRESENT
                || architecture == DecoderArchitecture.MISTRAL && attentionBias != Bias.ABSENT) {
            throw new IllegalArgumentException("attentionBias: expected the one of " + architecture + ", "
                    + of(architecture, rotary.headDim()).attentionBias + ", got " + attentionBias);
        }
        if (architecture != DecoderArchitecture.LLAMA && mlpBias != Bias.ABSENT) {
            throw new IllegalArgumentException(
                    "mlpBias: expected ABSENT, as always in " + architecture + ", got " + mlpBias);
        }
        if (!(normEpsilon > 0) || Float.isInfinite(normEpsilon)) {
            throw new IllegalArgumentException("normEpsilon: expected a finite number above 0, got " + normEpsilon);
        }
        checkWindows(architecture, windows);
    }

    private static void checkWindows(DecoderArchitecture architecture, List<Integer> windows) {
        int largest = 0;
        for (int window : windows) {
            if (window < 0) {
                throw new IllegalArgumentException(
                        "windows: expected at least 1 key each, or 0 for all, got " + window);
            }
            if (window > 0 && largest > 0 && window != largest) {
                throw new IllegalArgumentException(
                        "windows: expected the same number of keys wherever not all are seen, got " + largest + " and "
                                + window);
            }
            largest = Math.max(largest, window);
        }
        if (largest > 0 && architecture == DecoderArchitecture.LLAMA) {
            throw new IllegalArgumentException("windows: expected none, for LLAMA sees all keys, got " + windows);
        }
        if (largest > 0 && architecture == DecoderArchitecture.MISTRAL && windows.contains(0)) {
            throw new IllegalArgumentException(
                    "windows: expected the same in each layer, as always in MISTRAL, got " + windows);
        }
    }

    /** Returns the form of an architecture with epsilon 1e-6, base 10,000, a separate head, and no biases but those that are always there. */
    public static DecoderForm of(DecoderArchitecture architecture, int headDim) {
        return new DecoderForm(
                architecture,
                architecture == DecoderArchitecture.QWEN2 ? Bias.PRESENT : Bias.ABSENT,
                Bias.ABSENT,
                Head.SEPARATE,
                EPSILON,
                RotaryConfig.of(headDim),
                List.of());
    }

    /** Returns the bias of the last product of attention. */
    public Bias projectionBias() {
        return architecture == DecoderArchitecture.QWEN2 ? Bias.ABSENT : attentionBias;
    }

    /** Returns whether each head of query and key has a norm before the rotation. */
    public boolean hasHeadNorms() {
        return architecture == DecoderArchitecture.QWEN3;
    }

    /** Returns the number of keys that a query sees in a layer; 0 for all of them. */
    public int window(int layer) {
        return windows.isEmpty() ? 0 : windows.get(layer);
    }

    /** Returns the same with or without biases of attention. */
    public DecoderForm withAttentionBias(Bias newBias) {
        return new DecoderForm(architecture, newBias, mlpBias, head, normEpsilon, rotary, windows);
    }

    /** Returns the same with or without biases of the MLP. */
    public DecoderForm withMlpBias(Bias newBias) {
        return new DecoderForm(architecture, attentionBias, newBias, head, normEpsilon, rotary, windows);
    }

    /** Returns the same with another head. */
    public DecoderForm withHead(Head newHead) {
        return new DecoderForm(architecture, attentionBias, mlpBias, newHead, normEpsilon, rotary, windows);
    }

    /** Returns the same with another epsilon of all norms. */
    public DecoderForm withNormEpsilon(float newEpsilon) {
        return new DecoderForm(architecture, attentionBias, mlpBias, head, newEpsilon, rotary, windows);
    }

    /** Returns the same with another rotation. */
    public DecoderForm withRotary(RotaryConfig newRotary) {
        return new DecoderForm(architecture, attentionBias, mlpBias, head, normEpsilon, newRotary, windows);
    }

    /** Returns the same with other windows. */
    public DecoderForm withWindows(List<Integer> newWindows) {
        return new DecoderForm(architecture, attentionBias, mlpBias, head, normEpsilon, rotary, newWindows);
    }
}
