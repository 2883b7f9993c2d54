package dev.chagres.internal.memory;

import dev.chagres.bindings.AddressCalls;
import dev.chagres.bindings.Status;
import java.lang.foreign.MemorySegment;
import java.util.Locale;

/**
 * What becomes of memory that went back: {@code -Dchagres.memory=usual|poisoned|never}. The other two than usual are for
 * tests, which compare results bit by bit: code that reads memory it no longer owns then shows.
 *
 * <p>Threading: thread-safe.
 */
public enum MemoryReuse {
    /** The next allocation gets it as it is. */
    USUAL,
    /** It is filled with ones, which are NaN in every floating-point type; so is what is handed out. */
    POISONED,
    /** It is handed out again to nobody until its scope closes. */
    NEVER;

    private static final int ONES = 0xff;

    private static volatile MemoryReuse chosen =
            valueOf(System.getProperty("chagres.memory", "usual").toUpperCase(Locale.ROOT));

    /** Returns the choice for scopes that are opened from now on. */
    public static MemoryReuse chosen() {
        return chosen;
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
