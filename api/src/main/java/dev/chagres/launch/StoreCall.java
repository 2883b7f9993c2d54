package dev.chagres.launch;

import java.net.ProtocolException;
import java.util.List;

/**
 * A rank's announcement of its next call, for some of the others.
 *
 * <p>Threading: immutable.
 */
record StoreCall(int from, List<Integer> to, String text) {
    /** Reads what {@link #toBytes} wrote. */
    static StoreCall of(int from, String message, int count) throws ProtocolException {
        int line = message.indexOf('\n');
        if (line < 0) {
            throw new ProtocolException(
                    "CALL: expected a line of ranks, got none in " + message.length() + " characters");
        }
        return new StoreCall(from, HangQuery.ranks(message.substring(0, line), count), message.substring(line + 1));
    }

    /**
     * Sends it to the others, last to the rank that keeps the store: the call may make that rank fail, and the others must receive the call
     * before the failure.
     *
     * @throws ProtocolException when that rank has no room for it
     */
    void passOn(StoreServer server) throws ProtocolException {
        passToOthers(server);
        if (to.contains(server.environment.rank())) {
            server.news.heard(from, text);
        }
    }

    /** Sends it to the others, but not to the rank that keeps the store. */
    void passToOthers(StoreServer server) {
        byte[] bytes = StoreMessages.bytes(text);
        server.lock.lock();
        try {
            to.forEach(rank -> server.tellRank(rank, StoreMessages.Kind.CALL, from, bytes));
        } finally {
            server.lock.unlock();
        }
    }

    byte[] toBytes() {
        return StoreMessages.bytes(HangQuery.text(to) + "\n" + text);
    }
}
