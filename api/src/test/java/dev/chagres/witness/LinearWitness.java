package dev.chagres.witness;

import org.apache.commons.math3.linear.RealMatrix;

/** {@code y = x W^T + b}, without b where there is no such weight. */
public final class LinearWitness {
    private final Weights weights;
    private final String prefix;
    private RealMatrix input;

    /** Uses the weights {@code prefix + "weight"} and {@code prefix + "bias"}. */
    public LinearWitness(Weights weights, String prefix) {
        this.weights = weights;
        this.prefix = prefix;
    }

    /** Returns y. */
    public RealMatrix forward(RealMatrix x) {
        input = x;
        RealMatrix product = x.multiply(weights.get(prefix + "weight").transpose());
        return weights.has(prefix + "bias") ? Rows.addToEach(product, weights.vector(prefix + "bias")) : product;
    }

    /** Returns the gradient of x and leaves those of the weights. */
    public RealMatrix backward(RealMatrix dy) {
        weights.putGradient(prefix + "weight", dy.transpose().multiply(input));
        if (weights.has(prefix + "bias")) {
            weights.putGradient(prefix + "bias", Rows.sum(dy));
        }
        return dy.multiply(weights.get(prefix + "weight"));
    }
}
