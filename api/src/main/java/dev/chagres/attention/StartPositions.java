package dev.chagres.attention;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;

/**
 * The position of each sequence's first token, on the device.
 *
 * <p>Threading: the device's thread.
 */
final class StartPositions {
    private final Tensor starts;
    private final int latest;
    /** The issue number of the tensor that holds the numbers. */
    private final int issue;

    private StartPositions(Tensor starts, int latest) {
        this.starts = starts;
        this.latest = latest;
        issue = Inside.issue(starts);
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
        return new StartPositions(starts, latest);
    }

    void check(long sequences) {
        if (Inside.issue(starts) != issue) {
            throw new IllegalStateException(
                    "sequences: the scope that holds the start positions was restarted since they were made, and has"
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
