package dev.chagres.cudnn;

/**
 * How random numbers are distributed.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code cudnnRngDistribution_t} of {@code cudnn_graph.h}.
 */
public sealed interface RngDistribution {
    /**
     * 1 with a probability, else 0.
     *
     * @param probability of 1, from 0 to 1
     */
    record Bernoulli(double probability) implements RngDistribution {
        /**
         * Checks the probability.
         *
         * @throws IllegalArgumentException when it is none
         */
        public Bernoulli {
            if (!(probability >= 0 && probability <= 1)) {
                throw new IllegalArgumentException("probability: expected 0 to 1, got " + probability);
            }
        }
    }

    /**
     * Each number of a range equally often.
     *
     * @param minimum the least
     * @param maximum the largest
     */
    record Uniform(double minimum, double maximum) implements RngDistribution {
        /**
         * Checks the range.
         *
         * @throws IllegalArgumentException when it is empty
         */
        public Uniform {
            if (!(minimum <= maximum)) {
                throw new IllegalArgumentException(
                        "minimum, maximum: expected minimum <= maximum, got " + minimum + " and " + maximum);
            }
        }
    }

    /**
     * The normal distribution.
     *
     * @param mean its mean
     * @param standardDeviation its standard deviation, at least 0
     */
    record Normal(double mean, double standardDeviation) implements RngDistribution {
        /**
         * Checks the numbers.
         *
         * @throws IllegalArgumentException when the deviation is negative, or one is NaN
         */
        public Normal {
            if (Double.isNaN(mean) || !(standardDeviation >= 0)) {
                throw new IllegalArgumentException(
                        "mean, standardDeviation: expected a number and one of at least 0, got " + mean + " and "
                                + standardDeviation);
            }
        }
    }
}
