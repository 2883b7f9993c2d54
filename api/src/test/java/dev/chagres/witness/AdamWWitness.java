package dev.chagres.witness;

/** Adam with decoupled weight decay over one vector of weights. */
public final class AdamWWitness {
    private final double beta1;
    private final double beta2;
    private final double epsilon;
    private final double[] decay;
    private final double[] weights;
    private final double[] mean;
    private final double[] square;
    private boolean corrects = true;
    private int step;

    /** Begins with zero moments; {@code decay} is that of each element. */
    public AdamWWitness(double beta1, double beta2, double epsilon, double[] decay, double[] weights) {
        this.beta1 = beta1;
        this.beta2 = beta2;
        this.epsilon = epsilon;
        this.decay = decay;
        this.weights = weights;
        mean = new double[weights.length];
        square = new double[weights.length];
    }

    /** Leaves the moments as they are from now on. */
    public AdamWWitness withoutBiasCorrection() {
        corrects = false;
        return this;
    }

    /** Takes a step with these gradients and returns the weights. */
    public double[] step(double rate, double[] gradients, double scale) {
        step++;
        for (int i = 0; i < weights.length; i++) {
            double gradient = gradients[i] * scale;
            mean[i] = beta1 * mean[i] + (1 - beta1) * gradient;
            square[i] = beta2 * square[i] + (1 - beta2) * gradient * gradient;
            double direction = corrects ? mean[i] / (1 - Math.pow(beta1, step)) : mean[i];
            double size = Math.sqrt(corrects ? square[i] / (1 - Math.pow(beta2, step)) : square[i]);
            weights[i] -= rate * (direction / (size + epsilon) + decay[i] * weights[i]);
        }
        return weights;
    }

    /** Returns a copy of the averages of gradients. */
    public double[] mean() {
        return mean.clone();
    }

    /** Returns a copy of the averages of squared gradients. */
    public double[] square() {
        return square.clone();
    }
}
