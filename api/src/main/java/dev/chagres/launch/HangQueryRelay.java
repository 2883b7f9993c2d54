package dev.chagres.launch;

import dev.chagres.nccl.PeerProgress;
import java.net.ProtocolException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Passes on the ranks' questions where the others are, at the rank that keeps the store.
 *
 * <p>Threading: thread-safe, under the lock of the {@link StoreServer}.
 */
final class HangQueryRelay {
    /** A rank asks once a communicator that waits in vain. */
    private static final int MOST_OF_A_RANK = 64;

    private final StoreServer server;
    private final Map<Integer, HangQuery> open = new HashMap<>();
    private final Map<Integer, Integer> asked = new HashMap<>();
    private int begun;

    HangQueryRelay(StoreServer server) {
        this.server = server;
    }

    /** Asks for a rank, and tells it who is to blame. */
    void begin(int asking, int number, String question) throws ProtocolException {
        try (var _ = server.lock.hold()) {
            if (asked.merge(asking, 1, Integer::sum) > MOST_OF_A_RANK) {
                throw new ProtocolException("ASK: expected at most " + MOST_OF_A_RANK + " questions at once, got more");
            }
        }
        Thread.ofPlatform().daemon().name("chagres-store-inquiry").start(() -> {
            byte[] blamed = StoreMessages.bytes(HangQuery.text(ask(asking, question)));
            try (var _ = server.lock.hold()) {
                asked.merge(asking, -1, Integer::sum);
                server.tellRank(asking, StoreMessages.Kind.ANSWER, number, blamed);
            }
        });
    }

    /** Asks the other remaining ranks where they are, and returns the ranks at fault. */
    List<Integer> ask(int asking, String question) {
        HangQuery inquiry;
        int number;
        try (var _ = server.lock.hold()) {
            List<Integer> others = new ArrayList<>(server.news.members());
            others.remove(Integer.valueOf(asking));
            inquiry = new HangQuery(others);
            number = begun++;
            int given = number;
            open.put(given, inquiry);
            byte[] text = StoreMessages.bytes(question);
            others.forEach(rank -> server.tellRank(rank, StoreMessages.Kind.ASK, given, text));
        }
        int own = server.environment.rank();
        if (asking != own) {
            inquiry.answer(own, server.news.answer(question));
        }
        List<Integer> blamed = inquiry.await();
        try (var _ = server.lock.hold()) {
            open.remove(number);
        }
        return blamed;
    }

    /** Takes a rank's answer, which may come too late. */
    void answered(int rank, int number, PeerProgress progress) {
        try (var _ = server.lock.hold()) {
            HangQuery inquiry = open.get(number);
            if (inquiry != null) {
                inquiry.answer(rank, progress);
            }
        }
    }
}
