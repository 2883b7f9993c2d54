package dev.chagres.models.esm;

/**
 * Says which numbers a label of a batch stands for, so that a trainer, whose labels are whole numbers, trains regressions and classes that
 * may be there together: {@link Esm2ClassifierConfig#reading}.
 *
 * {@snippet file="dev/chagres/models/esm/TargetsTest.java" region="targets"}
 *
 * <p>Threading: thread-safe, since ranks that are threads share one.
 */
@FunctionalInterface
public interface Targets {
    /**
     * Writes the numbers of a label.
     *
     * @param label never {@link dev.chagres.batch.Batch#IGNORED}
     * @param row gets a number for each column: any, or 0 and 1 of classes that may be there together. NaN in the first place leaves the
     *     token out
     */
    void write(int label, float[] row);

    /**
     * Returns one of which a label is the number of a row. The device has the table, and computes the loss without waiting, so that steps can be
     * captured; of any other targets the host computes it.
     *
     * @param rows a number for each column: any finite ones, or 0 and 1 of classes that may be there together
     * @throws IllegalArgumentException when there is no row, rows have different lengths, or a number is not finite
     */
    static Targets table(float[]... rows) {
        if (rows.length == 0) {
            throw new IllegalArgumentException("rows: expected at least one, got none");
        }
        float[][] copies = new float[rows.length][];
        for (int i = 0; i < rows.length; i++) {
            copies[i] = rows[i].clone();
            if (copies[i].length != copies[0].length) {
                throw new IllegalArgumentException("rows: expected " + copies[0].length + " numbers each, got "
                        + copies[i].length + " in row " + i);
            }
            for (float number : copies[i]) {
                if (!Float.isFinite(number)) {
                    throw new IllegalArgumentException("rows: expected finite numbers, got " + number + " in row " + i);
                }
            }
        }
        return new TargetTable(copies);
    }

    /**
     * Returns one of which a label has the bits of its only number, {@link Float#floatToIntBits}. {@link dev.chagres.batch.Batch#IGNORED} has the
     * bits of a NaN, so no number is taken for it.
     */
    static Targets floatBits() {
        return (label, row) -> row[0] = Float.intBitsToFloat(label);
    }
}
