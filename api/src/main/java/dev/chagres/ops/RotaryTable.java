package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.te.FusedRope.Pairing;

/**
 * The angles of a rotation, and which elements of a head form pairs.
 *
 * <p>Threading: immutable; the device's thread uses the angles.
 *
 * @param angles FLOAT32 [positions, r] or [positions, 1, 1, r] with r even: the first r elements of a head are rotated
 * @param pairing which two elements form a pair, and so which columns of the angles are equal
 */
public record RotaryTable(Tensor angles, Pairing pairing) {
    /** Checks that both are given. */
    public RotaryTable {
        Checks.given("angles", angles, "pairing", pairing);
    }

    /**
     * Returns r, the elements of a head that are rotated.
     *
     * @throws IllegalArgumentException when the angles are a single number
     */
    public long rotatedDim() {
        if (angles.rank() == 0) {
            throw new IllegalArgumentException(
                    "angles: expected FLOAT32[positions, r], got " + Checks.describe(angles));
        }
        return angles.size(angles.rank() - 1);
    }

    void check(QkvHeads heads, Stream stream) {
        Checks.typed(stream, "angles", angles, DType.FLOAT32);
        int rank = angles.rank();
        long rotated = rank == 0 ? 0 : angles.size(rank - 1);
        boolean shaped = rank > 1 && angles.count() == angles.size(0) * rotated;
        if (!shaped || rotated < 2 || rotated % 2 != 0 || rotated > heads.headDim()) {
            throw new IllegalArgumentException(
                    "angles: expected FLOAT32[positions, r] with r even, from 2 to the head dimension "
                            + heads.headDim() + ", got " + Checks.describe(angles));
        }
    }
}
