package dev.chagres.models.huggingface;

import java.util.Arrays;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * A parameter, and the tensors of a folder whose rows are its first rows, in order.
 *
 * <p>Threading: immutable.
 *
 * @param padding what fills the rows that no tensor has
 * @param groups how the only tensor has queries, keys and values of groups one after the other; null where tensors have the parameter's order
 */
record Target(
        String parameter,
        List<Part> parts,
        Padding padding,
        @Nullable Groups groups) {
    /**
     * A weight that has for each key head the rows of its query heads, then its own, then those of its values.
     *
     * @param count of key heads
     * @param queries query heads of each
     */
    record Groups(long count, long queries) {
        private long heads() {
            return count * (queries + 2);
        }

        /** Returns where the tensor has a head of the parameter, which has all queries, all keys, all values. */
        private long there(long head) {
            long others = head - count * queries;
            return others < 0
                    ? head / queries * (queries + 2) + head % queries
                    : others % count * (queries + 2) + queries + others / count;
        }

        /** The same in the other direction. */
        private long here(long head) {
            long group = head / (queries + 2);
            long place = head % (queries + 2);
            return place < queries ? group * queries + place : count * place + group;
        }
    }

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
        this(parameter, parts, padding, null);
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
        Groups own = groups;
        if (own == null) {
            return new Run(element, part.count() - element);
        }
        long chunk = part.count() / own.heads();
        return new Run(own.there(element / chunk) * chunk + element % chunk, chunk - element % chunk);
    }

    /** The same in the other direction. */
    Run back(Part part, long element) {
        Groups own = groups;
        if (own == null) {
            return new Run(element, part.count() - element);
        }
        long chunk = part.count() / own.heads();
        return new Run(own.here(element / chunk) * chunk + element % chunk, chunk - element % chunk);
    }
}
