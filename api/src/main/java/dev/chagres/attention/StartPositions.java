package dev.chagres.attention;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import java.lang.foreign.MemorySegment;
import org.jspecify.annotations.Nullable;

/**
 * The position of each sequence's first token, on the device.
 *
 * <p>Threading: the device's thread.
 */
final class StartPositions {
    private static final int UNKNOWN = -1;

    private Tensor starts;
    private int latest;
    /** The position behind which no sequence ends; {@link #UNKNOWN}: derived from the latest start and the longest length. */
    private int end;
    /** The issue number of the tensor that holds the numbers. */
    private int issue;

    private StartPositions(Tensor starts, int latest, int end) {
        this.starts = starts;
        this.latest = latest;
        this.end = end;
        issue = Inside.issue(starts);
    }

    /** Makes an object of numbers that the host has written; no sequence ends behind position {@code newEnd}. */
    static StartPositions of(Scope scope, MemorySegment source, int count, int newEnd) {
        StartPositions made = new StartPositions(scope.tensor(DType.INT32, count), newEnd, newEnd);
        made.write(scope, source);
        return made;
    }

    /** Sets such numbers in {@code present}, or in a new object. */
    static StartPositions taken(
            @Nullable StartPositions present, Scope scope, MemorySegment source, int count, int newEnd) {
        if (present == null) {
            return of(scope, source, count, newEnd);
        }
        present.set(scope, source, count, newEnd);
        return present;
    }

    /** Sets other numbers in the same object. */
    void set(Scope scope, MemorySegment source, int count, int newEnd) {
        starts = scope.tensor(DType.INT32, count);
        latest = newEnd;
        end = newEnd;
        issue = Inside.issue(starts);
        write(scope, source);
    }

    private void write(Scope scope, MemorySegment source) {
        starts.copyFrom(scope.stream(), source);
        Inside.fix(starts);
    }

    /** Returns a number of positions behind which no sequence of up to {@code longest} tokens ends. */
    long positions(long longest) {
        return end == UNKNOWN ? longest + latest : end;
    }

    static StartPositions of(Scope scope, int... values) {
        Checks.given("scope", scope);
        int latest = 0;
        for (int i = 0; i < values.length; i++) {
            if (values[i] < 0) {
                throw new IllegalArgumentException("newStarts: expected none negative, got " + values[i] + " at " + i);
            }
            latest = Math.max(latest, values[i]);
        }
        Tensor starts = scope.tensor(DType.INT32, values.length);
        starts.set(scope.stream(), values);
        Inside.fix(starts);
        return new StartPositions(starts, latest, UNKNOWN);
    }

    void check(long sequences) {
        if (Inside.isTakenBack(starts, issue)) {
            throw new IllegalStateException(
                    "sequences: the scope that holds the start positions was restarted since they were made, and may have"
                            + " handed out their memory for something else; make them again");
        }
        starts.address();
        if (starts.count() != sequences) {
            throw new IllegalStateException("sequences: the lengths were set again since the start positions were made,"
                    + " and are of " + sequences + " sequences now, not " + starts.count() + "; make them again");
        }
    }

    Tensor tensor() {
        Inside.trust(starts, "the start positions");
        return starts;
    }

    int latest() {
        return latest;
    }
}
