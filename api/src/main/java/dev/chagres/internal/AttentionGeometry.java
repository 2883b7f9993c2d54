package dev.chagres.internal;

import org.jspecify.annotations.Nullable;

/**
 * What the workspace of an attention call depends on: remembered from call to call, so that layers of one model ask once.
 *
 * <p>Threading: the device's thread.
 */
final class AttentionGeometry {
    private @Nullable AttentionSettings settings;
    private int dtype = -1;
    private long batch;
    private long rows;
    private long columns;
    private int heads;
    private int headDim;
    private long longest;
    private long workspaceBytes;

    /** Returns whether the last {@link #remember} was of a call like this one. */
    boolean isThatOf(AttentionSettings newSettings, AttentionCall call) {
        TensorCell q = call.q;
        return newSettings.equals(settings)
                && q.dtype().code() == dtype
                && call.cuSeqlens().count() == batch
                && q.size(0) == rows
                && q.size(1) == columns
                && q.size(q.rank() - 2) == heads
                && q.size(q.rank() - 1) == headDim
                && call.longest() == longest;
    }

    /** Remembers this call and the workspace it wants. */
    void remember(AttentionSettings newSettings, AttentionCall call, long bytes) {
        TensorCell q = call.q;
        settings = newSettings;
        dtype = q.dtype().code();
        batch = call.cuSeqlens().count();
        rows = q.size(0);
        columns = q.size(1);
        heads = Math.toIntExact(q.size(q.rank() - 2));
        headDim = Math.toIntExact(q.size(q.rank() - 1));
        longest = call.longest();
        workspaceBytes = bytes;
    }

    long workspaceBytes() {
        return workspaceBytes;
    }
}
