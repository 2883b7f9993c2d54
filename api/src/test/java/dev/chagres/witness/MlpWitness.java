package dev.chagres.witness;

import dev.chagres.layer.NormConfig;
import dev.chagres.te.Activation;
import org.apache.commons.math3.linear.RealMatrix;

/** {@code y = activation(norm(x) W1^T + b1) W2^T + b2}. */
public final class MlpWitness {
    private final NormWitness norm;
    private final LinearWitness fc1;
    private final ActivationWitness activation;
    private final LinearWitness fc2;

    /** Uses GELU, and the weights of {@code norm}, {@code fc1} and {@code fc2} under {@code prefix}. */
    public MlpWitness(NormConfig config, Weights weights, String prefix) {
        this(config, Activation.GELU, weights, prefix);
    }

    /** Uses the weights of {@code norm}, {@code fc1} and {@code fc2} under {@code prefix}. */
    public MlpWitness(NormConfig config, Activation activation, Weights weights, String prefix) {
        this(config, new ActivationWitness(activation), weights, prefix);
    }

    /** Uses the weights of {@code norm}, {@code fc1} and {@code fc2} under {@code prefix}. */
    public MlpWitness(NormConfig config, ActivationWitness activation, Weights weights, String prefix) {
        this.activation = activation;
        norm = new NormWitness(config, weights, prefix + "norm.");
        fc1 = new LinearWitness(weights, prefix + "fc1.");
        fc2 = new LinearWitness(weights, prefix + "fc2.");
    }

    /** Returns y. */
    public RealMatrix forward(RealMatrix x) {
        return forwardOfNormed(norm.forward(x));
    }

    /** Returns the gradient of x and leaves those of the weights. */
    public RealMatrix backward(RealMatrix dy) {
        return norm.backward(backwardToNormed(dy));
    }

    NormWitness norm() {
        return norm;
    }

    /** Returns y from what the norm gives. */
    RealMatrix forwardOfNormed(RealMatrix normed) {
        return fc2.forward(activation.forward(fc1.forward(normed)));
    }

    /** Returns the gradient of what the norm gives and leaves those of the other weights. */
    RealMatrix backwardToNormed(RealMatrix dy) {
        return fc1.backward(activation.backward(fc2.backward(dy)));
    }
}
