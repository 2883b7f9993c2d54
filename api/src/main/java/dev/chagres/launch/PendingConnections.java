package dev.chagres.launch;

import java.io.IOException;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import org.jspecify.annotations.Nullable;

/**
 * Connections to the store that are not yet authenticated as ranks. Each holds a thread, so their number is limited: one more closes the
 * oldest, since ranks authenticate within milliseconds.
 *
 * <p>Threading: thread-safe.
 */
final class PendingConnections implements AutoCloseable {
    /** The limit, beside one connection for each rank, since all ranks may connect at once. */
    static final int BESIDE_RANKS = 64;

    private final int most;
    private final Set<StoreMessages> connections = new LinkedHashSet<>();
    private int unproven;
    private int unreadable;

    PendingConnections(int ranks) {
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

    /** Waits for what a rank says first; null, and counted, where another program is at the other end. */
    StoreMessages.@Nullable Message hello(StoreMessages connection, RankEnvironment.Secret secret) {
        boolean proven = false;
        try {
            proven = connection.prove(secret, "store", "rank");
            if (proven) {
                StoreMessages.Message hello = connection.receive();
                if (hello.kind() == StoreMessages.Kind.HELLO) {
                    return hello;
                }
            }
        } catch (IOException _) {
            // It has ended, was too slow, or is no rank.
        }
        synchronized (connections) {
            unproven += proven ? 0 : 1;
            unreadable += proven ? 1 : 0;
        }
        return null;
    }

    void remove(StoreMessages connection) {
        synchronized (connections) {
            connections.remove(connection);
        }
    }

    /** Returns what an error says of them behind the ranks that are missing; nothing where there were none. */
    @Override
    public String toString() {
        synchronized (connections) {
            return told(unproven, " did not know the secret")
                    + told(unreadable, " knew the secret and did not say which rank it was");
        }
    }

    private static String told(int count, String what) {
        return count == 0 ? "" : "; " + count + (count == 1 ? " connection" : " connections") + what;
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
