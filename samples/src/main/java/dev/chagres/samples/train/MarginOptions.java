package dev.chagres.samples.train;

import dev.chagres.MultiprocessorMargin;
import picocli.CommandLine.Option;

/** Options of {@code train} that say how many multiprocessors kernels leave to collectives. */
final class MarginOptions {
    @Option(
            names = "--sm-margin",
            paramLabel = "N",
            description =
                    "multiprocessors of each device that kernels of norms leave to collectives beside them (default: 0)")
    private int norms;

    @Option(
            names = "--product-sm-margin",
            paramLabel = "N",
            description = "multiprocessors that products leave (default: 0)")
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
     * @throws IllegalArgumentException when one leaves no multiprocessor; the text names the option
     */
    void requireBelow(int multiprocessors) {
        requireBelow("--sm-margin", norms, multiprocessors);
        requireBelow("--product-sm-margin", products, multiprocessors);
    }

    private static void requireBelow(String option, int margin, int multiprocessors) {
        if (margin >= multiprocessors) {
            throw new IllegalArgumentException(option + ": expected 0 to " + (multiprocessors - 1)
                    + ", one less than the device has multiprocessors, got " + margin);
        }
    }

    MultiprocessorMargin margin() {
        return new MultiprocessorMargin(norms, products);
    }
}
