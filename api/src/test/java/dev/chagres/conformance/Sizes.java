package dev.chagres.conformance;

import dev.chagres.bindings.Provider;
import dev.chagres.tensor.DType;
import java.util.List;
import java.util.function.Predicate;

/** Sizes at which kernels change course, and those that a provider takes. */
final class Sizes {
    /** One, odd, and one below, at and above each tile. */
    static final List<Integer> TOKENS = List.of(1, 3, 15, 16, 17, 63, 64, 65, 127, 128, 129);

    private static final int VECTOR_BYTES = 16;

    private Sizes() {}

    /** Returns whether rows of so many elements begin at multiples of 16 bytes, as cuBLASLt and TE's norms like them. */
    static boolean aligned(DType dtype, long... columns) {
        for (long count : columns) {
            if (count * dtype.byteSize() % VECTOR_BYTES != 0) {
                return false;
            }
        }
        return true;
    }

    /** Returns the cases that this process's provider takes, and says which others were left out and why. */
    static <C> List<C> taken(List<C> cases, Predicate<C> takenByCuda, String reason) {
        if (Provider.current() == Provider.REFERENCE) {
            return cases;
        }
        List<C> left = cases.stream().filter(takenByCuda.negate()).toList();
        if (!left.isEmpty()) {
            System.out.println("left out on CUDA, " + reason + ": " + left);
        }
        return cases.stream().filter(takenByCuda).toList();
    }
}
