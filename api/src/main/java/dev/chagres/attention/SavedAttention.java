package dev.chagres.attention;

import dev.chagres.Tensor;
import dev.chagres.internal.AttentionCall;
import dev.chagres.internal.AttentionSettings;
import org.jspecify.annotations.Nullable;

/**
 * What the backward pass of attention needs of the forward pass. It lives in the scope that forward was given.
 *
 * <p>Threading: the device's thread.
 */
public final class SavedAttention {
    private final AttentionCall call;
    private final Tensor output;
    private @Nullable AttentionSettings settings;
    private @Nullable AttentionKernels kernels;
    private @Nullable Tensor statistics;
    private @Nullable Sequences sequences;
    private long issues;

    SavedAttention(AttentionCall call, Tensor output) {
        this.call = call;
        this.output = output;
    }

    /** Returns the output, like the query. */
    public Tensor output() {
        return output;
    }

    /** Returns the log-sum-exp of each query's scores: FLOAT32 [T, h, 1] packed, [B, h, S, 1] dense. */
    public Tensor statistics() {
        return present(statistics);
    }

    void ran(AttentionSettings with, AttentionKernels by, Sequences over, Tensor result) {
        settings = with;
        kernels = by;
        sequences = over;
        statistics = result;
        issues = issues();
    }

    /**
     * Checks that every tensor of the record still is what forward left there.
     *
     * @throws IllegalStateException when a scope was restarted since and has handed memory out for something else
     */
    void ensureCurrent() {
        output.cell().ensureUsable();
        if (issues() != issues) {
            throw new IllegalStateException(
                    "saved: " + output.cell().scope()
                            + " was restarted since forward and has handed out its memory for something else; run forward again");
        }
    }

    /** Numbers of issues only grow, so their sum tells whether one of them has. */
    private long issues() {
        return call.issues() + output.cell().issue() + statistics().cell().issue();
    }

    AttentionCall call() {
        return call;
    }

    AttentionSettings settings() {
        return present(settings);
    }

    /** Returns which kernels forward ran; backward must run the same. */
    AttentionKernels kernels() {
        return present(kernels);
    }

    /** Returns the sequences that forward was given. */
    public Sequences sequences() {
        return present(sequences);
    }

    private static <T> T present(@Nullable T value) {
        if (value == null) {
            throw new IllegalStateException("forward has not completed");
        }
        return value;
    }
}
