package dev.chagres.sharding;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
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
@Timeout(60)
class StoreWaitTest {
    private static final Duration TIMEOUT = Duration.ofSeconds(20);
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
    void listen() throws IOException {
        logger.addHandler(handler);
        try (ServerSocket free = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            port = free.getLocalPort();
        }
    }

    @AfterEach
    void listenNoMore() {
        logger.removeHandler(handler);
    }

    private CompletableFuture<TcpStore> join(int rank, int count, Duration timeout) {
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
                joined.complete(TcpStore.join(environment, "1a2b", "train", new byte[] {1}, timeout, PATIENCE));
            } catch (Throwable failure) {
                joined.completeExceptionally(failure);
            }
        });
        return joined;
    }

    private String line() throws InterruptedException {
        return Objects.requireNonNull(logged.poll(20, TimeUnit.SECONDS), "nothing was logged");
    }

    @Test
    void eachRankSaysForWhomItWaits() throws InterruptedException {
        CompletableFuture<TcpStore> two = join(2, 4, TIMEOUT);
        assertEquals(
                "rank 2 of 4 has waited 300 ms for rank 0 to listen at /127.0.0.1:" + port + "; it gives up after 20 s",
                line());
        CompletableFuture<TcpStore> zero = join(0, 4, TIMEOUT);
        assertEquals("rank 0 of 4 has waited 300 ms for ranks 1, 3 to come; it gives up after 20 s", line());
        CompletableFuture<TcpStore> one = join(1, 4, TIMEOUT);
        assertEquals(
                "rank 1 of 4 has waited 300 ms for rank 0, which waits for others: its log names them; it gives up after"
                        + " 20 s",
                line());
        CompletableFuture<TcpStore> three = join(3, 4, TIMEOUT);
        List<TcpStore> all = List.of(zero.join(), one.join(), two.join(), three.join());
        assertEquals(0, logged.size());
        all.forEach(TcpStore::done);
        all.forEach(TcpStore::awaitAll);
        all.forEach(TcpStore::close);
    }

    @Test
    void ranksThatGiveUpEarlierSayNothingBefore() {
        assertThrows(CompletionException.class, join(0, 2, Duration.ofMillis(200))::join);
        assertEquals(0, logged.size());
    }
}
