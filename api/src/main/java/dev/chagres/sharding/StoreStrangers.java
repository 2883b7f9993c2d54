package dev.chagres.sharding;

import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;

/**
 * Connections to the store that have not proved yet to be those of ranks. Each holds a thread, so only so many are kept: one more closes the
 * oldest, for a rank proves itself within milliseconds.
 *
 * <p>Threading: thread-safe.
 */
final class StoreStrangers implements AutoCloseable {
    /** As many as may be kept beside one connection of each rank, for all ranks may come at once. */
    static final int BESIDE_RANKS = 64;

    private final int most;
    private final Set<StoreMessages> connections = new LinkedHashSet<>();

    StoreStrangers(int ranks) {
        most = ranks + BESIDE_RANKS;
    }

    void add(StoreMessages connection) {
        StoreMessages oldest = null;
        synchronized (connections) {
            connections.add(connection);
            if (connections.size() > most) {
                oldest = connections.iterator().next();
                connections.remove(oldest);
            }
        }
        if (oldest != null) {
            oldest.close();
        }
    }

    void remove(StoreMessages connection) {
        synchronized (connections) {
            connections.remove(connection);
        }
    }

    @Override
    public void close() {
        List<StoreMessages> open;
        synchronized (connections) {
            open = List.copyOf(connections);
        }
        open.forEach(StoreMessages::close);
    }
}
