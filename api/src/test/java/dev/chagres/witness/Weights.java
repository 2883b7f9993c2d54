package dev.chagres.witness;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import org.apache.commons.math3.linear.MatrixUtils;
import org.apache.commons.math3.linear.RealMatrix;

/** Weights and their gradients by name; a vector is a matrix of one row. */
public final class Weights {
    private final Map<String, RealMatrix> values = new LinkedHashMap<>();
    private final Map<String, RealMatrix> gradients = new LinkedHashMap<>();

    /** Sets a weight. */
    public void put(String name, RealMatrix value) {
        values.put(name, value);
    }

    /** Returns the names of all weights. */
    public Set<String> names() {
        return values.keySet();
    }

    /** Returns whether there is such a weight. */
    public boolean has(String name) {
        return values.containsKey(name);
    }

    /** Returns a weight. */
    public RealMatrix get(String name) {
        return Objects.requireNonNull(values.get(name), name);
    }

    /** Returns a weight that is a vector. */
    public double[] vector(String name) {
        return get(name).getRow(0);
    }

    /** Returns the gradient that a backward pass has left. */
    public RealMatrix gradient(String name) {
        return Objects.requireNonNull(gradients.get(name), name);
    }

    void putGradient(String name, RealMatrix gradient) {
        gradients.put(name, gradient);
    }

    void putGradient(String name, double[] gradient) {
        gradients.put(name, MatrixUtils.createRowRealMatrix(gradient));
    }
}
