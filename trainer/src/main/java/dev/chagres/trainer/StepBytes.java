package dev.chagres.trainer;

import dev.chagres.nccl.MovedBytes;
import dev.chagres.nccl.Operation;

/**
 * How many bytes a rank's collectives and transfers have moved in each of the steps whose results are unread.
 *
 * <p>Threading: the device's thread.
 */
final class StepBytes {
    private static final Operation[] OPERATIONS = Operation.values();
    /** The steps whose results are unread, and the one that is enqueued. */
    private static final int STEPS = Esm2Training.UNREAD + 1;

    private final MovedBytes moved;
    private final long[] before = new long[OPERATIONS.length];
    private final long[][] steps = new long[STEPS][OPERATIONS.length];
    private int ended;
    private int read;

    /** Counts those of the rank that moves {@code moved}. */
    StepBytes(MovedBytes moved) {
        this.moved = moved;
    }

    /** Says that what is called next belongs to a step. */
    void begin() {
        for (Operation operation : OPERATIONS) {
            before[operation.ordinal()] = moved.by(operation);
        }
    }

    /** Says that the step has called everything. */
    void end() {
        long[] step = steps[ended++ % STEPS];
        for (Operation operation : OPERATIONS) {
            step[operation.ordinal()] = moved.by(operation) - before[operation.ordinal()];
        }
    }

    /** Returns those of the oldest step that was not asked for, by the operation's ordinal; read before as many more steps as results are unread. */
    long[] read() {
        return steps[read++ % STEPS].clone();
    }
}
