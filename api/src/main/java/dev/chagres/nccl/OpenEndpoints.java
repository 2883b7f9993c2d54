package dev.chagres.nccl;

import dev.chagres.internal.memory.DeviceState;
import java.util.ArrayList;
import java.util.List;

/**
 * The communicators of one device, which are closed with it.
 *
 * <p>Threading: the device's thread.
 */
final class OpenEndpoints implements AutoCloseable {
    static final DeviceState.Attachment<OpenEndpoints> OF_DEVICE =
            new DeviceState.Attachment<>(_ -> new OpenEndpoints());

    private final List<Endpoint> open = new ArrayList<>();

    private OpenEndpoints() {}

    void add(Endpoint endpoint) {
        open.add(endpoint);
    }

    void remove(Endpoint endpoint) {
        open.remove(endpoint);
    }

    /** Closes them, newest first. */
    @Override
    public void close() {
        RuntimeException first = null;
        for (Endpoint endpoint : List.copyOf(open).reversed()) {
            try {
                endpoint.close();
            } catch (RuntimeException failure) {
                if (first == null) {
                    first = failure;
                } else {
                    first.addSuppressed(failure);
                }
            }
        }
        if (first != null) {
            throw first;
        }
    }
}
