package dev.chagres.internal.memory;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** What closes several things. */
@Tag("L0")
class ClosingTest {
    private final List<String> closed = new ArrayList<>();

    private AutoCloseable good(String name) {
        return () -> closed.add(name);
    }

    private AutoCloseable failing(String name, Exception failure) {
        return () -> {
            closed.add(name);
            throw failure;
        };
    }

    @Test
    void theNewestIsClosedFirst() {
        Closing.newestFirst(List.of(good("a"), good("b"), good("c")));
        assertEquals(List.of("c", "b", "a"), closed);
    }

    @Test
    void allAreClosedThoughSomeFail() {
        var first = new IllegalStateException("first");
        var second = new IllegalArgumentException("second");
        List<AutoCloseable> resources = List.of(failing("a", second), good("b"), failing("c", first), good("d"));
        assertSame(first, assertThrows(IllegalStateException.class, () -> Closing.newestFirst(resources)));
        assertArrayEquals(new Throwable[] {second}, first.getSuppressed());
        assertEquals(List.of("d", "c", "b", "a"), closed);
    }

    @Test
    void aCheckedFailureIsTheCauseOfAnUncheckedOne() {
        var checked = new IOException("disk");
        List<AutoCloseable> resources = List.of(failing("a", checked));
        assertSame(
                checked,
                assertThrows(IllegalStateException.class, () -> Closing.newestFirst(resources))
                        .getCause());
    }

    @Test
    void aResourceMayTakeItselfAway() {
        List<AutoCloseable> resources = new ArrayList<>(List.of(good("a")));
        resources.add(() -> {
            closed.add("b");
            resources.clear();
        });
        Closing.newestFirst(resources);
        assertEquals(List.of("b", "a"), closed);
    }
}
