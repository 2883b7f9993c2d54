package dev.chagres.internal.memory;

/**
 * The tensors that a quantized tensor is made of, as errors name them.
 *
 * <p>Threading: any thread.
 *
 * <p>Source: {@code NVTETensorParam} of TE's {@code transformer_engine.h}.
 */
public final class QuantizedPart {
    private QuantizedPart() {}

    /** Returns the name of the part that has this number in Transformer Engine. */
    public static String name(int part) {
        return switch (part) {
            case 0 -> "rowwise data";
            case 1 -> "columnwise data";
            case 2 -> "scale";
            case 3 -> "amax";
            case 4 -> "rowwise scale inverse";
            default -> "columnwise scale inverse";
        };
    }
}
