package dev.chagres.optim;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.State;

/**
 * One of the vectors of an optimizer's state, in the order of the gradients: a moment, or masters.
 *
 * <p>Threading: the device's thread.
 *
 * @param ending the ending of the names of its parts in {@link Optimizer#state()}
 * @param elements {@code width} for each element of {@link dev.chagres.parameter.Parameters#gradients}
 * @param width 1; 2 for remainders, which are pairs of bytes
 */
public record StateVector(String ending, Tensor elements, int width) {
    static final String MASTER = ".master";
    static final String REMAINDER = ".remainder";
    static final String SQUARE = ".exp_avg_sq";

    /**
     * Checks the parts.
     *
     * @throws IllegalArgumentException when there are not {@code width} numbers for each element, one or two
     */
    public StateVector {
        Checks.given("ending", ending);
        Checks.given("elements", elements);
        if (width != 1 && width != 2 || elements.count() % width != 0) {
            throw new IllegalArgumentException("width: expected 1, or 2 with an even number of elements, got " + width
                    + " and " + elements.count() + " elements");
        }
    }

    /** Returns whether weights of {@code dtype} have a part of this vector: only 16-bit weights have masters. */
    public boolean isFor(DType dtype) {
        return Checks.given("dtype", dtype) != DType.FLOAT32 || !(ending.equals(MASTER) || ending.equals(REMAINDER));
    }

    /** Returns the values that elements may have. */
    public State.Values values() {
        return ending.equals(SQUARE) ? State.Values.NOT_NEGATIVE : State.Values.ANY;
    }

    /** Returns this with other elements. */
    public StateVector with(Tensor others) {
        return new StateVector(ending, others, width);
    }

    /**
     * Returns the shape of the part that belongs to {@code parameter}, or to this rank's part of a split parameter: the parameter's shape,
     * or [elements, 2].
     */
    public Shape shapeOf(Parameter parameter) {
        return shaped(Checks.given("parameter", parameter).shape());
    }

    /** Returns the shape of the part that belongs to the whole {@code parameter}, including the parts of other ranks. */
    public Shape wholeShapeOf(Parameter parameter) {
        return shaped(Checks.given("parameter", parameter).wholeShape());
    }

    private Shape shaped(Shape parameter) {
        return width == 1 ? parameter : new Shape(parameter.count(), width);
    }
}
