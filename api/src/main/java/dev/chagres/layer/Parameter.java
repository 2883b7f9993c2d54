package dev.chagres.layer;

import dev.chagres.Scope;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import org.jspecify.annotations.Nullable;

/**
 * One named parameter of a layer: its shape and beginning, and, once {@link Parameters} gave it memory, its weight and
 * gradient.
 *
 * <p>Threading: the device's thread.
 */
public final class Parameter {
    private final String name;
    private final Shape shape;
    private final Initializer initializer;
    private @Nullable Tensor weight;
    private @Nullable Tensor gradient;
    private int issues;

    Parameter(String name, Shape shape, Initializer initializer) {
        this.name = name;
        this.shape = shape;
        this.initializer = initializer;
    }

    /** Returns the full name, such as {@code layers.0.attention.qkv.weight}. */
    public String name() {
        return name;
    }

    /** Returns the shape. */
    public Shape shape() {
        return shape;
    }

    /** Returns how the parameter begins. */
    public Initializer initializer() {
        return initializer;
    }

    /**
     * Returns the weight, in the type of the model.
     *
     * @throws IllegalStateException before {@link Parameters#allocate}
     */
    public Tensor weight() {
        return allocated(weight);
    }

    /**
     * Returns the gradient, FLOAT32.
     *
     * @throws IllegalStateException before {@link Parameters#allocate}
     */
    public Tensor gradient() {
        return allocated(gradient);
    }

    /** Returns whether optimizers decay the weight: matrices do, biases and norms do not. */
    public boolean decays() {
        return shape.rank() >= 2;
    }

    /**
     * Returns the weight for work in {@code scope}.
     *
     * @throws IllegalArgumentException when the weight lies on another device
     */
    Tensor weight(Scope scope) {
        Tensor present = weight();
        if (present.cell().scope().device() != scope.device().state()) {
            throw new IllegalArgumentException("scope: expected one of device "
                    + present.cell().scope().device().index() + ", where parameter " + name + " lies, got " + scope);
        }
        return present;
    }

    /** Returns whether an open {@link Parameters} has given this one memory. */
    boolean hasMemory() {
        return weight != null && weight.isLive();
    }

    void place(Tensor newWeight, Tensor newGradient) {
        weight = newWeight;
        gradient = newGradient;
        issues = newWeight.cell().issue() + newGradient.cell().issue();
    }

    /** Checks that {@code saved}, of which a record is, is this very parameter. */
    void checkOwner(Parameter saved) {
        if (saved != this) {
            throw new IllegalArgumentException("saved: expected what forward of the layer with parameter " + name
                    + " returned, got that of the layer with parameter " + saved.name);
        }
    }

    private Tensor allocated(@Nullable Tensor tensor) {
        Tensor presentWeight = weight;
        Tensor presentGradient = gradient;
        if (tensor == null || presentWeight == null || presentGradient == null) {
            throw new IllegalStateException("parameter " + name + " has no memory yet: call Parameters.allocate");
        }
        if (presentWeight.cell().issue() + presentGradient.cell().issue() != issues) {
            throw new IllegalStateException(
                    "parameter " + name + " has lost its memory: the scope of its Parameters was"
                            + " restarted; close them and call Parameters.allocate again");
        }
        return tensor;
    }

    @Override
    public String toString() {
        return name + shape;
    }
}
