package dev.chagres.sharding;

import dev.chagres.nccl.PeerProgress;
import java.io.IOException;
import java.net.BindException;
import java.net.ServerSocket;
import java.net.Socket;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.TreeMap;
import org.jspecify.annotations.Nullable;

/**
 * The store as rank 0 has it, which listens.
 *
 * <p>Threading: thread-safe.
 */
final class StoreServer extends TcpStore {
    /** How long a connection may take to prove that it is a rank. */
    private static final int INTRODUCTION_MILLIS = 10_000;

    private static final long CLOSING_MILLIS = 1_000;

    private final String build;
    private final String what;
    private final byte[] shared;
    private final @Nullable ServerSocket listening;
    private final Map<Integer, StoreMessages> ranks = new TreeMap<>();
    private final List<StoreMessages> strangers = new ArrayList<>();
    private final Set<Integer> done = new HashSet<>();
    private final List<Inquiry> inquiries = new ArrayList<>();
    private @Nullable Thread accepting;
    private int unproven;
    private @Nullable String refusal;
    private boolean ready;
    private boolean closed;

    private StoreServer(
            RankEnvironment environment, String build, String what, byte[] shared, @Nullable ServerSocket listening) {
        super(environment);
        this.build = build;
        this.what = what;
        this.shared = shared.clone();
        this.listening = listening;
    }

    static StoreServer open(RankEnvironment environment, String build, String what, byte[] shared, Duration timeout) {
        StoreServer made = new StoreServer(environment, build, what, shared, listening(environment));
        try {
            if (made.listening != null) {
                made.accepting =
                        Thread.ofPlatform().daemon().name("chagres-store").start(made::accept);
                made.awaitRanks(timeout);
            }
            return made;
        } catch (RuntimeException failed) {
            made.close();
            throw failed;
        }
    }

    private static @Nullable ServerSocket listening(RankEnvironment environment) {
        ServerSocket already = environment.listening();
        return already != null || environment.count() == 1 ? already : listen(environment);
    }

    private static ServerSocket listen(RankEnvironment environment) {
        try {
            ServerSocket socket = new ServerSocket();
            try {
                socket.setReuseAddress(true);
                socket.bind(environment.store(), environment.count());
                return socket;
            } catch (IOException failed) {
                socket.close();
                throw failed;
            }
        } catch (BindException used) {
            throw new IllegalStateException(
                    "rank 0 cannot listen at " + environment.store() + ": " + used.getMessage()
                            + "; name another port in " + RankEnvironment.PORT + ", or an address of this host in "
                            + RankEnvironment.ADDRESS,
                    used);
        } catch (IOException e) {
            throw new IllegalStateException(
                    "rank 0 cannot listen at " + environment.store() + ": " + e.getMessage(), e);
        }
    }

    private void accept() {
        while (true) {
            try {
                Socket socket = Objects.requireNonNull(listening).accept();
                Thread.ofPlatform().daemon().name("chagres-store-rank").start(() -> serve(socket));
            } catch (IOException closedNow) {
                return;
            }
        }
    }

    private void serve(Socket socket) {
        try (StoreMessages connection = new StoreMessages(socket)) {
            Integer rank = introduce(connection);
            if (rank == null) {
                return;
            }
            connection.timeout(0);
            try {
                while (true) {
                    take(rank, connection.receive());
                }
            } catch (IOException ended) {
                lost(rank);
            }
        } catch (IOException stranger) {
            unproven();
        }
    }

    /** Returns the rank at the other end, or null when it is none of this run. */
    private @Nullable Integer introduce(StoreMessages connection) throws IOException {
        connection.timeout(INTRODUCTION_MILLIS);
        lock.lock();
        try {
            strangers.add(connection);
        } finally {
            lock.unlock();
        }
        if (!connection.prove(environment.secret(), "store", "rank")) {
            unproven();
            return null;
        }
        StoreMessages.Message hello = connection.receive();
        int rank = hello.number();
        lock.lock();
        try {
            strangers.remove(connection);
            String wrong = wrong(rank, hello.text());
            if (wrong != null) {
                refusal = refusal == null ? wrong : refusal;
                connection.send(StoreMessages.Kind.REFUSED, 0, StoreMessages.bytes(wrong));
            } else {
                ranks.put(rank, connection);
            }
            changed.signalAll();
            return wrong == null ? rank : null;
        } finally {
            lock.unlock();
        }
    }

    private void unproven() {
        lock.lock();
        try {
            unproven++;
        } finally {
            lock.unlock();
        }
    }

    /** Says why a rank cannot come; null when it can. The lock is held. */
    private @Nullable String wrong(int rank, String hello) {
        String[] lines = hello.split("\n", 4);
        if (lines.length != 4 || !lines[0].equals(VERSION)) {
            return "rank " + rank + " is of another version of Chagres: expected \"" + VERSION + "\", got \"" + lines[0]
                    + '"';
        }
        if (!lines[1].equals(build)) {
            return "rank " + rank + " runs another build of Chagres than rank 0: expected \"" + build + "\", got \""
                    + lines[1] + "\"; start all ranks with the same jars and libraries";
        }
        if (!lines[2].equals(Integer.toString(environment.count()))) {
            return "rank " + rank + " is one of " + lines[2] + " ranks: expected " + environment.count()
                    + ", as rank 0 says";
        }
        if (rank < 1 || rank >= environment.count() || ranks.containsKey(rank) || ready) {
            return "rank " + rank + " has come a second time: expected each of ranks 0 to " + (environment.count() - 1)
                    + " once";
        }
        if (!lines[3].equals(what)) {
            return "rank " + rank + " does something else than rank 0: expected " + differing(what, lines[3]) + ", got "
                    + differing(lines[3], what);
        }
        return null;
    }

    /** Returns the lines of {@code text} that are others than those of {@code other}; all of it where there are more or fewer. */
    private static String differing(String text, String other) {
        String[] lines = text.split("\n", -1);
        String[] others = other.split("\n", -1);
        List<String> different = new ArrayList<>();
        for (int i = 0; i < lines.length && lines.length == others.length; i++) {
            if (!lines[i].equals(others[i])) {
                different.add('"' + lines[i] + '"');
            }
        }
        return different.isEmpty() ? '"' + text + '"' : String.join(" and ", different);
    }

    private void awaitRanks(Duration timeout) {
        String wrong;
        lock.lock();
        try {
            awaitComing(timeout.toNanos());
            ready = refusal == null && ranks.size() == environment.count() - 1;
            wrong = ready ? null : refusal != null ? refusal : missing(timeout);
            for (StoreMessages rank : ranks.values()) {
                if (ready) {
                    tell(rank, StoreMessages.Kind.READY, 0, shared);
                } else {
                    tell(rank, StoreMessages.Kind.REFUSED, 0, StoreMessages.bytes(String.valueOf(wrong)));
                }
            }
        } finally {
            lock.unlock();
        }
        if (wrong != null) {
            throw new IllegalStateException("rank 0 of " + environment.count() + ": " + wrong);
        }
    }

    /** Waits, with the lock held, until all have come or never will. */
    private void awaitComing(long nanos) {
        long left = nanos;
        try {
            while (refusal == null && ranks.size() < environment.count() - 1 && left > 0) {
                left = changed.awaitNanos(left);
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException("rank 0 was interrupted while it waited for the other ranks", e);
        }
    }

    private String missing(Duration timeout) {
        List<Integer> absent = new ArrayList<>();
        for (int rank = 1; rank < environment.count(); rank++) {
            if (!ranks.containsKey(rank)) {
                absent.add(rank);
            }
        }
        return "waited " + timeout.toMillis() + " ms for rank"
                + (absent.size() == 1 ? " " + absent.getFirst() : "s " + absent) + " to come"
                + (unproven == 0 ? "" : "; " + unproven + " connections did not know the secret");
    }

    private void take(int rank, StoreMessages.Message message) {
        switch (message.kind()) {
            case FAILED -> tellFailure(message.number(), message.text());
            case DONE -> finished(rank);
            case ASK ->
                Thread.ofPlatform()
                        .daemon()
                        .name("chagres-store-inquiry")
                        .start(() -> inquire(rank, message.number(), message.text()));
            case ANSWER -> answered(rank, message);
            default -> {
                // A rank says nothing else after its hello.
            }
        }
    }

    private void inquire(int asking, int number, String question) {
        byte[] blamed = StoreMessages.bytes(Inquiry.text(inquire(asking, question)));
        lock.lock();
        try {
            StoreMessages connection = ranks.get(asking);
            if (connection != null) {
                tell(connection, StoreMessages.Kind.ANSWER, number, blamed);
            }
        } finally {
            lock.unlock();
        }
    }

    private List<Integer> inquire(int asking, String question) {
        Inquiry inquiry;
        lock.lock();
        try {
            List<Integer> asked = new ArrayList<>(ranks.keySet());
            asked.add(0, 0);
            asked.remove(Integer.valueOf(asking));
            inquiry = new Inquiry(asked);
            inquiries.add(inquiry);
            int number = inquiries.size() - 1;
            ranks.forEach((rank, connection) -> {
                if (rank != asking) {
                    tell(connection, StoreMessages.Kind.ASK, number, StoreMessages.bytes(question));
                }
            });
        } finally {
            lock.unlock();
        }
        if (asking != 0) {
            inquiry.answer(0, answer(question));
        }
        return inquiry.await();
    }

    private void answered(int rank, StoreMessages.Message message) {
        lock.lock();
        try {
            inquiries.get(message.number()).answer(rank, PeerProgress.valueOf(message.text()));
        } finally {
            lock.unlock();
        }
    }

    @Override
    List<Integer> ask(String question) {
        return inquire(0, question);
    }

    private void finished(int rank) {
        boolean all;
        lock.lock();
        try {
            done.add(rank);
            all = done.size() == environment.count();
            for (StoreMessages other : all ? ranks.values() : List.<StoreMessages>of()) {
                tell(other, StoreMessages.Kind.DONE, 0, new byte[0]);
            }
        } finally {
            lock.unlock();
        }
        if (all) {
            allDone();
        }
    }

    /** The connection of a rank has ended. */
    private void lost(int rank) {
        boolean expected;
        lock.lock();
        try {
            expected = closed;
            if (!ready) {
                ranks.remove(rank);
                refusal = refusal == null ? "rank " + rank + " failed before all ranks had come: " + ENDED : refusal;
                changed.signalAll();
            }
        } finally {
            lock.unlock();
        }
        if (!expected) {
            tellFailure(rank, ENDED);
        }
    }

    private void tellFailure(int rank, String text) {
        if (!failed(rank, text)) {
            return;
        }
        tellOthers(rank, text);
    }

    private void tellOthers(int rank, String text) {
        lock.lock();
        try {
            for (Map.Entry<Integer, StoreMessages> other : ranks.entrySet()) {
                if (other.getKey() != rank) {
                    tell(other.getValue(), StoreMessages.Kind.FAILED, rank, StoreMessages.bytes(text));
                }
            }
        } finally {
            lock.unlock();
        }
    }

    private static void tell(StoreMessages connection, StoreMessages.Kind kind, int number, byte[] bytes) {
        try {
            connection.send(kind, number, bytes);
        } catch (IOException _) {
            // Who reads from it finds that it has ended.
        }
    }

    @Override
    byte[] shared() {
        return shared.clone();
    }

    @Override
    void fail(int rank, String text) {
        tellOthers(rank, text);
    }

    @Override
    void done() {
        finished(0);
    }

    @Override
    public void close() {
        List<StoreMessages> open;
        lock.lock();
        try {
            closed = true;
            open = new ArrayList<>(ranks.values());
            open.addAll(strangers);
        } finally {
            lock.unlock();
        }
        open.forEach(StoreMessages::close);
        try {
            if (listening != null) {
                listening.close();
            }
            if (accepting != null) {
                accepting.join(CLOSING_MILLIS); // The port is free when the thread has left the socket.
            }
        } catch (InterruptedException _) {
            Thread.currentThread().interrupt();
        } catch (IOException _) {
            // Nobody can come any more.
        }
    }
}
