package dev.chagres;

import static org.junit.jupiter.api.Assumptions.assumeTrue;

/** Skips a test of several ranks where there are fewer devices. */
public final class DevicesNeeded {
    private DevicesNeeded() {}

    /** Goes on where there are at least {@code count} devices. */
    public static void assume(int count) {
        int present = Device.count();
        assumeTrue(present >= count, () -> "skipped: it needs " + count + " devices, and there are " + present);
    }
}
