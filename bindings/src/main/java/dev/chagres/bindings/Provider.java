package dev.chagres.bindings;

import java.util.Locale;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;

/**
 * Who computes: NVIDIA's libraries on a GPU, or this project's reference on the CPU. A process has one, chosen by
 * {@code -Dchagres.provider=auto|cuda|reference}; {@code auto}, the default, is {@link #CUDA} where a driver sees a GPU.
 *
 * <p>Threading: thread-safe.
 */
public enum Provider {
    /** Transformer Engine, cuDNN, NCCL and the CUDA runtime, as found on the machine. */
    CUDA,
    /** {@code libchagres_reference}: the same functions computed on the CPU. */
    REFERENCE;

    /** The property that chooses. */
    public static final String PROPERTY = "chagres.provider";

    private static final String AUTO = "auto";

    private static volatile @Nullable Choice choice;

    /** A provider and why it was chosen. */
    record Choice(Provider provider, String reason) {}

    /**
     * This process's provider. The first call chooses and says so in one log line; later calls repeat its answer.
     *
     * @throws IllegalArgumentException when the property has another value than {@code auto}, {@code cuda} or
     *     {@code reference}
     * @throws IllegalStateException when the JVM was started with native access denied
     * @throws MissingLibraryException on another system than Linux
     */
    public static Provider current() {
        return choice().provider();
    }

    static Choice choice() {
        Choice known = choice;
        return known != null ? known : chooseOnce();
    }

    private static synchronized Choice chooseOnce() {
        Choice known = choice;
        if (known != null) {
            return known;
        }
        String value = System.getProperty(PROPERTY, AUTO);
        Choice chosen = choose(value, Driver::probe);
        choice = chosen;
        if (value.equals(AUTO)) { // not needed else, and the first logger of a program takes 0.3 s of a core
            Log.logger()
                    .log(
                            System.Logger.Level.INFO,
                            "provider {0}: {1}",
                            chosen.provider().label(),
                            chosen.reason());
        }
        return chosen;
    }

    static Choice choose(String value, Supplier<Driver> probe) {
        return switch (value) {
            case "cuda" -> new Choice(CUDA, "-D" + PROPERTY + "=cuda");
            case "reference" -> new Choice(REFERENCE, "-D" + PROPERTY + "=reference");
            case AUTO -> {
                Driver driver = probe.get();
                yield new Choice(driver.isUsable() ? CUDA : REFERENCE, driver.description());
            }
            default ->
                throw new IllegalArgumentException(
                        "-D" + PROPERTY + ": expected auto, cuda or reference, got " + ForeignText.quoted(value));
        };
    }

    /** The name as the property spells it. */
    public String label() {
        return name().toLowerCase(Locale.ROOT);
    }
}
