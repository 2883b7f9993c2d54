package dev.chagres.witness;

import dev.chagres.layer.GeluForm;
import dev.chagres.te.Activation;
import dev.chagres.te.ClampedSwiglu;
import java.util.function.DoubleBinaryOperator;
import org.apache.commons.math3.linear.RealMatrix;

/** {@code y = f(x)}, or, with x = [a, b] by halves of the columns, {@code y = f(a) g(b)}, for each of TE's activations. */
public final class ActivationWitness {
    private static final double QUICK = 1.702;

    private final Activation activation;
    private final ClampedSwiglu clamped;
    private final GeluForm gelu;
    private RealMatrix input;

    /** Applies {@code activation}. */
    public ActivationWitness(Activation activation) {
        this.activation = activation;
        clamped = ClampedSwiglu.standard();
        gelu = GeluForm.TANH;
    }

    /** Applies GELU of this form. */
    public ActivationWitness(GeluForm gelu) {
        activation = Activation.GELU;
        clamped = ClampedSwiglu.standard();
        this.gelu = gelu;
    }

    /** Applies the clamped one with these numbers. */
    public ActivationWitness(ClampedSwiglu clamped) {
        activation = Activation.CLAMPED_SWIGLU;
        this.clamped = clamped;
        gelu = GeluForm.TANH;
    }

    /** Returns y. */
    public RealMatrix forward(RealMatrix x) {
        input = x;
        RealMatrix a = half(x, 0);
        return activation.isGated()
                ? Rows.combine(a, half(x, 1), (p, q) -> value(p) * gate(q))
                : Rows.map(a, this::value);
    }

    /** Returns the gradient of x. */
    public RealMatrix backward(RealMatrix dy) {
        RealMatrix a = half(input, 0);
        if (!activation.isGated()) {
            return Rows.combine(dy, a, (gradient, p) -> gradient * derivative(p));
        }
        RealMatrix b = half(input, 1);
        DoubleBinaryOperator product = (p, q) -> p * q;
        RealMatrix da = Rows.combine(Rows.map(a, this::derivative), Rows.map(b, this::gate), product);
        RealMatrix db = Rows.combine(Rows.map(a, this::value), Rows.map(b, this::slopeOfGate), product);
        return Rows.sideBySide(Rows.combine(dy, da, product), Rows.combine(dy, db, product));
    }

    private RealMatrix half(RealMatrix x, int which) {
        if (!activation.isGated()) {
            return x;
        }
        int columns = x.getColumnDimension() / 2;
        return Rows.columns(x, which * columns, columns);
    }

    private double value(double x) {
        return switch (activation) {
            case GELU, GEGLU -> gelu == GeluForm.ERF ? GeluWitness.exactValue(x) : GeluWitness.value(x);
            case GLU -> sigmoid(x);
            case QGELU, QGEGLU -> x * sigmoid(QUICK * x);
            case RELU, REGLU -> Math.max(x, 0);
            case SRELU, SREGLU -> Math.max(x, 0) * Math.max(x, 0);
            case SILU, SWIGLU -> x * sigmoid(x);
            case CLAMPED_SWIGLU ->
                Math.min(x, clamped.limit()) * sigmoid(clamped.alpha() * Math.min(x, clamped.limit()));
        };
    }

    private double derivative(double x) {
        return switch (activation) {
            case GELU, GEGLU -> gelu == GeluForm.ERF ? GeluWitness.exactDerivative(x) : GeluWitness.derivative(x);
            case GLU -> slope(x);
            case QGELU, QGEGLU -> sigmoid(QUICK * x) + x * QUICK * slope(QUICK * x);
            case RELU, REGLU -> x > 0 ? 1 : 0;
            case SRELU, SREGLU -> 2 * Math.max(x, 0);
            case SILU, SWIGLU -> sigmoid(x) + x * slope(x);
            case CLAMPED_SWIGLU ->
                x > clamped.limit()
                        ? 0
                        : sigmoid(clamped.alpha() * x) + x * clamped.alpha() * slope(clamped.alpha() * x);
        };
    }

    private double gate(double x) {
        return activation == Activation.CLAMPED_SWIGLU
                ? Math.clamp(x, -clamped.limit(), clamped.limit()) + clamped.linearOffset()
                : x;
    }

    private double slopeOfGate(double x) {
        return activation == Activation.CLAMPED_SWIGLU && Math.abs(x) > clamped.limit() ? 0 : 1;
    }

    private static double sigmoid(double x) {
        return 1 / (1 + Math.exp(-x));
    }

    private static double slope(double x) {
        return sigmoid(x) * sigmoid(-x);
    }
}
