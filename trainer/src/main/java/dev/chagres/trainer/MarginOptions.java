package dev.chagres.trainer;

import dev.chagres.MultiprocessorMargin;
import picocli.CommandLine.Option;

/** Options of {@code train} that say how many multiprocessors kernels leave to collectives. */
final class MarginOptions {
    @Option(
            names = "--sm-margin",
            paramLabel = "N",
            description = "multiprocessors of each device that kernels of norms leave to collectives (default: 0)")
    private int norms;

    @Option(
            names = "--product-sm-margin",
            paramLabel = "N",
            description = "multiprocessors of each device that matrix products leave to collectives (default: 0)")
    private int products;

    /**
     * Checks what does not depend on the platform.
     *
     * @throws IllegalArgumentException when a margin is below 0; the text names the option
     */
    void check() {
        TrainOptions.requireAtLeast("--sm-margin", norms, 0);
        TrainOptions.requireAtLeast("--product-sm-margin", products, 0);
    }

    /**
     * Checks the margins against the device.
     *
     * @throws IllegalArgumentException when one leaves norms no multiprocessor, or products fewer than two; the text names the option
     */
    void requireBelow(int multiprocessors) {
        requireLeft("--sm-margin", norms, multiprocessors, 1);
        requireLeft("--product-sm-margin", products, multiprocessors, 2);
    }

    private static void requireLeft(String option, int margin, int multiprocessors, int least) {
        if (margin > multiprocessors - least) {
            throw new IllegalArgumentException(option + ": expected 0 to " + (multiprocessors - least)
                    + ", which leaves " + least + " of the device's " + multiprocessors + " multiprocessors, got "
                    + margin);
        }
    }

    MultiprocessorMargin margin() {
        return new MultiprocessorMargin(norms, products);
    }
}
