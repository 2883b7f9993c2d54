package dev.chagres.conformance;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import org.junit.jupiter.api.function.Executable;

/** Checks an exception's exact type and text. */
public final class Thrown {
    private Thrown() {}

    /** Checks that {@code call} throws an exception of exactly {@code type} with exactly {@code text}. */
    public static void assertThrown(Class<? extends Throwable> type, String text, Executable call) {
        Throwable thrown = assertThrows(Throwable.class, call);
        if (thrown.getClass() != type) {
            throw new AssertionError("expected " + type.getName() + ", got " + thrown, thrown);
        }
        assertEquals(text, thrown.getMessage());
    }
}
