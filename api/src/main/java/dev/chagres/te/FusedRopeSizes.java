package dev.chagres.te;

import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import org.jspecify.annotations.Nullable;

/**
 * The sizes and strides of a checked tensor of heads, as TE's rotation takes them: in 32 bits, strides in elements.
 *
 * <p>Threading: the device's thread.
 */
final class FusedRopeSizes {
    private FusedRopeSizes() {}

    static int sequences(Tensor tensor, @Nullable Tensor cuSeqlens, QkvFormat format) {
        return switch (format) {
            case THD -> (int) (Checks.given("cuSeqlens", cuSeqlens).count() - 1);
            case BSHD -> (int) tensor.size(0);
            case SBHD -> (int) tensor.size(1);
        };
    }

    static int heads(Tensor tensor) {
        return (int) tensor.size(tensor.rank() - 2);
    }

    static int headDim(Tensor tensor) {
        return (int) tensor.size(tensor.rank() - 1);
    }

    static int tokenStride(Tensor tensor, QkvFormat format) {
        int token = heads(tensor) * headDim(tensor);
        return format == QkvFormat.SBHD ? (int) tensor.size(1) * token : token;
    }

    static int sequenceStride(Tensor tensor, QkvFormat format) {
        int token = heads(tensor) * headDim(tensor);
        return switch (format) {
            case THD -> 0;
            case BSHD -> (int) tensor.size(1) * token;
            case SBHD -> token;
        };
    }
}
