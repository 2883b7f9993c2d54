package dev.chagres.samples.train;

import dev.chagres.sharding.ZeroStage;
import java.util.Locale;
import java.util.Optional;

/** What each of several ranks keeps of the model. */
enum RankStrategy {
    /** All of it. */
    DDP,
    /** All of it, and a part of the optimizer's state. */
    ZERO1,
    /** All weights, and parts of the optimizer's state and gradients. */
    ZERO2,
    /** Parts of everything. */
    ZERO3;

    /** Returns what is shared out, empty where nothing is. */
    Optional<ZeroStage> stage() {
        return switch (this) {
            case DDP -> Optional.empty();
            case ZERO1 -> Optional.of(ZeroStage.ONE);
            case ZERO2 -> Optional.of(ZeroStage.TWO);
            case ZERO3 -> Optional.of(ZeroStage.THREE);
        };
    }

    @Override
    public String toString() {
        return name().toLowerCase(Locale.ROOT);
    }
}
