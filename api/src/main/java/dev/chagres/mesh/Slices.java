package dev.chagres.mesh;

import dev.chagres.Rectangle;
import dev.chagres.Shape;
import dev.chagres.Stream;
import dev.chagres.Tensor;

/**
 * Slices of a tensor along one dimension, seen as {@code [outer, n, inner]}.
 *
 * <p>Threading: immutable.
 */
record Slices(long outer, long size, long inner) {
    static Slices of(Shape shape, int dimension) {
        long outer = 1;
        long inner = 1;
        for (int i = 0; i < shape.rank(); i++) {
            if (i < dimension) {
                outer *= shape.size(i);
            } else if (i > dimension) {
                inner *= shape.size(i);
            }
        }
        return new Slices(outer, shape.size(dimension), inner);
    }

    /** Returns {@code count} slices from {@code begin} on, in memory that begins with element {@code offset}. */
    Rectangle rectangle(long offset, long begin, long count) {
        return new Rectangle(offset + begin * inner, outer, count * inner, size * inner);
    }

    /** Returns a tensor of {@code count} slices alone that lies in memory from element {@code offset} on. */
    Rectangle alone(long offset, long count) {
        return new Rectangle(offset, outer, count * inner, count * inner);
    }

    /** Enqueues a copy of one part into another; nothing where it is empty. */
    static void copy(Tensor target, Rectangle to, Tensor source, Rectangle from, Stream stream) {
        if (to.rows() > 0 && to.columns() > 0) {
            target.copyFrom(stream, to, source, from);
        }
    }
}
