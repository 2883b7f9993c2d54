package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import java.util.List;

/**
 * What {@link GroupBuffers} have memory for.
 *
 * <p>Threading: the device's thread.
 */
interface GroupContent {
    /** Memory of one type. */
    record Vector(DType dtype, long count) {}

    /** Returns what a group needs, the same each time. */
    List<Vector> vectors(int group);

    /** Returns whether a group ever has memory of this. */
    default boolean holds(int group) {
        return true;
    }

    /** Hands out what is seen of such memory for a group. */
    Tensor[] views(int group, Tensor[] vectors, Scope scope);

    /** Gives members of a group what they have there. */
    void lend(int group, Tensor[] views);
}
