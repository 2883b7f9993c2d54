package dev.chagres.internal.memory;

import dev.chagres.bindings.AddressCalls;
import dev.chagres.bindings.ForeignText;
import dev.chagres.bindings.Status;
import java.lang.foreign.MemorySegment;
import java.util.Locale;
import org.jspecify.annotations.Nullable;

/**
 * How freed memory is reused: {@code -Dchagres.memory=usual|poisoned|never}. The other two than usual are for
 * tests, which compare results bit by bit: code that reads memory it no longer owns then shows.
 *
 * <p>Threading: thread-safe.
 */
public enum MemoryReuse {
    /** The next allocation reuses it as it is. */
    USUAL,
    /** Freed and allocated memory is filled with ones, which are NaN in every floating-point type. */
    POISONED,
    /** It is not reused until its scope closes. */
    NEVER;

    private static final int ONES = 0xff;

    private static final String PROPERTY = "chagres.memory";

    /** Null until it is asked for. */
    private static volatile @Nullable MemoryReuse chosen;

    /**
     * Returns the choice for scopes that are opened from now on.
     *
     * @throws IllegalArgumentException when the property has another value
     */
    public static MemoryReuse chosen() {
        MemoryReuse present = chosen;
        if (present == null) {
            present = named(System.getProperty(PROPERTY, "usual"));
            chosen = present;
        }
        return present;
    }

    /** Returns the one that the property calls so. */
    static MemoryReuse named(String value) {
        return switch (value.toLowerCase(Locale.ROOT)) {
            case "usual" -> USUAL;
            case "poisoned" -> POISONED;
            case "never" -> NEVER;
            default ->
                throw new IllegalArgumentException(
                        "-D" + PROPERTY + ": expected usual, poisoned or never, got " + ForeignText.quoted(value));
        };
    }

    /** Chooses for scopes that are opened from now on. */
    public static void choose(MemoryReuse reuse) {
        chosen = reuse;
    }

    static void poison(long address, long byteSize, MemorySegment stream) {
        if (byteSize > 0) {
            Status.cuda(AddressCalls.cudaMemsetAsync(address, ONES, byteSize, stream), "cudaMemsetAsync");
        }
    }
}
