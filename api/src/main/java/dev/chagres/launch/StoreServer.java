package dev.chagres.launch;

import dev.chagres.internal.ScopedLock;
import dev.chagres.launch.ShrinkDecision.Proposal;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.SocketTimeoutException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.LockSupport;
import org.jspecify.annotations.Nullable;

/**
 * The store at the rank that keeps it: rank 0, or another one after rank 0 has failed. Each rank listens from the beginning.
 *
 * <p>Threading: thread-safe.
 */
final class StoreServer implements AutoCloseable {
    /** How long a connection may take to prove that it is a rank. */
    private static final int INTRODUCTION_MILLIS = 10_000;

    private static final long CLOSING_MILLIS = 1_000;
    private static final long RETRY_NANOS = 20_000_000;
    private static final int LOOK_MILLIS = 500;
    /** How long a rank may leave unread what the store says, once the network's buffers are full. */
    private static final long READING_NANOS = 3_000_000_000L;

    private static final byte[] NOTHING = {};

    final RankEnvironment environment;
    final PeerStatus news;
    final ScopedLock lock = new ScopedLock();
    final Condition changed = lock.newCondition();
    final HangQueryRelay inquiries = new HangQueryRelay(this);
    final ShrinkRounds accords = new ShrinkRounds(this);
    private final Handshake greeting;
    private final @Nullable ServerSocket listening;
    /** Changed with the lock held, and read without, too. */
    private final Map<Integer, StoreMessages> ranks = new ConcurrentSkipListMap<>();

    private final Map<Integer, InetSocketAddress> addresses = new TreeMap<>();
    private final PendingConnections strangers;
    private final Set<Integer> done = new HashSet<>();
    private @Nullable Thread accepting;
    private @Nullable String refusal;
    /** Whether all ranks have connected to rank 0. */
    private boolean ready;

    private boolean closed;

    private StoreServer(Handshake greeting, PeerStatus news, @Nullable ServerSocket listening, boolean ready) {
        environment = greeting.environment();
        this.greeting = greeting;
        strangers = new PendingConnections(environment.count());
        this.news = news;
        this.listening = listening;
        this.ready = ready;
        if (listening != null) {
            accepting = Thread.ofPlatform().daemon().name("chagres-store").start(this::accept);
        }
    }

    /** Keeps the store from the beginning, as rank 0. */
    static StoreServer first(Handshake greeting, PeerStatus news, @Nullable ServerSocket listening) {
        return new StoreServer(greeting, news, listening, false);
    }

    /** Listens, to be able to keep the store later. */
    static StoreServer later(Handshake greeting, PeerStatus news, ServerSocket listening) {
        return new StoreServer(greeting, news, listening, true);
    }

    private void accept() {
        ServerSocket socket = Objects.requireNonNull(listening);
        while (!socket.isClosed()) {
            try {
                socket.setSoTimeout(LOOK_MILLIS);
                Socket connection = socket.accept();
                Thread.ofPlatform().daemon().name("chagres-store-rank").start(() -> serve(connection));
            } catch (SocketTimeoutException _) {
                endThoseThatReadNothing();
            } catch (IOException closedNowOrTooManyFiles) {
                LockSupport.parkNanos(RETRY_NANOS); // Files may be closed meanwhile; more ranks will connect.
            }
        }
    }

    /** Whoever writes to such a rank holds the lock: without its end the others would hear nothing any more, either. */
    private void endThoseThatReadNothing() {
        for (StoreMessages rank : ranks.values()) {
            if (rank.isStuck(READING_NANOS)) {
                rank.end("it does not read what the store says");
            }
        }
    }

    private void serve(Socket socket) {
        try (StoreMessages connection = new StoreMessages(socket)) {
            Integer rank = introduce(connection);
            if (rank != null) {
                new StoreRank(this, rank, connection).serve();
            }
        } catch (IOException _) {
            // It was none of a rank, and its end is told where ranks are missed.
        }
    }

    /** Returns the rank at the other end; null if it is not of this run. */
    private @Nullable Integer introduce(StoreMessages connection) throws IOException {
        connection.timeout(INTRODUCTION_MILLIS);
        strangers.add(connection);
        try {
            StoreMessages.Message hello = strangers.hello(connection, environment.secret());
            return hello == null ? null : welcome(connection, hello.number(), hello.text());
        } finally {
            strangers.remove(connection);
        }
    }

    private @Nullable Integer welcome(StoreMessages connection, int rank, String hello) throws IOException {
        try (var _ = lock.hold()) {
            String wrong = refusal == null ? wrong(rank, hello) : refusal;
            if (closed && wrong == null) {
                return null;
            }
            if (wrong != null) {
                refusal = ready ? null : wrong;
                connection.send(StoreMessages.Kind.REFUSED, 0, StoreMessages.bytes(wrong));
            } else {
                ranks.put(rank, connection);
                addresses.put(rank, new InetSocketAddress(connection.remote(), Handshake.port(hello)));
                if (ready) {
                    connection.send(StoreMessages.Kind.READY, 0, NOTHING);
                }
            }
            changed.signalAll();
            return wrong == null ? rank : null;
        }
    }

    /** Says why a rank cannot come; null when it can. The lock is held. */
    private @Nullable String wrong(int rank, String hello) {
        String other = greeting.wrong(rank, hello);
        if (other != null) {
            return other;
        }
        if (rank < 0 || rank >= environment.count()) {
            return "a rank connected that calls itself " + rank + ": expected one from 0 to "
                    + (environment.count() - 1);
        }
        boolean again = environment.rank() == 0 && (ranks.containsKey(rank) || ready);
        if (rank == environment.rank() || again) {
            return "rank " + rank + " connected a second time: expected each of ranks 0 to " + (environment.count() - 1)
                    + " once";
        }
        return greeting.otherwise(rank, hello);
    }

    /**
     * Waits until all ranks have connected, and tells each of them where the others listen.
     *
     * @throws IllegalStateException when one does not come, or is of another run
     */
    HandshakeReply awaitRanks(byte[] shared, Duration timeout) {
        String wrong;
        try (var _ = lock.hold()) {
            awaitComing(timeout.toNanos());
            ready = refusal == null && ranks.size() == environment.count() - 1;
            wrong = ready ? null : refusal != null ? refusal : missing(timeout);
            refusal = wrong; // For ranks that come now.
            addresses.put(0, environment.store());
            HandshakeReply welcome = new HandshakeReply(shared, List.copyOf(addresses.values()));
            for (StoreMessages rank : ranks.values()) {
                if (ready) {
                    tell(rank, StoreMessages.Kind.READY, 0, welcome.toBytes());
                } else {
                    tell(rank, StoreMessages.Kind.REFUSED, 0, StoreMessages.bytes(String.valueOf(wrong)));
                }
            }
            if (wrong == null) {
                return welcome;
            }
        }
        throw new IllegalStateException("rank 0 of " + environment.count() + ": " + wrong);
    }

    /** Waits, with the lock held, until all have connected or one cannot. */
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

    /** Returns the ranks that have not connected. Any thread. */
    List<Integer> absent() {
        List<Integer> absent = new ArrayList<>();
        for (int rank = 1; rank < environment.count(); rank++) {
            if (!ranks.containsKey(rank)) {
                absent.add(rank);
            }
        }
        return absent;
    }

    private String missing(Duration timeout) {
        List<Integer> absent = absent();
        return "waited " + timeout.toMillis() + " ms for rank"
                + (absent.size() == 1 ? " " + absent.getFirst() : "s " + absent) + " to come"
                + strangers;
    }

    /** Asks the other remaining ranks where they are, and returns the ranks at fault. */
    List<Integer> ask(int asking, String question) {
        return inquiries.ask(asking, question);
    }

    /** Records that a rank has finished. */
    void finished(int rank) {
        accords.comesNoMore(rank);
        try (var _ = lock.hold()) {
            done.add(rank);
            if (done.containsAll(news.members())) {
                news.allDone(); // Before the others learn of it, and end.
                ranks.values().forEach(other -> tell(other, StoreMessages.Kind.DONE, 0, NOTHING));
            }
        }
    }

    /** A rank goes on with another store. */
    void leave(int rank, StoreMessages connection) {
        try (var _ = lock.hold()) {
            ranks.remove(rank, connection);
        }
    }

    /** The connection of a rank has ended, or is to. */
    void lost(int rank, StoreMessages connection, String why) {
        try (var _ = lock.hold()) {
            if (closed || ranks.get(rank) != connection) {
                return;
            }
            if (!ready) {
                ranks.remove(rank);
                refusal = refusal == null ? "rank " + rank + " failed before all ranks had connected: " + why : refusal;
                changed.signalAll();
            }
        }
        ended(rank, why);
    }

    /** A rank says nothing more. */
    void ended(int rank, String why) {
        accords.comesNoMore(rank);
        tellFailure(rank, why);
    }

    /** Receives this rank's proposal after a failure, like those of others. */
    void agree(Proposal proposal) {
        accords.come(environment.rank(), proposal);
    }

    /** Sets where the others listen. */
    void meetAt(List<InetSocketAddress> all) {
        accords.meetAt(all);
    }

    byte[] hello() {
        return greeting.hello(listening == null ? 0 : listening.getLocalPort());
    }

    /** Tells all but that rank that it has failed, where nobody has before. */
    void tellFailure(int rank, String text) {
        if (news.failed(rank, text)) {
            tellOthers(rank, text);
        }
    }

    /** Reports a rank's failure to all others. */
    void tellOthers(int rank, String text) {
        try (var _ = lock.hold()) {
            byte[] told = news.telling(text).toBytes();
            for (Map.Entry<Integer, StoreMessages> other : ranks.entrySet()) {
                if (other.getKey() != rank) {
                    tell(other.getValue(), StoreMessages.Kind.FAILED, rank, told);
                }
            }
        }
    }

    /** Sends the remaining ranks to all ranks; the lock is held. */
    void tellAll(ShrinkDecision decision) {
        byte[] bytes = decision.toBytes();
        ranks.values().forEach(rank -> tell(rank, StoreMessages.Kind.DECIDED, 0, bytes));
    }

    /** Sends them to a connected rank; the lock is held. */
    void tellRank(int rank, StoreMessages.Kind kind, int number, byte[] bytes) {
        StoreMessages connection = ranks.get(rank);
        if (connection != null) {
            tell(connection, kind, number, bytes);
        }
    }

    /** Returns whether a rank has a connection with this one; the lock is held. */
    boolean isConnected(int rank) {
        return ranks.containsKey(rank);
    }

    private static void tell(StoreMessages connection, StoreMessages.Kind kind, int number, byte[] bytes) {
        try {
            connection.send(kind, number, bytes);
        } catch (IOException _) {
            // The thread that reads from it sees its end.
        }
    }

    @Override
    public void close() {
        List<StoreMessages> open;
        try (var _ = lock.hold()) {
            closed = true;
            open = new ArrayList<>(ranks.values());
        }
        accords.close();
        open.forEach(StoreMessages::close);
        strangers.close();
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
            // No more ranks can connect.
        }
    }
}
