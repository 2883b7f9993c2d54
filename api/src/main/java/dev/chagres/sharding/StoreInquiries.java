package dev.chagres.sharding;

import dev.chagres.nccl.PeerProgress;
import java.util.ArrayList;
import java.util.List;

/**
 * The questions of ranks where the others are, as the rank passes them on that keeps the store.
 *
 * <p>Threading: thread-safe, under the lock of the {@link StoreServer}.
 */
final class StoreInquiries {
    private final StoreServer server;
    private final List<Inquiry> inquiries = new ArrayList<>();

    StoreInquiries(StoreServer server) {
        this.server = server;
    }

    /** Asks for a rank, and tells it who is to blame. */
    void begin(int asking, int number, String question) {
        Thread.ofPlatform().daemon().name("chagres-store-inquiry").start(() -> {
            byte[] blamed = StoreMessages.bytes(Inquiry.text(ask(asking, question)));
            server.lock.lock();
            try {
                server.tellRank(asking, StoreMessages.Kind.ANSWER, number, blamed);
            } finally {
                server.lock.unlock();
            }
        });
    }

    /** Asks the others that are left where they are, and returns who is to blame. */
    List<Integer> ask(int asking, String question) {
        Inquiry inquiry;
        server.lock.lock();
        try {
            List<Integer> asked = new ArrayList<>(server.news.members());
            asked.remove(Integer.valueOf(asking));
            inquiry = new Inquiry(asked);
            inquiries.add(inquiry);
            int number = inquiries.size() - 1;
            byte[] text = StoreMessages.bytes(question);
            asked.forEach(rank -> server.tellRank(rank, StoreMessages.Kind.ASK, number, text));
        } finally {
            server.lock.unlock();
        }
        int own = server.environment.rank();
        if (asking != own) {
            inquiry.answer(own, server.news.answer(question));
        }
        return inquiry.await();
    }

    /** Takes a rank's answer. */
    void answered(int rank, int number, PeerProgress progress) {
        server.lock.lock();
        try {
            inquiries.get(number).answer(rank, progress);
        } finally {
            server.lock.unlock();
        }
    }
}
