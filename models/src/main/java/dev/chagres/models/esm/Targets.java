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
     * Returns one of which a label has the bits of its only number, {@link Float#floatToIntBits}. {@link dev.chagres.batch.Batch#IGNORED} has the
     * bits of a NaN, so no number is taken for it.
     */
    static Targets floatBits() {
        return (label, row) -> row[0] = Float.intBitsToFloat(label);
    }
}
