package dev.chagres.samples.train;

/** In what precision the layers compute; master weights, optimizer state and gradient sums are FP32 in both. */
public enum Recipe {
    /** Activations and weights in BF16, sums in FP32. */
    BF16,
    /** Everything in FP32. */
    FP32;

    @Override
    public String toString() {
        return name().toLowerCase(java.util.Locale.ROOT);
    }
}
