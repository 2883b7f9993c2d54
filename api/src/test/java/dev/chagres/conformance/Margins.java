package dev.chagres.conformance;

import dev.chagres.Device;
import java.util.List;
import java.util.stream.IntStream;

/** The margins that tests of norms and products try on a device. */
public final class Margins {
    private Margins() {}

    /** Returns 0, 1, 16, and all multiprocessors but one: those of them that the device has. */
    public static List<Integer> of(Device device) {
        return upTo(device.multiprocessorCount() - 1);
    }

    /** Returns the same for products, which need two multiprocessors. */
    public static List<Integer> ofProducts(Device device) {
        return upTo(device.multiprocessorCount() - 2);
    }

    private static List<Integer> upTo(int most) {
        return IntStream.of(0, 1, 16, most)
                .filter(margin -> margin <= most)
                .distinct()
                .boxed()
                .toList();
    }
}
