package dev.chagres.models.esm;

import dev.chagres.layer.GeluForm;
import java.util.List;
import java.util.Objects;

/**
 * What ESM-2s differ in besides their sizes. {@link #nvidia} is the form of NVIDIA's recipes, in which new runs train; {@link #published}
 * that of the published checkpoints.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code EsmConfig} of transformers; {@code NVEsmConfig} of NVIDIA's BioNeMo recipes.
 *
 * @param gelu of the layers
 * @param headGelu of the head of the masked-language model
 * @param masks what becomes of masked tokens
 * @param normEpsilon of all norms, above 0
 * @param frequencies of the rotation, half as many as a head has columns; empty: {@code 10000^(-2 i / d)}
 */
public record Esm2Form(GeluForm gelu, GeluForm headGelu, Masks masks, float normEpsilon, List<Double> frequencies) {
    /** What becomes of masked tokens. */
    public enum Masks {
        /** Their embedding is that of the mask. */
        EMBEDDED,
        /**
         * Token dropout: their embedding is 0, and the other embeddings of a sequence are multiplied by {@code 0.88 / (1 - m / n)}, with n
         * tokens, m of them masked. In training 15 of a hundred tokens were chosen, and 80 of a hundred of these masked: 0.88 were not.
         */
        DROPPED
    }

    private static final float EPSILON = 1e-5f;

    /**
     * Checks the numbers.
     *
     * @throws IllegalArgumentException when epsilon is not above 0, or a frequency is no finite number
     */
    public Esm2Form {
        Objects.requireNonNull(gelu, "gelu");
        Objects.requireNonNull(headGelu, "headGelu");
        Objects.requireNonNull(masks, "masks");
        frequencies = List.copyOf(frequencies);
        if (!(normEpsilon > 0) || Float.isInfinite(normEpsilon)) {
            throw new IllegalArgumentException("normEpsilon: expected a finite number above 0, got " + normEpsilon);
        }
        for (double frequency : frequencies) {
            if (!Double.isFinite(frequency)) {
                throw new IllegalArgumentException("frequencies: expected finite numbers, got " + frequency);
            }
        }
    }

    /** GELU by tanh, masks embedded, computed frequencies: NVIDIA's recipes. */
    public static Esm2Form nvidia() {
        return new Esm2Form(GeluForm.TANH, GeluForm.TANH, Masks.EMBEDDED, EPSILON, List.of());
    }

    /** Exact GELU and token dropout: the published checkpoints, but for their frequencies, which a checkpoint has. */
    public static Esm2Form published() {
        return new Esm2Form(GeluForm.ERF, GeluForm.ERF, Masks.DROPPED, EPSILON, List.of());
    }

    /** Returns the same with other GELUs. */
    public Esm2Form withGelus(GeluForm ofLayers, GeluForm ofHead) {
        return new Esm2Form(ofLayers, ofHead, masks, normEpsilon, frequencies);
    }

    /** Returns the same with another choice of what becomes of masked tokens. */
    public Esm2Form withMasks(Masks newMasks) {
        return new Esm2Form(gelu, headGelu, newMasks, normEpsilon, frequencies);
    }

    /** Returns the same with another epsilon of all norms. */
    public Esm2Form withNormEpsilon(float newEpsilon) {
        return new Esm2Form(gelu, headGelu, masks, newEpsilon, frequencies);
    }

    /** Returns the same with other frequencies. */
    public Esm2Form withFrequencies(List<Double> newFrequencies) {
        return new Esm2Form(gelu, headGelu, masks, normEpsilon, newFrequencies);
    }
}
