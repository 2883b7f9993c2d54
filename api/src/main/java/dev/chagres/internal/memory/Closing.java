package dev.chagres.internal.memory;

import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Closes several resources, even if closing one of them fails.
 *
 * <p>Threading: that of what is closed.
 */
public final class Closing {
    private Closing() {}

    /**
     * Closes all of {@code resources}, from the last to the first, and then throws the first failure, with later ones as suppressed
     * exceptions.
     *
     * @param resources whose {@code close} throws nothing checked; they may change meanwhile
     */
    public static void newestFirst(List<? extends AutoCloseable> resources) {
        RuntimeException first = null;
        for (AutoCloseable resource : List.copyOf(resources).reversed()) {
            RuntimeException failure = failureOf(resource);
            if (first == null) {
                first = failure;
            } else if (failure != null && failure != first) {
                first.addSuppressed(failure);
            }
        }
        if (first != null) {
            throw first;
        }
    }

    private static @Nullable RuntimeException failureOf(AutoCloseable resource) {
        try {
            resource.close();
            return null;
        } catch (RuntimeException failure) {
            return failure;
        } catch (Exception failure) {
            return new IllegalStateException(failure);
        }
    }
}
