package dev.chagres.models.huggingface;

import java.util.Arrays;
import java.util.List;

/**
 * A parameter, and the tensors of a folder whose rows are its first rows, in order.
 *
 * <p>Threading: immutable.
 *
 * @param padding what fills the rows that no tensor has
 */
record Target(String parameter, List<Part> parts, Padding padding) {
    /** What fills the rows of a parameter that no tensor has. */
    enum Padding {
        /** There are none. */
        NONE,
        /** Zeros. */
        ZEROS,
        /** The lowest number of the type, so that no softmax counts them. */
        LOWEST
    }

    /** A tensor and its sizes. */
    record Part(String tensor, long... sizes) {
        long count() {
            return Arrays.stream(sizes).reduce(1, Math::multiplyExact);
        }
    }

    /** Tensors of the same sizes. */
    Target(String parameter, long[] sizes, List<String> tensors, Padding padding) {
        this(parameter, tensors.stream().map(tensor -> new Part(tensor, sizes)).toList(), padding);
    }
}
