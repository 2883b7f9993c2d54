package dev.chagres.layer;

/**
 * How a {@link Linear} is split among the tensor-parallel ranks of its plan: TE's {@code parallel_mode}. Without such ranks all three are
 * the same.
 *
 * <p>Threading: immutable.
 */
public enum ParallelMode {
    /** Each rank has the whole layer, with the same results on all ranks. */
    NONE,
    /**
     * A rank has some of the outputs: rows of the weight, and of the bias. The input is the same on all ranks, and its gradient is summed
     * over them.
     */
    COLUMN,
    /**
     * A rank reads some of the inputs: columns of the weight. The output is summed over the ranks; then the bias, which each has, is
     * added once.
     */
    ROW
}
