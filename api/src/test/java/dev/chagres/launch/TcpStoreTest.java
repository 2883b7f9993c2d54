package dev.chagres.launch;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.launch.ProcessRun.LibraryBuild;
import dev.chagres.nccl.PeerAgreement;
import dev.chagres.nccl.PeerProgress;
import dev.chagres.nccl.RankFailedException;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.locks.LockSupport;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Ranks that come to the store, and those that do not, come twice, or are of another run. */
@Tag("L0")
@Timeout(60)
class TcpStoreTest {
    private static final String SECRET = "0123456789abcdef";
    private static final Duration TIMEOUT = Duration.ofSeconds(2);
    private static final byte[] SHARED = {1, 2, 3};

    private int port;

    @BeforeEach
    void findPort() throws IOException {
        try (ServerSocket free = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            port = free.getLocalPort();
        }
    }

    private RankEnvironment environment(int rank, int count, String secret) {
        return new RankEnvironment(
                RankEnvironment.Launcher.CHAGRES.toString(),
                rank,
                count,
                rank,
                new InetSocketAddress("127.0.0.1", port),
                new RankEnvironment.Secret(secret.getBytes(StandardCharsets.UTF_8)),
                null);
    }

    private CompletableFuture<TcpStore> join(int rank, int count, String what, String secret) {
        return join(rank, count, "1a2b", what, secret);
    }

    private CompletableFuture<TcpStore> join(int rank, int count, String build, String what, String secret) {
        RankEnvironment environment = environment(rank, count, secret);
        CompletableFuture<TcpStore> joined = new CompletableFuture<>();
        Thread.ofPlatform().daemon().start(() -> {
            try {
                joined.complete(TcpStore.join(environment, build, what, SHARED, TIMEOUT));
            } catch (Throwable failure) {
                joined.completeExceptionally(failure);
            }
        });
        return joined;
    }

    private static String failure(CompletableFuture<TcpStore> joined) {
        Throwable thrown = assertThrows(CompletionException.class, joined::join).getCause();
        assertInstanceOf(IllegalStateException.class, thrown);
        assertFalse(String.valueOf(thrown.getMessage()).contains(SECRET));
        return String.valueOf(thrown.getMessage());
    }

    private List<TcpStore> all(int count) {
        List<CompletableFuture<TcpStore>> joining = new ArrayList<>();
        for (int rank = 0; rank < count; rank++) {
            joining.add(join(rank, count, "train", SECRET));
        }
        return joining.stream().map(CompletableFuture::join).toList();
    }

    @Test
    void allGetWhatRank0GivesAndFinishTogether() {
        List<TcpStore> stores = all(3);
        for (TcpStore store : stores) {
            assertArrayEquals(SHARED, store.shared());
            store.done();
        }
        for (TcpStore store : stores) {
            assertNull(store.awaitAll());
        }
        stores.forEach(TcpStore::close);
    }

    @Test
    void oneRankNeedsNoOther() {
        try (TcpStore store = join(0, 1, "train", SECRET).join()) {
            store.done();
            assertNull(store.awaitAll());
        }
    }

    @Test
    void aConnectionThatEndsNamesItsRankEverywhere() throws IOException {
        List<TcpStore> stores = all(3);
        stores.get(2).close();
        for (int rank = 0; rank < 2; rank++) {
            assertEquals(
                    new TcpStore.Failure(2, TcpStore.ENDED), stores.get(rank).awaitAll());
        }
        stores.forEach(TcpStore::close);
        findPort(); // the old one is not free at once
        List<TcpStore> others = all(3);
        others.get(0).close();
        for (int rank = 1; rank < 3; rank++) {
            assertEquals(
                    new TcpStore.Failure(0, TcpStore.ENDED), others.get(rank).awaitAll());
        }
        others.forEach(TcpStore::close);
    }

    @Test
    void aRankTellsOfItsFailure() {
        for (int failing = 0; failing < 2; failing++) {
            List<TcpStore> stores = all(2);
            stores.get(failing).fail(failing, "it is ill");
            TcpStore.Failure told = stores.get(1 - failing).awaitAll();
            assertNotNull(told);
            assertEquals(new TcpStore.Failure(failing, "it is ill"), told);
            stores.forEach(TcpStore::close);
        }
    }

    @Test
    void whoDoesNotComeIsNamedToAll() {
        CompletableFuture<TcpStore> zero = join(0, 4, "train", SECRET);
        CompletableFuture<TcpStore> two = join(2, 4, "train", SECRET);
        assertEquals("rank 0 of 4: waited 2000 ms for ranks [1, 3] to come", failure(zero));
        assertEquals("rank 2 of 4: waited 2000 ms for ranks [1, 3] to come", failure(two));
    }

    @Test
    void withoutRank0TheOthersSayWhereItWasExpected() {
        assertTrue(failure(join(1, 2, "train", SECRET))
                .startsWith("rank 1 of 2: waited 2000 ms for rank 0 to listen at /127.0.0.1:" + port
                        + " (CHAGRES_STORE_ADDRESS, CHAGRES_STORE_PORT): "));
    }

    @Test
    void anInterruptEndsTheWaitForRank0() {
        Thread.currentThread().interrupt();
        String text = assertThrows(
                        IllegalStateException.class,
                        () -> TcpStore.join(environment(1, 2, SECRET), "1a2b", "train", SHARED, TIMEOUT))
                .getMessage();
        assertTrue(Thread.interrupted(), "it is for the caller");
        assertEquals(
                "rank 1 of 2: the thread was interrupted while it waited for rank 0 to listen at /127.0.0.1:" + port,
                text);
    }

    private void refusedByAll(String text, CompletableFuture<TcpStore> zero, CompletableFuture<TcpStore> other) {
        assertEquals("rank 0 of 3: " + text, failure(zero));
        assertTrue(failure(other).endsWith(": " + text));
    }

    @Test
    void aRankOfAnotherRunIsRefused() throws IOException {
        refusedByAll(
                "rank 1 does something else than rank 0: expected \"train\", got \"sing\"",
                join(0, 3, "train", SECRET),
                join(1, 3, "sing", SECRET));
        findPort();
        refusedByAll(
                "rank 1 runs another build of Chagres than rank 0: expected \"1a2b\", got \"3c4d\"; start all ranks with the"
                        + " same jars and libraries",
                join(0, 3, "train", SECRET),
                join(1, 3, "3c4d", "train", SECRET));
        findPort();
        refusedByAll(
                "rank 1 is one of 2 ranks: expected 3, as rank 0 says",
                join(0, 3, "train", SECRET),
                join(1, 2, "train", SECRET));
        findPort();
        CompletableFuture<TcpStore> zero = join(0, 3, "train", SECRET);
        CompletableFuture<TcpStore> first = join(2, 3, "train", SECRET);
        CompletableFuture<TcpStore> second = join(2, 3, "train", SECRET);
        String text = "rank 2 connected a second time: expected each of ranks 0 to 2 once";
        assertEquals("rank 0 of 3: " + text, failure(zero));
        assertEquals("rank 2 of 3: " + text, failure(first));
        assertEquals("rank 2 of 3: " + text, failure(second));
    }

    @Test
    void whoDoesNotKnowTheSecretIsNoRankAndDoesNoHarm() throws IOException {
        CompletableFuture<TcpStore> zero = join(0, 2, "train", SECRET);
        assertEquals(
                "rank 1 of 2: CHAGRES_STORE_SECRET: expected the secret of rank 0, got another, or another program listens at"
                        + " /127.0.0.1:" + port,
                failure(join(1, 2, "train", "fedcba9876543210")));
        try (Socket stranger = new Socket(InetAddress.getLoopbackAddress(), port)) {
            stranger.getOutputStream()
                    .write("GET / HTTP/1.1\r\n\r\n                                     "
                            .getBytes(StandardCharsets.UTF_8));
        }
        TcpStore one = join(1, 2, "train", SECRET).join();
        TcpStore store = zero.join();
        one.close();
        store.close();
    }

    @Test
    void aConnectionThatEndsEarlyIsNoWrongSecret() throws IOException {
        try (ServerSocket other = new ServerSocket(port, 1, InetAddress.getLoopbackAddress())) {
            CompletableFuture<TcpStore> one = join(1, 2, "train", SECRET);
            other.accept().close();
            String text = failure(one);
            assertTrue(
                    text.contains("the connection to rank 0 ended before it identified itself")
                            || text.contains("the connection to rank 0 failed"),
                    text);
        }
    }

    @Test
    void aBuildIsThatOfItsClassesAndOfNccl() {
        String text = LibraryBuild.text();
        assertTrue(text.matches("classes [0-9a-f]+, \\w+ with NCCL \\d+"), text);
        assertEquals(text, LibraryBuild.text());
    }

    /** Ranks answer who is behind; one that says nothing is to blame, or else one that waits for others. */
    @Test
    void theyFindOutWhoIsBehind() {
        List<TcpStore> stores = all(4);
        stores.get(0).answering(_ -> PeerProgress.WAITS);
        stores.get(1).answering(_ -> PeerProgress.LATE);
        stores.get(2).answering(question -> question.equals("a b") ? PeerProgress.CAME : PeerProgress.LATE);
        stores.get(3).answering(_ -> PeerProgress.CAME);
        assertEquals(List.of(1), stores.get(2).ask("a b"));
        assertEquals(List.of(1), stores.get(0).ask("a b"));
        stores.get(1).answering(_ -> PeerProgress.CAME);
        assertEquals(List.of(0), stores.get(3).ask("a b"));
        assertEquals(List.of(), stores.get(0).ask("a b"));
        Thread.currentThread().interrupt();
        assertEquals(List.of(), stores.get(0).ask("a b"), "an interrupt blames nobody");
        assertTrue(Thread.interrupted(), "it is for the caller");
        stores.get(2).answering(_ -> {
            LockSupport.park();
            return PeerProgress.CAME;
        });
        assertEquals(List.of(2), stores.get(1).ask("a b"));
        stores.get(0).answering(_ -> {
            LockSupport.parkNanos(3_000_000_000L);
            return PeerProgress.CAME;
        });
        assertEquals(List.of(0), stores.get(1).ask("c d"));
        stores.forEach(TcpStore::close);
    }

    private static CompletableFuture<PeerAgreement.Outcome> agree(TcpStore store, List<Integer> missed, long value) {
        PeerAgreement.Proposal proposal =
                new PeerAgreement.Proposal(List.of(0, 1, 2), missed, "it is ill", value, Duration.ofSeconds(20));
        CompletableFuture<PeerAgreement.Outcome> agreed = new CompletableFuture<>();
        Thread.ofPlatform().daemon().start(() -> {
            try {
                agreed.complete(store.agree(proposal));
            } catch (Throwable failure) {
                agreed.completeExceptionally(failure);
            }
        });
        return agreed;
    }

    private static String late(CompletableFuture<PeerAgreement.Outcome> agreed) {
        Throwable thrown = assertThrows(CompletionException.class, agreed::join).getCause();
        return String.valueOf(
                assertInstanceOf(RankFailedException.class, thrown).getMessage());
    }

    @Test
    void theLowestRankThatLivesKeepsTheStoreAfterRank0() {
        List<TcpStore> stores = all(3);
        stores.get(0).close();
        var one = agree(stores.get(1), List.of(), 4);
        var two = agree(stores.get(2), List.of(), 3);
        assertEquals(Map.of(1, 4L, 2, 3L), one.join().left());
        assertEquals(Map.of(1, 4L, 2, 3L), two.join().left());
        assertArrayEquals(one.join().id(), two.join().id());
        stores.get(2).fail(2, "it is ill");
        assertEquals(new TcpStore.Failure(2, "it is ill"), stores.get(1).awaitAll());
        stores.get(2).close();
        assertEquals(Map.of(1, 9L), agree(stores.get(1), List.of(), 9).join().left());
        stores.get(1).done();
        assertNull(stores.get(1).awaitAll());
        stores.get(1).close();
    }

    @Test
    void oneThatWasMissedComesTooLate() {
        for (int missed = 0; missed < 3; missed += 2) {
            List<TcpStore> stores = all(3);
            int other = 2 - missed;
            var first = agree(stores.get(1), List.of(missed), 4);
            var second = agree(stores.get(other), List.of(missed), 4);
            assertEquals(Map.of(1, 4L, other, 4L), first.join().left());
            assertEquals(Map.of(1, 4L, other, 4L), second.join().left());
            String text = late(agree(stores.get(missed), List.of(), 3));
            assertTrue(text.startsWith("rank " + missed + " came too late: "), text);
            stores.get(1).done();
            stores.get(other).done();
            assertNull(stores.get(1).awaitAll());
            stores.forEach(TcpStore::close);
            findPortAgain();
        }
    }

    private void findPortAgain() {
        try {
            findPort();
        } catch (IOException failed) {
            throw new UncheckedIOException(failed);
        }
    }

    @Test
    void aPortInUseIsNamed() throws IOException {
        try (ServerSocket used = new ServerSocket(port, 1, InetAddress.getLoopbackAddress())) {
            assertEquals(port, used.getLocalPort());
            String text = failure(join(0, 2, "train", SECRET));
            assertTrue(text.startsWith("rank 0 cannot listen at /127.0.0.1:" + port + ": "), text);
            assertTrue(
                    text.endsWith(
                            "; name another port in CHAGRES_STORE_PORT, or an address of this host in CHAGRES_STORE_ADDRESS"),
                    text);
        }
    }
}
