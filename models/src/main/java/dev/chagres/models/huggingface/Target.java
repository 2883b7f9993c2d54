package dev.chagres.models.huggingface;

import java.util.Arrays;
import java.util.List;

/**
 * A parameter, and the tensors of a folder whose rows are its first rows, in order.
 *
 * <p>Threading: immutable.
 *
 * @param padding what fills the rows that no tensor has
 * @param heads where it is above 0, the only tensor has for each of so many heads its rows of queries, keys and values
 */
record Target(String parameter, List<Part> parts, Padding padding, int heads) {
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

    /** Elements of a tensor that lie one after the other. */
    record Run(long first, long count) {}

    /** Rows in the order of the parameter. */
    Target(String parameter, List<Part> parts, Padding padding) {
        this(parameter, parts, padding, 0);
    }

    /** Tensors of the same sizes. */
    Target(String parameter, long[] sizes, List<String> tensors, Padding padding) {
        this(parameter, tensors.stream().map(tensor -> new Part(tensor, sizes)).toList(), padding);
    }

    /** Returns how many elements the tensors have together. */
    long count() {
        return parts.stream().mapToLong(Part::count).sum();
    }

    /** Returns where a tensor has an element of the parameter, counted from the tensor's first, and how many follow it there. */
    Run run(Part part, long element) {
        if (heads == 0) {
            return new Run(element, part.count() - element);
        }
        long chunk = part.count() / (3L * heads);
        long index = element / chunk;
        long there = index % heads * 3 + index / heads;
        return new Run(there * chunk + element % chunk, chunk - element % chunk);
    }

    /** The same in the other direction. */
    Run back(Part part, long element) {
        if (heads == 0) {
            return new Run(element, part.count() - element);
        }
        long chunk = part.count() / (3L * heads);
        long index = element / chunk;
        long here = index % 3 * heads + index / 3;
        return new Run(here * chunk + element % chunk, chunk - element % chunk);
    }
}
