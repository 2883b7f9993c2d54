package dev.chagres.launch;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.logging.Handler;
import java.util.logging.LogRecord;
import java.util.logging.Logger;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Ranks that wait for others say so in the log, once, long before the timeout. */
@Tag("L0")
@Timeout(900)
class StoreWaitTest {
    private static final Duration TIMEOUT = Duration.ofSeconds(600);
    private static final Duration PATIENCE = Duration.ofMillis(300);

    private final Logger logger = Logger.getLogger("dev.chagres");
    private final BlockingQueue<String> logged = new LinkedBlockingQueue<>();
    private final Handler handler = new Handler() {
        @Override
        public void publish(LogRecord line) {
            if (line.getMessage().startsWith("rank ")) {
                logged.add(line.getMessage());
            }
        }

        @Override
        public void flush() {}

        @Override
        public void close() {}
    };

    private int port;

    @BeforeEach
    void listen() {
        logger.addHandler(handler);
    }

    private void choosePort() throws IOException {
        try (ServerSocket free = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            port = free.getLocalPort();
        }
    }

    @AfterEach
    void listenNoMore() {
        logger.removeHandler(handler);
    }

    private CompletableFuture<TcpStore> join(int rank, int count, Duration timeout, Duration patience) {
        RankEnvironment environment = new RankEnvironment(
                RankEnvironment.Launcher.CHAGRES.toString(),
                rank,
                count,
                rank,
                new InetSocketAddress("127.0.0.1", port),
                new RankEnvironment.Secret("0123456789abcdef".getBytes(StandardCharsets.UTF_8)),
                null);
        CompletableFuture<TcpStore> joined = new CompletableFuture<>();
        Thread.ofPlatform().daemon().start(() -> {
            try {
                joined.complete(TcpStore.join(environment, "1a2b", "train", new byte[] {1}, timeout, patience));
            } catch (Throwable failure) {
                joined.completeExceptionally(failure);
            }
        });
        return joined;
    }

    @Test
    void eachRankSaysForWhomItWaits() throws Exception {
        Duration patience = PATIENCE;
        while (!eachSays(patience)) {
            patience = patience.multipliedBy(2); // The machine is so busy that a rank did not connect within it.
        }
    }

    private static String text(Duration time) {
        return time.toMillis() % 1000 == 0 ? time.toSeconds() + " s" : time.toMillis() + " ms";
    }

    /** Returns false when a rank that was to connect before another one spoke had not yet, and those that waited said that. */
    private boolean eachSays(Duration patience) throws Exception {
        choosePort();
        String waited = " of 4 has waited " + text(patience) + " for ";
        String end = "; it gives up after 600 s";
        String toListen = "rank 0 to listen at /127.0.0.1:" + port + end;
        CompletableFuture<TcpStore> two = join(2, 4, TIMEOUT, patience);
        assertEquals("rank 2" + waited + toListen, logged.take());
        CompletableFuture<TcpStore> zero = join(0, 4, TIMEOUT, patience);
        String ofZero = logged.take();
        CompletableFuture<TcpStore> one = join(1, 4, TIMEOUT, patience);
        String ofOne = logged.take();
        CompletableFuture<TcpStore> three = join(3, 4, TIMEOUT, patience);
        List<TcpStore> all = List.of(zero.join(), one.join(), two.join(), three.join());
        all.forEach(TcpStore::done);
        all.forEach(TcpStore::awaitAll);
        all.forEach(TcpStore::close);
        if (ofZero.equals("rank 0" + waited + "ranks 1, 2, 3 to come" + end)
                || ofOne.equals("rank 1" + waited + toListen)
                || logged.removeIf(line -> line.startsWith("rank 3" + waited))) {
            logged.clear();
            return false;
        }
        assertEquals("rank 0" + waited + "ranks 1, 3 to come" + end, ofZero);
        assertEquals("rank 1" + waited + "rank 0, which waits for others: its log names them" + end, ofOne);
        assertEquals(0, logged.size());
        return true;
    }

    @Test
    void ranksThatGiveUpEarlierSayNothingBefore() throws Exception {
        choosePort();
        assertThrows(CompletionException.class, join(0, 2, Duration.ofMillis(200), PATIENCE)::join);
        assertEquals(0, logged.size());
    }
}
