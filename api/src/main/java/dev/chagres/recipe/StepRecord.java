package dev.chagres.recipe;

import dev.chagres.Stream;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.Capture;

/**
 * Which micro-batches of a step have recorded largest magnitudes, so that those of one that fails can be taken back alone. The device
 * has the largest of all: what one micro-batch has added can be told only while no other one records.
 *
 * <p>Threading: the device's thread.
 */
final class StepRecord {
    /** The number of no micro-batch, and of one that begins in a capture, which records nothing. */
    static final long NONE = -1;

    private final RecipeState state;
    private final Stream stream;
    /** The number of the micro-batch that has begun last. */
    private long latest;
    /** Whether this step has recorded anything. */
    private boolean any;
    /** Whether there is a copy of what this step had recorded before the latest micro-batch. */
    private boolean kept;
    /** Whether something else than the latest micro-batch has recorded since that began. */
    private boolean mixed;

    private final Runnable stepped = this::keepNothing;

    StepRecord(RecipeState state, Stream stream) {
        this.state = state;
        this.stream = stream;
    }

    /** Says that a micro-batch begins, keeps what was recorded before it, and returns its number. */
    long begin() {
        if (Inside.capture(stream) != null) {
            return NONE;
        }
        kept = any;
        mixed = false;
        if (kept) {
            state.keepStep();
        }
        return ++latest;
    }

    /** Says that a micro-batch records, now or at each launch of a graph. */
    void mark(long microBatch) {
        Capture capture = Inside.capture(stream);
        if (capture != null) {
            capture.eachLaunch(this, StepRecord::mix);
            return;
        }
        any = true;
        mixed |= microBatch != latest;
    }

    /** Forgets what a micro-batch has recorded that has failed, where that can be told. */
    void takeBack(long microBatch) {
        if (!any || mixed || microBatch != latest || Inside.capture(stream) != null) {
            return;
        }
        if (kept) {
            state.restoreStep();
        } else {
            state.forgetStep();
        }
    }

    /** Says that what this step has recorded is forgotten. */
    void forget() {
        if (Inside.capture(stream) == null) {
            any = false;
            kept = false;
        }
    }

    /** Says that a step ends, now or at each launch of the graph that holds it. */
    void endStep() {
        Capture capture = Inside.capture(stream);
        if (capture != null) {
            capture.eachLaunch(stepped, Runnable::run);
        }
        forget();
    }

    /** Says that something else than the latest micro-batch has recorded: a graph, or whoever has saved a state that was loaded. */
    void mix() {
        any = true;
        mixed = true;
    }

    private void keepNothing() {
        kept = false;
    }
}
