package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import org.jspecify.annotations.Nullable;

/**
 * What {@link AdafactorStep} keeps and computes of a whole matrix of R rows and C columns, of which this rank may update a part. A vector is
 * a matrix of one row.
 *
 * <p>Threading: the device's thread.
 *
 * @param rowSums FLOAT32 [2, R], written: sums of the squares of gradients, and of weights
 * @param columnSums FLOAT32 [C], written: sums of the squares of gradients
 * @param updateSums FLOAT32 [R], written: sums of the squares of updates
 * @param row FLOAT32 [R], the running mean of the squares of each row; null of a vector
 * @param column FLOAT32 [C], that of each column
 * @param numbers FLOAT32 [3], written: the mean of {@code row}, the size of a step, and the factor on updates
 * @param rate FLOAT32 [1], read when the step runs
 */
public record AdafactorMatrix(
        Tensor rowSums,
        Tensor columnSums,
        Tensor updateSums,
        @Nullable Tensor row,
        Tensor column,
        Tensor numbers,
        Tensor rate) {
    /**
     * Checks that rows have a mean, and a vector has none.
     *
     * @throws IllegalArgumentException when they do not
     */
    public AdafactorMatrix {
        Checks.given("rowSums", rowSums, "columnSums", columnSums, "column", column, "numbers", numbers);
        Checks.given("rate", rate);
        long rows = Checks.given("updateSums", updateSums).count();
        if (rows < 1 || (row == null) != (rows == 1)) {
            throw new IllegalArgumentException("row: expected one for each of several rows, and none of a vector, got "
                    + (row == null ? "none" : Checks.describe(row)) + " and " + rows
                    + (rows == 1 ? " row" : " rows"));
        }
    }

    long rows() {
        return updateSums.count();
    }

    long columns() {
        return columnSums.count();
    }

    void check(Stream stream) {
        Checks.matrix(stream, "rowSums", rowSums, DType.FLOAT32, 2, rows());
        Checks.vector(stream, "columnSums", columnSums, DType.FLOAT32, columns());
        Checks.vector(stream, "updateSums", updateSums, DType.FLOAT32, rows());
        Checks.vector(stream, "column", column, DType.FLOAT32, columns());
        Checks.vector(stream, "numbers", numbers, DType.FLOAT32, 3);
        Checks.vector(stream, "rate", rate, DType.FLOAT32, 1);
        if (row != null) {
            Checks.vector(stream, "row", row, DType.FLOAT32, rows());
        }
    }

    /** Adds the tensors to a table. */
    void addTo(RangeTable<?> table, int index, boolean isWritten) {
        table.add("rowSums", index, rowSums, true);
        table.add("columnSums", index, columnSums, true);
        table.add("updateSums", index, updateSums, true);
        table.add("row", index, row, isWritten);
        table.add("column", index, column, isWritten);
        table.add("numbers", index, numbers, isWritten);
        table.add("rate", index, rate, false);
    }
}
