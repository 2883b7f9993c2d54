package dev.chagres.conformance;

import java.util.List;

/** Sizes at which kernels change course. */
public final class Sizes {
    /** One, odd, and one below, at and above each tile. */
    public static final List<Integer> TOKENS = List.of(1, 3, 15, 16, 17, 63, 64, 65, 127, 128, 129);

    private Sizes() {}
}
