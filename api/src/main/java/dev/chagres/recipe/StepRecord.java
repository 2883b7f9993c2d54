package dev.chagres.recipe;

import dev.chagres.Stream;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.Capture;

/**
 * Which micro-batches of a step have recorded amaxes, so that those of a failed one can be discarded. The device has only the maximum of
 * all, so the part of one micro-batch is known only while no other one records.
 *
 * <p>Threading: the device's thread.
 */
final class StepRecord {
    /** The number that stands for no micro-batch, and for one that begins in a capture, which records nothing. */
    static final long NONE = -1;

    private final RecipeState state;
    private final Stream stream;
    /** The number of the latest micro-batch. */
    private long latest;
    /** Whether this step has recorded anything. */
    private boolean any;
    /** Whether there is a copy of the amaxes before the latest micro-batch. */
    private boolean kept;
    /** Whether anything but the latest micro-batch has recorded since that began. */
    private boolean mixed;

    private final Runnable stepped = this::keepNothing;

    StepRecord(RecipeState state, Stream stream) {
        this.state = state;
        this.stream = stream;
    }

    /** Begins a micro-batch, keeps the amaxes recorded before it, and returns its number. */
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

    /** Notes that a micro-batch records, now or at each launch of a graph. */
    void mark(long microBatch) {
        Capture capture = Inside.capture(stream);
        if (capture != null) {
            capture.eachLaunch(this, StepRecord::mix);
            return;
        }
        any = true;
        mixed |= microBatch != latest;
    }

    /** Discards what a failed micro-batch has recorded, if that is known. */
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

    /** Notes that the amaxes of this step are discarded. */
    void forget() {
        if (Inside.capture(stream) == null) {
            any = false;
            kept = false;
        }
    }

    /** Ends a step, now or at each launch of the graph that holds it. */
    void endStep() {
        Capture capture = Inside.capture(stream);
        if (capture != null) {
            capture.eachLaunch(stepped, Runnable::run);
        }
        forget();
    }

    /** Notes that something else than the latest micro-batch has recorded: a graph, or a loaded state. */
    void mix() {
        any = true;
        mixed = true;
    }

    private void keepNothing() {
        kept = false;
    }
}
