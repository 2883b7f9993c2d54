package dev.chagres.conformance;

import dev.chagres.internal.memory.Leaks;
import java.util.List;
import java.util.Set;
import org.junit.jupiter.api.extension.AfterAllCallback;
import org.junit.jupiter.api.extension.AfterEachCallback;
import org.junit.jupiter.api.extension.BeforeAllCallback;
import org.junit.jupiter.api.extension.BeforeEachCallback;
import org.junit.jupiter.api.extension.ExtensionContext;

/**
 * Fails a test, or a test class, that leaves open what it opened, and shows where that was made. JUnit registers it for every
 * test of this module through {@code META-INF/services}.
 */
public final class LeakGate implements BeforeAllCallback, AfterAllCallback, BeforeEachCallback, AfterEachCallback {
    private static final ExtensionContext.Namespace NAMESPACE = ExtensionContext.Namespace.create(LeakGate.class);
    private static final String BEFORE = "open before";

    static {
        if (System.getProperty("chagres.leaks") == null) {
            System.setProperty("chagres.leaks", "all");
        }
    }

    @Override
    public void beforeAll(ExtensionContext context) {
        remember(context);
    }

    @Override
    public void beforeEach(ExtensionContext context) {
        remember(context);
    }

    @Override
    public void afterEach(ExtensionContext context) {
        check(before(context), Leaks.open());
    }

    @Override
    public void afterAll(ExtensionContext context) {
        check(before(context), Leaks.open());
    }

    private static void remember(ExtensionContext context) {
        context.getStore(NAMESPACE).put(BEFORE, Set.copyOf(Leaks.open()));
    }

    @SuppressWarnings("unchecked")
    private static Set<Leaks.Trace> before(ExtensionContext context) {
        return (Set<Leaks.Trace>) context.getStore(NAMESPACE).get(BEFORE, Set.class);
    }

    /** Throws an error that has the stack of each object that is open now and was not before. */
    static void check(Set<Leaks.Trace> before, List<Leaks.Trace> now) {
        List<Leaks.Trace> leaked =
                now.stream().filter(trace -> !before.contains(trace)).toList();
        if (leaked.isEmpty()) {
            return;
        }
        List<String> names = leaked.stream().map(Throwable::getMessage).sorted().toList();
        AssertionError error = new AssertionError("left open: " + names + "; the stacks show where each was made");
        leaked.forEach(error::addSuppressed);
        throw error;
    }
}
