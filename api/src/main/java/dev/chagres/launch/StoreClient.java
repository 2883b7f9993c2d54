package dev.chagres.launch;

import dev.chagres.internal.memory.Uninterruptibles;
import dev.chagres.launch.StoreRank.StoreCall;
import java.io.EOFException;
import java.io.IOException;
import java.net.ConnectException;
import java.net.InetSocketAddress;
import java.net.ProtocolException;
import java.net.Socket;
import java.net.SocketTimeoutException;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.jspecify.annotations.Nullable;

/**
 * The store for ranks that do not keep it.
 *
 * <p>Threading: thread-safe.
 */
final class StoreClient implements AutoCloseable {
    private static final long RETRY_NANOS = TimeUnit.MILLISECONDS.toNanos(50);

    /** Twice the time that ranks have to answer rank 0. */
    private static final long ANSWER_NANOS = TimeUnit.MILLISECONDS.toNanos(1400);
    /** How long the next keeper of the store may take. */
    private static final int SILENCE_MILLIS = 3_000;

    private static final int LOOK_MILLIS = 500;
    private static final byte[] NOTHING = {};

    /** Is told when the rank that keeps the store says nothing more. */
    interface OnEnd {
        void ended(int keeper, String how);
    }

    /** Who is to blame, by the store. */
    private record Answer(int number, List<Integer> ranks) {}

    final int keeper;
    private final StoreMessages store;
    private final PeerStatus news;
    private final OnEnd onEnd;

    private final BlockingQueue<Answer> answered = new LinkedBlockingQueue<>();
    private final AtomicInteger questions = new AtomicInteger();
    /** When the store reported last that it waits for others. */
    private volatile long waited = System.nanoTime();

    private volatile boolean ended;
    /** Whether this rank no longer needs the store. */
    private volatile boolean left;

    StoreClient(int keeper, StoreMessages store, PeerStatus news, OnEnd onEnd) {
        this.keeper = keeper;
        this.store = store;
        this.news = news;
        this.onEnd = onEnd;
        Thread.ofPlatform().daemon().name("chagres-store").start(this::listen);
    }

    /** Connects to rank 0, which may begin to listen later. */
    static StoreMessages connect(RankEnvironment environment, Duration timeout, long end) {
        InetSocketAddress address = environment.store();
        while (true) {
            Socket socket = new Socket();
            try {
                socket.connect(address, millisUntil(end));
                return new StoreMessages(socket);
            } catch (IOException refused) {
                closeQuietly(socket);
                if (System.nanoTime() + RETRY_NANOS > end) {
                    throw new IllegalStateException(
                            rank(environment) + "waited " + timeout.toMillis() + " ms for rank 0 to listen at "
                                    + address
                                    + environment.ofVariables(
                                            " (" + RankEnvironment.ADDRESS + ", " + RankEnvironment.PORT + ")", "")
                                    + ": "
                                    + refused.getMessage(),
                            refused);
                }
                LockSupport.parkNanos(RETRY_NANOS);
                if (Thread.currentThread().isInterrupted()) {
                    throw new IllegalStateException(
                            rank(environment) + "the thread was interrupted while it waited for rank 0 to listen at "
                                    + address,
                            refused);
                }
            }
        }
    }

    /** Greets rank 0, and returns its welcome once all ranks have connected. */
    static HandshakeReply introduce(
            RankEnvironment environment, byte[] hello, Duration timeout, long end, StoreMessages store) {
        boolean proven = false;
        try {
            store.timeout(millisUntil(end));
            if (!store.prove(environment.secret(), "rank", "store")) {
                throw new IllegalStateException(otherSecret(environment));
            }
            store.send(StoreMessages.Kind.HELLO, environment.rank(), hello);
            proven = true;
            // Rank 0 names the missing ranks after its own timeout, which may have begun later.
            store.timeout((int) Math.min(Integer.MAX_VALUE, timeout.toMillis() + millisUntil(end)));
            StoreMessages.Message answer = store.receive();
            store.timeout(0);
            if (answer.kind() != StoreMessages.Kind.READY) {
                throw new IllegalStateException(rank(environment)
                        + (answer.kind() == StoreMessages.Kind.REFUSED
                                ? answer.text()
                                : "the answer of rank 0: expected READY or REFUSED, got " + answer.kind()));
            }
            return HandshakeReply.of(answer.bytes(), environment.count());
        } catch (SocketTimeoutException late) {
            throw new IllegalStateException(
                    rank(environment) + "rank 0 did not answer within " + timeout.toMillis() + " ms", late);
        } catch (EOFException failed) {
            throw new IllegalStateException(
                    rank(environment)
                            + (proven
                                    ? "rank 0 ended before all ranks had connected"
                                    : "the connection to rank 0 ended before it identified itself: rank 0 has ended"
                                            + " or was too slow, or another program listens at " + environment.store()),
                    failed);
        } catch (IOException e) {
            throw new IllegalStateException(
                    rank(environment) + "the connection to rank 0 failed: " + e.getMessage(), e);
        }
    }

    private static String rank(RankEnvironment environment) {
        return "rank " + environment.rank() + " of " + environment.count() + ": ";
    }

    private static int millisUntil(long end) {
        return Math.clamp((end - System.nanoTime()) / 1_000_000, 1, Integer.MAX_VALUE);
    }

    private static String otherSecret(RankEnvironment environment) {
        return rank(environment) + environment.ofVariables(RankEnvironment.SECRET, "secret")
                + ": expected the secret of rank 0, got another, or another program listens at " + environment.store();
    }

    private static void closeQuietly(Socket socket) {
        try {
            socket.close();
        } catch (IOException _) {
            // It was never connected.
        }
    }

    /** Connects to another rank, which is to keep the store; null if it does not answer. */
    static @Nullable StoreMessages reach(RankEnvironment environment, InetSocketAddress address, byte[] hello) {
        Socket socket = new Socket();
        try {
            socket.connect(address, SILENCE_MILLIS);
            StoreMessages store = new StoreMessages(socket);
            store.timeout(SILENCE_MILLIS);
            if (store.prove(environment.secret(), "rank", "store")) {
                store.send(StoreMessages.Kind.HELLO, environment.rank(), hello);
                if (store.receive().kind() == StoreMessages.Kind.READY) {
                    store.timeout(0);
                    return store;
                }
            }
        } catch (IOException _) {
            // It has ended, or is silent.
        }
        closeQuietly(socket);
        return null;
    }

    /** Returns whether the process that listened there has ended: its host refuses connections. */
    static boolean hasEnded(InetSocketAddress address) {
        try (Socket socket = new Socket()) {
            socket.connect(address, LOOK_MILLIS);
            return false;
        } catch (ConnectException refused) {
            return String.valueOf(refused.getMessage()).contains("refused");
        } catch (IOException unreachable) {
            return false;
        }
    }

    /** Reports a failure of an unknown rank to another rank. */
    static void tell(RankEnvironment environment, InetSocketAddress address, byte[] hello, StoreMessages.Told told) {
        try (StoreMessages store = reach(environment, address, hello)) {
            if (store != null) {
                store.send(StoreMessages.Kind.FAILED, -1, told.toBytes());
                store.send(StoreMessages.Kind.LEAVE, 0, NOTHING);
            }
        } catch (IOException _) {
            // It has ended.
        }
    }

    private void listen() {
        String how = TcpStore.ENDED;
        try {
            while (true) {
                StoreMessages.Message message = store.receive();
                if (!left) {
                    take(message);
                }
            }
        } catch (ProtocolException unreadable) {
            how = TcpStore.UNREADABLE + unreadable.getMessage();
        } catch (IOException _) {
            // It is closed now.
        }
        ended = true;
        onEnd.ended(keeper, how);
    }

    private void take(StoreMessages.Message message) throws ProtocolException {
        switch (message.kind()) {
            case DONE -> news.allDone();
            case FAILED -> news.failed(message.number(), StoreMessages.Told.of(message));
            case ASK -> {
                String where = news.answer(message.text()).name();
                // If the store has ended meanwhile, its earlier messages must still be read.
                say(StoreMessages.Kind.ANSWER, message.number(), StoreMessages.bytes(where));
            }
            case ANSWER -> answered.add(new Answer(message.number(), HangQuery.ranks(message.text(), news.count)));
            case CALL -> heard(HangQuery.checked(message.number(), news.count), message.text());
            case WAIT -> waited = System.nanoTime();
            case DECIDED -> news.decided(ShrinkDecision.of(message.bytes(), news.count));
            default -> {
                // The store sends no other messages after its welcome.
            }
        }
    }

    /** Receives another rank's call, and reports a rank that announces too much. */
    private void heard(int rank, String call) {
        try {
            news.heard(rank, call);
        } catch (ProtocolException full) {
            String why = TcpStore.UNREADABLE + full.getMessage();
            if (news.failed(rank, why)) {
                fail(rank, why);
            }
        }
    }

    /** If the rank that keeps the store does not answer in time, it is the one at fault. */
    List<Integer> ask(String question) {
        int number = questions.incrementAndGet();
        say(StoreMessages.Kind.ASK, number, StoreMessages.bytes(question));
        return Uninterruptibles.await(ANSWER_NANOS, left -> {
            long end = System.nanoTime() + left;
            Answer answer;
            do {
                answer = answered.poll(Math.max(0, end - System.nanoTime()), TimeUnit.NANOSECONDS);
            } while (answer != null && answer.number() != number);
            return answer == null ? List.of(keeper) : answer.ranks();
        });
    }

    /** Sends this rank's proposal after a failure until the remaining ranks are decided; null when the store ends or is silent. */
    @Nullable
    ShrinkDecision agree(ShrinkDecision.Proposal proposal, @Nullable ShrinkDecision before) {
        waited = System.nanoTime();
        byte[] bytes = proposal.toBytes();
        while (!ended && System.nanoTime() - waited < TimeUnit.MILLISECONDS.toNanos(SILENCE_MILLIS)) {
            say(StoreMessages.Kind.AGREE, proposal.attempt(), bytes);
            ShrinkDecision made = news.awaitDecision(before, LOOK_MILLIS);
            if (made != null) {
                return made;
            }
        }
        return null;
    }

    void fail(int rank, String text) {
        say(StoreMessages.Kind.FAILED, rank, news.telling(text).toBytes());
    }

    /** Makes the store pass on this rank's call. */
    void call(StoreCall call) {
        say(StoreMessages.Kind.CALL, call.from(), call.toBytes());
    }

    void done(int rank) {
        say(StoreMessages.Kind.DONE, rank, NOTHING);
    }

    private void say(StoreMessages.Kind kind, int number, byte[] bytes) {
        try {
            store.send(kind, number, bytes);
        } catch (IOException _) {
            // The store is gone, which the listening thread reports.
        }
    }

    /** Changes to another store. The old connection stays open, since its end would mean that this rank has ended. */
    void leave(String why) {
        fail(keeper, why);
        left = true;
    }

    @Override
    public void close() {
        left = true;
        store.close();
    }
}
