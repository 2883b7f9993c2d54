package dev.chagres.nccl;

import dev.chagres.internal.memory.Closing;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.internal.memory.HostWaits;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * The communicators of one device, which are closed with it.
 *
 * <p>Threading: the device's thread, but for {@link #latest()}.
 */
final class OpenEndpoints implements AutoCloseable, HostWaits.Interruptible {
    static final DeviceState.Attachment<OpenEndpoints> OF_DEVICE = new DeviceState.Attachment<>(OpenEndpoints::new);

    private final List<Endpoint> open = new ArrayList<>();
    private volatile @Nullable Endpoint latest;

    private OpenEndpoints(DeviceState state) {
        state.waits().interruptedBy(this);
    }

    void add(Endpoint endpoint) {
        open.add(endpoint);
    }

    void remove(Endpoint endpoint) {
        open.remove(endpoint);
    }

    /** Says that {@code endpoint} is called. */
    void begins(Endpoint endpoint) {
        latest = endpoint;
    }

    /** Returns the one that was called last, also when it is closed; null before the first call. Any thread. */
    @Nullable
    Endpoint latest() {
        return latest;
    }

    @Override
    public int failures() {
        int failures = 0;
        for (int i = 0; i < open.size(); i++) {
            failures += open.get(i).failure() == null ? 0 : 1;
        }
        return failures;
    }

    @Override
    public void throwNew(int before) {
        int failures = 0;
        for (Endpoint endpoint : open) {
            RankFailure failure = endpoint.failure();
            failures += failure == null ? 0 : 1;
            if (failure != null && failures > before) {
                throw failure.exception(endpoint.calls().called());
            }
        }
    }

    /** Closes them, newest first. */
    @Override
    public void close() {
        Closing.newestFirst(open);
    }
}
