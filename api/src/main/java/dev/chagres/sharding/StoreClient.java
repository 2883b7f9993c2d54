package dev.chagres.sharding;

import java.io.EOFException;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.SocketTimeoutException;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;

/**
 * The store as ranks other than 0 have it.
 *
 * <p>Threading: thread-safe.
 */
final class StoreClient extends TcpStore {
    private static final long RETRY_NANOS = TimeUnit.MILLISECONDS.toNanos(50);

    /** Twice what ranks have to answer rank 0. */
    private static final long ANSWER_NANOS = TimeUnit.MILLISECONDS.toNanos(1400);

    private final StoreMessages store;
    private final BlockingQueue<StoreMessages.Message> answered = new LinkedBlockingQueue<>();
    private final AtomicInteger questions = new AtomicInteger();
    private final byte[] shared;
    private volatile boolean closed;

    private StoreClient(RankEnvironment environment, StoreMessages store, byte[] shared) {
        super(environment);
        this.store = store;
        this.shared = shared;
    }

    static StoreClient open(RankEnvironment environment, byte[] hello, Duration timeout) {
        long end = System.nanoTime() + timeout.toNanos();
        StoreMessages store = connect(environment, timeout, end);
        try {
            StoreMessages.Message answer = introduce(environment, hello, timeout, end, store);
            if (answer.kind() != StoreMessages.Kind.READY) {
                throw new IllegalStateException(rank(environment) + answer.text());
            }
            StoreClient made = new StoreClient(environment, store, answer.bytes());
            Thread.ofPlatform().daemon().name("chagres-store").start(made::listen);
            return made;
        } catch (RuntimeException failed) {
            store.close();
            throw failed;
        }
    }

    private static String rank(RankEnvironment environment) {
        return "rank " + environment.rank() + " of " + environment.count() + ": ";
    }

    private static int millisUntil(long end) {
        return Math.clamp((end - System.nanoTime()) / 1_000_000, 1, Integer.MAX_VALUE);
    }

    private static StoreMessages connect(RankEnvironment environment, Duration timeout, long end) {
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
            }
        }
    }

    private static void closeQuietly(Socket socket) {
        try {
            socket.close();
        } catch (IOException _) {
            // It was never connected.
        }
    }

    private static StoreMessages.Message introduce(
            RankEnvironment environment, byte[] hello, Duration timeout, long end, StoreMessages store) {
        boolean proven = false;
        try {
            store.timeout(millisUntil(end));
            if (!store.prove(environment.secret(), "rank", "store")) {
                throw new IllegalStateException(otherSecret(environment));
            }
            store.send(StoreMessages.Kind.HELLO, environment.rank(), hello);
            proven = true;
            // Rank 0 names who is missing when its own time is up: it may have begun later.
            store.timeout((int) Math.min(Integer.MAX_VALUE, timeout.toMillis() + millisUntil(end)));
            StoreMessages.Message answer = store.receive();
            store.timeout(0);
            return answer;
        } catch (SocketTimeoutException late) {
            throw new IllegalStateException(
                    rank(environment) + "rank 0 did not answer within " + timeout.toMillis() + " ms", late);
        } catch (EOFException ended) {
            throw new IllegalStateException(
                    proven
                            ? rank(environment) + "rank 0 has ended before all ranks had come"
                            : otherSecret(environment),
                    ended);
        } catch (IOException e) {
            throw new IllegalStateException(
                    rank(environment) + "the connection to rank 0 failed: " + e.getMessage(), e);
        }
    }

    private static String otherSecret(RankEnvironment environment) {
        return rank(environment) + environment.ofVariables(RankEnvironment.SECRET, "secret")
                + ": expected the secret of rank 0, got another, or another program listens at " + environment.store();
    }

    private void listen() {
        try {
            while (true) {
                StoreMessages.Message message = store.receive();
                if (message.kind() == StoreMessages.Kind.DONE) {
                    allDone();
                } else if (message.kind() == StoreMessages.Kind.FAILED) {
                    failed(message.number(), message.text());
                } else if (message.kind() == StoreMessages.Kind.ASK) {
                    String where = answer(message.text()).name();
                    store.send(StoreMessages.Kind.ANSWER, message.number(), StoreMessages.bytes(where));
                } else if (message.kind() == StoreMessages.Kind.ANSWER) {
                    answered.offer(message);
                }
            }
        } catch (IOException ended) {
            if (!closed) {
                failed(0, ENDED);
            }
        }
    }

    @Override
    byte[] shared() {
        return shared.clone();
    }

    @Override
    void fail(int rank, String text) {
        say(StoreMessages.Kind.FAILED, rank, text);
    }

    /** Where rank 0 does not answer in time, it is the one. */
    @Override
    List<Integer> ask(String question) {
        int number = questions.incrementAndGet();
        say(StoreMessages.Kind.ASK, number, question);
        long end = System.nanoTime() + ANSWER_NANOS;
        boolean interrupted = false;
        try {
            while (true) {
                try {
                    StoreMessages.Message answer =
                            answered.poll(Math.max(0, end - System.nanoTime()), TimeUnit.NANOSECONDS);
                    if (answer == null) {
                        return List.of(0);
                    }
                    if (answer.number() == number) {
                        return Inquiry.ranks(answer.text());
                    }
                } catch (InterruptedException _) {
                    interrupted = true;
                }
            }
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    @Override
    void done() {
        say(StoreMessages.Kind.DONE, environment.rank(), "");
    }

    private void say(StoreMessages.Kind kind, int number, String text) {
        try {
            store.send(kind, number, StoreMessages.bytes(text));
        } catch (IOException _) {
            // Rank 0 is gone, and whoever listens hears of that.
        }
    }

    @Override
    public void close() {
        closed = true;
        store.close();
    }
}
