package dev.chagres.trainer;

import dev.chagres.parallel.ContextParallel;
import java.util.Locale;

/** Values of {@code --cp-comm-type}: what attention exchanges between context-parallel ranks, by TE's names. */
enum CpCommType {
    /** All tokens of some heads, by an all-to-all. */
    A2A,
    /** Keys and values, which travel round the ranks. */
    P2P,
    /** Keys and values, which all ranks gather. */
    ALL_GATHER;

    /** Returns {@code ranks} with this exchange. */
    ContextParallel of(ContextParallel ranks) {
        return switch (this) {
            case A2A -> ranks;
            case P2P -> ranks.withRing();
            case ALL_GATHER -> ranks.withAllGather();
        };
    }

    @Override
    public String toString() {
        return name().toLowerCase(Locale.ROOT).replace('_', '-');
    }
}
