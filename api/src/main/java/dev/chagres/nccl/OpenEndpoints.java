package dev.chagres.nccl;

import dev.chagres.internal.memory.Closing;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.internal.memory.HostWaits;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.jspecify.annotations.Nullable;

/**
 * The communicators of one device, which are closed with it.
 *
 * <p>Threading: the device's thread, but for {@link #latest()}.
 */
final class OpenEndpoints implements AutoCloseable, HostWaits.Interruptible {
    static final DeviceState.Attachment<OpenEndpoints> OF_DEVICE = new DeviceState.Attachment<>(OpenEndpoints::new);

    private final List<Endpoint> open = new ArrayList<>();
    /** The families of closed communicators that had failed. */
    private final Set<Object> failed = new HashSet<>();

    private volatile @Nullable Endpoint latest;

    private OpenEndpoints(DeviceState state) {
        state.waits().interruptedBy(this);
    }

    void add(Endpoint endpoint) {
        open.add(endpoint);
    }

    void remove(Endpoint endpoint) {
        if (endpoint.failure() != null) {
            failed.add(endpoint.family);
        }
        open.remove(endpoint);
    }

    /** Returns whether a communicator of that family has failed, open or closed. */
    boolean hasFailed(Object family) {
        return failed.contains(family) || hasFailedBefore(open.size(), family);
    }

    /** Returns whether one of that family has failed among the first {@code count} that are open. */
    private boolean hasFailedBefore(int count, Object family) {
        for (int i = 0; i < count; i++) {
            if (open.get(i).failure() != null && open.get(i).family.equals(family)) {
                return true;
            }
        }
        return false;
    }

    /** Records that {@code endpoint} is called. */
    void begins(Endpoint endpoint) {
        latest = endpoint;
    }

    /** Returns the one that was called last, also when it is closed; null before the first call. Any thread. */
    @Nullable
    Endpoint latest() {
        return latest;
    }

    /**
     * {@inheritDoc}
     *
     * <p>Communicators that fail together count once: else a thread that has been told of a failure, and waits for the device, would be told
     * again when another thread gets to those that were split from the failed one.
     */
    @Override
    public int failures() {
        int failures = 0;
        for (int i = 0; i < open.size(); i++) {
            failures += isFirstFailed(i) ? 1 : 0;
        }
        return failures;
    }

    private boolean isFirstFailed(int index) {
        Endpoint endpoint = open.get(index);
        return endpoint.failure() != null && !hasFailedBefore(index, endpoint.family);
    }

    @Override
    public void throwNew(int before) {
        int failures = 0;
        for (int i = 0; i < open.size(); i++) {
            Endpoint endpoint = open.get(i);
            RankFailure failure = endpoint.failure();
            failures += isFirstFailed(i) ? 1 : 0;
            if (failure != null && failures > before) {
                throw failure.exception(endpoint.calls.called());
            }
        }
    }

    /** Closes them, newest first. */
    @Override
    public void close() {
        Closing.newestFirst(open);
    }
}
