package dev.chagres.cudnn;

import dev.chagres.bindings.cudnn.Cudnn;

/**
 * What a pointwise operation computes of its inputs x, b and t, each element for itself. Backward modes take dy and x.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code cudnnPointwiseMode_t} of {@code cudnn_graph.h}.
 */
public enum PointwiseMode {
    /** y = x + b. */
    ADD(Cudnn.CUDNN_POINTWISE_ADD(), 2, Kind.FORWARD),
    /** y = x b. */
    MUL(Cudnn.CUDNN_POINTWISE_MUL(), 2, Kind.FORWARD),
    /** y = min(x, b). */
    MIN(Cudnn.CUDNN_POINTWISE_MIN(), 2, Kind.FORWARD),
    /** y = max(x, b). */
    MAX(Cudnn.CUDNN_POINTWISE_MAX(), 2, Kind.FORWARD),
    /** The square root of x. */
    SQRT(Cudnn.CUDNN_POINTWISE_SQRT(), 1, Kind.FORWARD),
    /** y = x + b&sup2;. */
    ADD_SQUARE(Cudnn.CUDNN_POINTWISE_ADD_SQUARE(), 2, Kind.FORWARD),
    /** y = x / b. */
    DIV(Cudnn.CUDNN_POINTWISE_DIV(), 2, Kind.FORWARD),
    /** The remainder of x / b, with the sign of x. */
    MOD(Cudnn.CUDNN_POINTWISE_MOD(), 2, Kind.FORWARD),
    /** y = x to the power of b. */
    POW(Cudnn.CUDNN_POINTWISE_POW(), 2, Kind.FORWARD),
    /** y = x - b. */
    SUB(Cudnn.CUDNN_POINTWISE_SUB(), 2, Kind.FORWARD),
    /** |x|. */
    ABS(Cudnn.CUDNN_POINTWISE_ABS(), 1, Kind.FORWARD),
    /** y = x rounded up. */
    CEIL(Cudnn.CUDNN_POINTWISE_CEIL(), 1, Kind.FORWARD),
    /** y = cos x. */
    COS(Cudnn.CUDNN_POINTWISE_COS(), 1, Kind.FORWARD),
    /** y = exp x. */
    EXP(Cudnn.CUDNN_POINTWISE_EXP(), 1, Kind.FORWARD),
    /** y = x rounded down. */
    FLOOR(Cudnn.CUDNN_POINTWISE_FLOOR(), 1, Kind.FORWARD),
    /** The natural logarithm of x. */
    LOG(Cudnn.CUDNN_POINTWISE_LOG(), 1, Kind.FORWARD),
    /** -x. */
    NEG(Cudnn.CUDNN_POINTWISE_NEG(), 1, Kind.FORWARD),
    /** 1 / the square root of x. */
    RSQRT(Cudnn.CUDNN_POINTWISE_RSQRT(), 1, Kind.FORWARD),
    /** y = sin x. */
    SIN(Cudnn.CUDNN_POINTWISE_SIN(), 1, Kind.FORWARD),
    /** y = tan x. */
    TAN(Cudnn.CUDNN_POINTWISE_TAN(), 1, Kind.FORWARD),
    /** The error function of x. */
    ERF(Cudnn.CUDNN_POINTWISE_ERF(), 1, Kind.FORWARD),
    /** y = x, in the type of the result. */
    IDENTITY(Cudnn.CUDNN_POINTWISE_IDENTITY(), 1, Kind.FORWARD),
    /** 1 / x. */
    RECIPROCAL(Cudnn.CUDNN_POINTWISE_RECIPROCAL(), 1, Kind.FORWARD),
    /** The angle of the point (b, x). */
    ATAN2(Cudnn.CUDNN_POINTWISE_ATAN2(), 2, Kind.FORWARD),
    /** y = x between the lower and the upper clip; below the lower one the slope goes on. */
    RELU_FWD(Cudnn.CUDNN_POINTWISE_RELU_FWD(), 1, Kind.FORWARD),
    /** y = tanh x. */
    TANH_FWD(Cudnn.CUDNN_POINTWISE_TANH_FWD(), 1, Kind.FORWARD),
    /** 1 / (1 + exp(-x)). */
    SIGMOID_FWD(Cudnn.CUDNN_POINTWISE_SIGMOID_FWD(), 1, Kind.FORWARD),
    /** y = x where it is positive, else alpha (exp x - 1). */
    ELU_FWD(Cudnn.CUDNN_POINTWISE_ELU_FWD(), 1, Kind.FORWARD),
    /** y = x Phi(x), with the error function. */
    GELU_FWD(Cudnn.CUDNN_POINTWISE_GELU_FWD(), 1, Kind.FORWARD),
    /** Log(1 + exp(beta x)) / beta. */
    SOFTPLUS_FWD(Cudnn.CUDNN_POINTWISE_SOFTPLUS_FWD(), 1, Kind.FORWARD),
    /** y = x / (1 + exp(-beta x)). */
    SWISH_FWD(Cudnn.CUDNN_POINTWISE_SWISH_FWD(), 1, Kind.FORWARD),
    /** GELU, approximated by tanh. */
    GELU_APPROX_TANH_FWD(Cudnn.CUDNN_POINTWISE_GELU_APPROX_TANH_FWD(), 1, Kind.FORWARD),
    /** dx = dy times the derivative of {@link #RELU_FWD} at x. */
    RELU_BWD(Cudnn.CUDNN_POINTWISE_RELU_BWD(), 2, Kind.BACKWARD),
    /** dx = dy times the derivative of {@link #TANH_FWD} at x. */
    TANH_BWD(Cudnn.CUDNN_POINTWISE_TANH_BWD(), 2, Kind.BACKWARD),
    /** dx = dy times the derivative of {@link #SIGMOID_FWD} at x. */
    SIGMOID_BWD(Cudnn.CUDNN_POINTWISE_SIGMOID_BWD(), 2, Kind.BACKWARD),
    /** dx = dy times the derivative of {@link #ELU_FWD} at x. */
    ELU_BWD(Cudnn.CUDNN_POINTWISE_ELU_BWD(), 2, Kind.BACKWARD),
    /** dx = dy times the derivative of {@link #GELU_FWD} at x. */
    GELU_BWD(Cudnn.CUDNN_POINTWISE_GELU_BWD(), 2, Kind.BACKWARD),
    /** dx = dy times the derivative of {@link #SOFTPLUS_FWD} at x. */
    SOFTPLUS_BWD(Cudnn.CUDNN_POINTWISE_SOFTPLUS_BWD(), 2, Kind.BACKWARD),
    /** dx = dy times the derivative of {@link #SWISH_FWD} at x. */
    SWISH_BWD(Cudnn.CUDNN_POINTWISE_SWISH_BWD(), 2, Kind.BACKWARD),
    /** dx = dy times the derivative of {@link #GELU_APPROX_TANH_FWD} at x. */
    GELU_APPROX_TANH_BWD(Cudnn.CUDNN_POINTWISE_GELU_APPROX_TANH_BWD(), 2, Kind.BACKWARD),
    /** y = x == b. */
    CMP_EQ(Cudnn.CUDNN_POINTWISE_CMP_EQ(), 2, Kind.COMPARISON),
    /** y = x != b. */
    CMP_NEQ(Cudnn.CUDNN_POINTWISE_CMP_NEQ(), 2, Kind.COMPARISON),
    /** y = x &gt; b. */
    CMP_GT(Cudnn.CUDNN_POINTWISE_CMP_GT(), 2, Kind.COMPARISON),
    /** y = x &gt;= b. */
    CMP_GE(Cudnn.CUDNN_POINTWISE_CMP_GE(), 2, Kind.COMPARISON),
    /** y = x &lt; b. */
    CMP_LT(Cudnn.CUDNN_POINTWISE_CMP_LT(), 2, Kind.COMPARISON),
    /** y = x &lt;= b. */
    CMP_LE(Cudnn.CUDNN_POINTWISE_CMP_LE(), 2, Kind.COMPARISON),
    /** y = x and b. */
    LOGICAL_AND(Cudnn.CUDNN_POINTWISE_LOGICAL_AND(), 2, Kind.COMPARISON),
    /** y = x or b. */
    LOGICAL_OR(Cudnn.CUDNN_POINTWISE_LOGICAL_OR(), 2, Kind.COMPARISON),
    /** Not x. */
    LOGICAL_NOT(Cudnn.CUDNN_POINTWISE_LOGICAL_NOT(), 1, Kind.COMPARISON),
    /** The index of each element along an axis; x gives the shape alone. */
    GEN_INDEX(Cudnn.CUDNN_POINTWISE_GEN_INDEX(), 1, Kind.INDEX),
    /** y = x where the predicate t is true, else b. */
    BINARY_SELECT(Cudnn.CUDNN_POINTWISE_BINARY_SELECT(), 3, Kind.FORWARD);

    /** What the result is. */
    enum Kind {
        FORWARD,
        BACKWARD,
        COMPARISON,
        INDEX
    }

    private final int code;
    private final int inputs;
    private final Kind kind;

    PointwiseMode(int code, int inputs, Kind kind) {
        this.code = code;
        this.inputs = inputs;
        this.kind = kind;
    }

    /** Returns the number of tensors that an operation of this mode reads. */
    public int inputs() {
        return inputs;
    }

    /** Returns whether the operation is the gradient of a forward mode: it reads dy and x, and writes dx. */
    public boolean isBackward() {
        return kind == Kind.BACKWARD;
    }

    int code() {
        return code;
    }

    Kind kind() {
        return kind;
    }
}
