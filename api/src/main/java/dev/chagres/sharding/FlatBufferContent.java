package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import java.util.List;

/**
 * Describes the content of {@link FlatBufferPool}.
 *
 * <p>Threading: the device's thread.
 */
interface FlatBufferContent {
    /** Memory of one type. */
    record Vector(DType dtype, long count) {}

    /** Returns the vectors that a group needs, the same in each call. */
    List<Vector> vectors(int group);

    /** Returns whether a group ever uses a buffer. */
    default boolean holds(int group) {
        return true;
    }

    /** Makes the views of a buffer for a group. */
    Tensor[] views(int group, Tensor[] vectors, Scope scope);

    /** Sets members of a group to their views. */
    void lend(int group, Tensor[] views);
}
