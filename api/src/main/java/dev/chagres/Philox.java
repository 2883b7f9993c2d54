package dev.chagres;

import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import java.lang.foreign.MemorySegment;

/**
 * Random numbers by counter: a seed, and how many draws were handed out.
 *
 * <p>The same seed and the same calls give the same numbers on every run.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: Philox4x32-10; Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (2011).
 */
public final class Philox {
    private final long seed;
    private long offset;

    /** Starts at draw 0 of {@code seed}. */
    public Philox(long seed) {
        this.seed = seed;
    }

    /** Returns the seed. */
    public long seed() {
        return seed;
    }

    /** Returns the number of draws handed out so far: with the seed, all there is to save. */
    public long offset() {
        return offset;
    }

    /** Continues at draw {@code offset}. */
    public void seek(long newOffset) {
        offset = newOffset;
    }

    /**
     * Hands out the next {@code draws} and returns where they begin, as the kernels read it.
     *
     * @return INT64 [2]: seed, offset, in {@code scope}
     * @throws IllegalArgumentException when {@code draws} is negative: draws would be handed out twice
     */
    public Tensor next(Scope scope, long draws) {
        if (draws < 0) {
            throw new IllegalArgumentException("draws: expected at least 0, got " + draws);
        }
        Tensor state = scope.tensor(DType.INT64, 2);
        Status.te(
                TransformerEngine.te_extract_seed_and_offset(
                        state.pointer(),
                        0,
                        MemorySegment.NULL,
                        seed,
                        MemorySegment.NULL,
                        offset,
                        0,
                        scope.stream().handle()),
                "nvte_extract_seed_and_offset");
        offset += draws;
        return state;
    }
}
