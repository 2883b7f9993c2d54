package dev.chagres.recipe;

/**
 * A scale of eight bits for every 32 values. It needs a GPU of compute capability 10.0 (Blackwell): on others it is refused, without a
 * fallback.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: TE's {@code MXFP8BlockScaling}.
 */
public record MXFP8BlockScaling() implements Recipe {
    @Override
    public Format format() {
        return Format.E4M3;
    }

    @Override
    public String computeCapability() {
        return "10.0";
    }
}
