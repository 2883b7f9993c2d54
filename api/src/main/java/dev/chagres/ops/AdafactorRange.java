package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Numbers;
import org.jspecify.annotations.Nullable;

/**
 * Neighbours of a matrix that this rank updates by an {@link AdafactorStep}.
 *
 * <p>Threading: the device's thread.
 *
 * @param matrix the whole one
 * @param place which of its elements these are
 * @param gradient FLOAT32 [n]
 * @param weight floating-point numbers [n], FLOAT32 unless there is a master
 * @param master the FP32 weights of weights of 16 bits, as {@link AdamRange#master}; else null
 * @param mean FLOAT32 [n], the running mean of updates; null where beta1 is 0
 * @param weightDecay at least 0
 */
public record AdafactorRange(
        AdafactorMatrix matrix,
        Place place,
        Tensor gradient,
        Tensor weight,
        @Nullable Tensor master,
        @Nullable Tensor mean,
        float weightDecay) {
    /**
     * The place of neighbours in the rows and columns that this rank has of a matrix.
     *
     * <p>Threading: the device's thread.
     *
     * @param first the first of them, row by row
     * @param columns that this rank has
     * @param rowMap INT32 [rows of this rank], which rows of the whole matrix they are; null for the same. Numbers of none are taken for the nearest
     * @param columnMap INT32 [columns], likewise
     */
    public record Place(
            long first,
            long columns,
            @Nullable Tensor rowMap,
            @Nullable Tensor columnMap) {
        /**
         * Checks the numbers.
         *
         * @throws IllegalArgumentException when the first is negative, or there is no column
         */
        public Place {
            Numbers.atLeastZero("first", first);
            Checks.atLeastOne("columns", columns);
        }
    }

    /**
     * Checks the number; the tensors are checked by {@link AdafactorRanges#of}.
     *
     * @throws IllegalArgumentException when the decay is negative, infinite or no number
     */
    public AdafactorRange {
        Checks.given("matrix", matrix, "place", place, "gradient", gradient, "weight", weight);
        Numbers.notNegative("weightDecay", weightDecay);
    }

    void check(Stream stream) {
        matrix.check(stream);
        Checks.on(stream, "gradient", gradient);
        long count = gradient.count();
        Checks.vector(stream, "gradient", gradient, DType.FLOAT32, count);
        Checks.floats(stream, "weight", weight);
        Checks.vector(stream, "weight", weight, master == null ? DType.FLOAT32 : weight.dtype(), count);
        Checks.writable("weight", weight);
        if (mean != null) {
            Checks.vector(stream, "mean", mean, DType.FLOAT32, count);
        }
        RangeTable.checkMaster(master, count, stream);
        Tensor rowMap = place.rowMap();
        Tensor columnMap = place.columnMap();
        long ofRank = rowMap == null ? matrix.rows() : rowMap.count();
        // from the end backwards, so that no sum overflows
        boolean reaches = place.columns() > matrix.columns() || place.first() > ofRank * place.columns() - count;
        if (reaches || columnMap == null && place.columns() != matrix.columns()) {
            throw new IllegalArgumentException("place: expected elements of a matrix of " + matrix.rows() + " rows and "
                    + matrix.columns() + " columns, got " + count + " from " + place.first() + " on in rows of "
                    + place.columns());
        }
        if (rowMap != null) {
            Checks.vector(stream, "rowMap", rowMap, DType.INT32, rowMap.count());
        }
        if (columnMap != null) {
            Checks.vector(stream, "columnMap", columnMap, DType.INT32, place.columns());
        }
    }

    /** Returns the types, in words. */
    String types() {
        return "weights of " + weight.dtype() + (master == null ? "" : ", masters of " + master.dtype())
                + (mean == null ? "" : ", means");
    }
}
