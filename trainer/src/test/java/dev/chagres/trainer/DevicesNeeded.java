package dev.chagres.trainer;

import static org.junit.jupiter.api.Assumptions.assumeTrue;

import dev.chagres.Device;
import java.util.Arrays;

/** Skips a test of several ranks where there are fewer devices. */
public final class DevicesNeeded {
    private DevicesNeeded() {}

    /** Goes on where there is a device for each of {@code ranks}. */
    public static void assume(int ranks) {
        int present = Device.count();
        assumeTrue(present >= ranks, () -> "skipped: it needs " + ranks + " devices, and there are " + present);
    }

    /** Goes on where there is a device for each rank of these options: {@code --ranks=2}, {@code --mesh=shard=2,tensor=2}. */
    static void assumeFor(String... options) {
        for (String option : options) {
            if (option.startsWith("--ranks=")) {
                assume(Integer.parseInt(option.substring("--ranks=".length())));
            } else if (option.startsWith("--mesh=")) {
                assume(Arrays.stream(option.substring("--mesh=".length()).split(","))
                        .mapToInt(size -> Integer.parseInt(size.substring(size.indexOf('=') + 1)))
                        .reduce(1, (a, b) -> a * b));
            }
        }
    }
}
