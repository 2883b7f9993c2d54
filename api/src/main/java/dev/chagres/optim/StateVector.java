package dev.chagres.optim;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.ops.StepState;
import dev.chagres.parallel.ParameterSplit;
import dev.chagres.parameter.CodedState;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.State;

/**
 * One of the vectors of an optimizer's state, in the order of the gradients: a moment, masters, or scales of a moment in eight bits.
 *
 * <p>Threading: the device's thread.
 *
 * @param ending the ending of the names of its parts in {@link Optimizer#state()}
 * @param elements {@code width} for each element, or one for each {@code block} elements, of {@link
 *     dev.chagres.parameter.Parameters#gradients}
 * @param width 1; 2 for remainders, which are pairs of bytes
 * @param block 1; for scales how many neighbours have one
 */
public record StateVector(String ending, Tensor elements, int width, int block) {
    static final String MASTER = ".master";
    static final String REMAINDER = ".remainder";
    static final String SQUARE = ".exp_avg_sq";
    /** The ending, after that of the codes, of the largest magnitudes that they are multiplied by. */
    static final String SCALES = "_absmax";

    /**
     * Checks the parts.
     *
     * @throws IllegalArgumentException when there are not {@code width} numbers for each element, one or two, or a block is below 1
     */
    public StateVector {
        Checks.given("ending", ending, "elements", elements);
        if (width != 1 && width != 2 || elements.count() % width != 0) {
            throw new IllegalArgumentException("width: expected 1, or 2 with an even number of elements, got " + width
                    + " and " + elements.count() + " elements");
        }
        Checks.atLeastOne("block", block);
    }

    /** A vector with {@code width} numbers for each element. */
    public StateVector(String ending, Tensor elements, int width) {
        this(ending, elements, width, 1);
    }

    /** Returns whether weights of {@code dtype} have a part of this vector: only 16-bit weights have masters. */
    public boolean isFor(DType dtype) {
        return Checks.given("dtype", dtype) != DType.FLOAT32 || !(ending.equals(MASTER) || ending.equals(REMAINDER));
    }

    /** Returns the values that elements may have. */
    public State.Values values() {
        if (ending.endsWith(SCALES)) {
            return State.Values.FINITE_NOT_NEGATIVE;
        }
        return ending.equals(SQUARE) && elements.dtype().isFloat() ? State.Values.NOT_NEGATIVE : State.Values.ANY;
    }

    /** Returns this with other elements. */
    public StateVector with(Tensor others) {
        return new StateVector(ending, others, width, block);
    }

    /** Returns how many numbers of this vector there are for {@code count} elements of the gradients. */
    public long countOf(long count) {
        return Math.ceilDiv(width * count, (long) block);
    }

    /**
     * Returns the shape of the part that belongs to {@code parameter}, or to this rank's part of a split parameter: the parameter's shape,
     * [elements, 2], or [blocks].
     */
    public Shape shapeOf(Parameter parameter) {
        return shaped(Checks.given("parameter", parameter).shape());
    }

    /**
     * Returns the shape in a file of the part that belongs to the whole {@code parameter}, including the parts of other ranks: as {@link
     * #shapeOf}, or of scales [{@link CodedState#units}].
     */
    public Shape wholeShapeOf(Parameter parameter) {
        return block > 1
                ? new Shape(coded(Checks.given("parameter", parameter)).units())
                : shaped(Checks.given("parameter", parameter).wholeShape());
    }

    private Shape shaped(Shape parameter) {
        if (block > 1) {
            return new Shape(countOf(parameter.count()));
        }
        return width == 1 ? parameter : new Shape(parameter.count(), width);
    }

    /**
     * Returns what these scales belong to, of a parameter that is perhaps split.
     *
     * @throws IllegalStateException when this is no vector of scales
     */
    public CodedState coded(Parameter parameter) {
        return coded(
                parameter,
                ParameterSplit.of(Checks.given("parameter", parameter).split(), parameter.shape()));
    }

    /** Returns what these scales of this rank's part belong to, which is a whole for itself. */
    CodedState codedAlone(Parameter parameter) {
        return coded(parameter, ParameterSplit.of(null, parameter.shape()));
    }

    private CodedState coded(Parameter parameter, ParameterSplit split) {
        if (block == 1) {
            throw new IllegalStateException("coded: expected scales of codes, got " + this);
        }
        String codes = ending.substring(0, ending.length() - SCALES.length());
        StepState.Codes kind = codes.equals(SQUARE) ? StepState.Codes.UNSIGNED : StepState.Codes.SIGNED;
        return new CodedState(parameter.name() + codes, parameter.name() + ending, kind, split);
    }
}
