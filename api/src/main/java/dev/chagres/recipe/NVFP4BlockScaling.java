package dev.chagres.recipe;

/**
 * Four-bit values with a scale for every 16 of them. It needs a GPU of compute capability 10.0 (Blackwell): on others it is refused,
 * without a fallback.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: TE's {@code NVFP4BlockScaling}.
 */
public record NVFP4BlockScaling() implements Recipe {
    @Override
    public Format format() {
        return Format.E4M3;
    }

    @Override
    public String computeCapability() {
        return "10.0";
    }
}
