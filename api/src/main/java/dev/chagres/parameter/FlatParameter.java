package dev.chagres.parameter;

import dev.chagres.DType;
import dev.chagres.internal.Checks;

/**
 * Neighbouring parameters of one group and one type that are all trained or all frozen. Its length is a multiple of the ranks that the
 * plan was padded for, so that each can have an equal part.
 *
 * <p>Threading: immutable.
 *
 * @param dtype type of the weights
 * @param weightOffset first element in the weights of this type of all groups
 * @param gradientOffset first element in the gradients of all groups, -1 where frozen
 * @param count elements, including the padding between and after parameters
 * @param decayed number of leading elements that weight decay applies to
 */
public record FlatParameter(DType dtype, long weightOffset, long gradientOffset, long count, long decayed) {
    /** Checks that the type is there. */
    public FlatParameter {
        Checks.given("dtype", dtype);
    }

    /** Returns whether {@code parameter} belongs to this piece. */
    public boolean holds(Parameter parameter) {
        long offset = Checks.given("parameter", parameter).weightOffset();
        return parameter.placedType() == dtype && offset >= weightOffset && offset < weightOffset + count;
    }

    /** Returns the first element of {@code parameter} in this piece. */
    public long offset(Parameter parameter) {
        return Checks.given("parameter", parameter).weightOffset() - weightOffset;
    }

    /** Returns whether the parameters are trained. */
    public boolean isTrained() {
        return gradientOffset >= 0;
    }
}
