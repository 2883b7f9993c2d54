package dev.chagres.layer;

/**
 * Whether products add a bias, {@code y = x W^T + b}, or none, {@code y = x W^T}.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code bias} of TE's modules.
 */
public enum Bias {
    /** With bias: a parameter that begins as zeros. */
    PRESENT,
    /** Without bias: no parameter, no gradient, and no epilogue of the product. */
    ABSENT
}
