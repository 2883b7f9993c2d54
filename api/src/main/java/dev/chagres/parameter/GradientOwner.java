package dev.chagres.parameter;

/**
 * For sharding: which call of a layer writes the gradient of a weight that a call reads. The gradient is complete when backward of that call
 * has written it.
 *
 * <p>Threading: immutable.
 */
public enum GradientOwner {
    /** The call that reads the weight, or one that it calls later. */
    THIS_CALL,
    /** A call inside the one that reads the weight, which reads the weight, too. */
    NESTED_CALL
}
