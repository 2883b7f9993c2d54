package dev.chagres.launch;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.launch.StoreMessages.Kind;
import dev.chagres.nccl.PeerProgress;
import dev.chagres.nccl.UniqueId;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CopyOnWriteArrayList;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Processes that know the secret of the ranks and say what no rank says: the others fail at once, and the error tells why. */
@Tag("L0")
@Timeout(60)
class StoreGarbageTest {
    private static final RankEnvironment.Secret SECRET =
            new RankEnvironment.Secret("0123456789abcdef".getBytes(StandardCharsets.UTF_8));
    private static final int RANKS = 3;
    private static final Duration TIMEOUT = Duration.ofSeconds(2);
    /** What a rank's hello has of the address at which it listens. */
    private static final String PORT = "29400";

    private final List<AutoCloseable> open = new CopyOnWriteArrayList<>();
    private int port;

    @BeforeEach
    void findPort() throws IOException {
        try (ServerSocket free = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            port = free.getLocalPort();
        }
    }

    @AfterEach
    void closeAll() throws Exception {
        for (AutoCloseable one : open) {
            one.close();
        }
    }

    private CompletableFuture<TcpStore> join(int rank) {
        RankEnvironment environment = new RankEnvironment(
                "a test", rank, RANKS, rank, new InetSocketAddress("127.0.0.1", port), SECRET, null);
        CompletableFuture<TcpStore> joined = new CompletableFuture<>();
        Thread.ofPlatform().daemon().start(() -> {
            try {
                TcpStore store = TcpStore.join(environment, "1a2b", "train", new byte[] {1}, TIMEOUT);
                open.add(store);
                joined.complete(store);
            } catch (Throwable failure) {
                joined.completeExceptionally(failure);
            }
        });
        return joined;
    }

    private static String failure(CompletableFuture<TcpStore> joined) {
        Throwable thrown = assertThrows(CompletionException.class, joined::join).getCause();
        return String.valueOf(thrown.getMessage());
    }

    /** A process that has proved that it knows the secret, for rank 1. */
    private final class Stranger {
        private final StoreMessages messages;
        private final DataOutputStream out;

        Stranger() throws IOException {
            Socket socket = connect();
            messages = new StoreMessages(socket);
            open.add(messages);
            assertTrue(messages.prove(SECRET, "rank", "store"));
            out = new DataOutputStream(socket.getOutputStream());
        }

        private Socket connect() throws IOException {
            while (true) {
                try {
                    return new Socket(InetAddress.getLoopbackAddress(), port);
                } catch (IOException _) {
                    Thread.onSpinWait(); // Rank 0 begins to listen.
                }
            }
        }

        Stranger hello(int rank, String listening) throws IOException {
            String text = "chagres store 3\n1a2b\n" + RANKS + "\n" + listening + "\ntrain";
            messages.send(Kind.HELLO, rank, text.getBytes(StandardCharsets.UTF_8));
            return this;
        }

        void header(int kind, int number, int length) throws IOException {
            out.writeByte(kind);
            out.writeInt(number);
            out.writeInt(length);
            out.flush();
        }
    }

    private static TcpStore.@Nullable Failure failed(CompletableFuture<TcpStore> store) {
        return store.join().awaitAll();
    }

    /** Sends what {@code saying} says as rank 1, and expects that rank 1 and both others hear why it failed. */
    private void fails(String why, Saying saying) throws IOException {
        CompletableFuture<TcpStore> zero = join(0);
        CompletableFuture<TcpStore> two = join(2);
        Stranger one = new Stranger().hello(1, PORT);
        assertEquals(Kind.READY, one.messages.receive().kind());
        saying.with(one);
        String text = "it has sent what no rank sends: " + why;
        assertEquals(new TcpStore.Failure(1, text), failed(zero));
        assertEquals(new TcpStore.Failure(1, text), failed(two));
        StoreMessages.Message last = one.messages.receive();
        assertEquals(Kind.FAILED, last.kind());
        assertEquals(text, StoreMessages.Told.of(last).text());
        assertThrows(EOFException.class, one.messages::receive);
    }

    private interface Saying {
        void with(Stranger one) throws IOException;
    }

    @ParameterizedTest
    @CsvSource({"77, 0", "3, 2147483647", "3, -1"})
    void headersOfNoMessage(int kind, int length) throws IOException {
        fails(
                "message: expected a kind from 0 to 11 and 0 to 1048576 bytes, got kind " + kind + " and " + length
                        + " bytes",
                one -> one.header(kind, 1, length));
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            value = {
                "FAILED | 1 | xy | FAILED: expected at least 4 bytes, got 2",
                "FAILED | 99 | 0000why | expected a rank from 0 to 2, got 99",
                "FAILED | -7 | 0000why | expected a rank from 0 to 2, got -7",
                "ANSWER | 0 | HUH | ANSWER: expected one of [CAME, WAITS, LATE], got \"HUH\"",
                "CALL | 1 | x | CALL: expected a line of ranks, got none in 1 characters",
                "CALL | 1 | 0,b;x | expected the number of a rank, got \"b\"",
                "CALL | 1 | 0,3;x | expected a rank from 0 to 2, got 3",
                "HELLO | 2 | x | message: expected one that a rank says after its hello, got HELLO",
                "DECIDED | 0 | x | message: expected one that a rank says after its hello, got DECIDED",
                "AGREE | 1 | xyz | AGREE: expected what Chagres writes, got 3 other bytes (java.io.EOFException)"
            })
    void messagesOfNoRank(Kind kind, int number, String text, String why) throws IOException {
        byte[] bytes = text.replace(';', '\n').getBytes(StandardCharsets.UTF_8);
        fails(why, one -> one.messages.send(kind, number, bytes));
    }

    private static byte[] numbers(int... numbers) {
        ByteBuffer bytes = ByteBuffer.allocate(64);
        for (int number : numbers) {
            bytes.putInt(number);
        }
        return bytes.array();
    }

    @Test
    void agreementsOfNoRank() throws IOException {
        fails("AGREE: expected at most 3 ranks, got -1", one -> one.messages.send(Kind.AGREE, 1, numbers(1, -1)));
        findPort();
        fails(
                "AGREE: expected a rank from 0 to 2, got 99",
                one -> one.messages.send(Kind.AGREE, 1, numbers(1, 2, 1, 99)));
        findPort();
        fails(
                "AGREE: expected members with rank 1 and a timeout from 0 on, got [0, 2] and 0 ms",
                one -> one.messages.send(Kind.AGREE, 1, numbers(1, 2, 0, 2)));
    }

    @Test
    void anAnswerToNoQuestionIsNone() throws IOException {
        CompletableFuture<TcpStore> zero = join(0);
        CompletableFuture<TcpStore> two = join(2);
        Stranger one = new Stranger().hello(1, PORT);
        assertEquals(Kind.READY, one.messages.receive().kind());
        one.messages.send(Kind.ANSWER, 55, "CAME".getBytes(StandardCharsets.UTF_8));
        one.messages.send(Kind.DONE, 1, new byte[0]);
        zero.join().done();
        two.join().done();
        assertNull(failed(zero));
        assertNull(failed(two));
    }

    /** Rank 1 announces calls to {@code to} until that rank, which compares none, has no more room for them. */
    private void announces(int to, String rest, int count, String why) throws IOException {
        CompletableFuture<TcpStore> zero = join(0);
        CompletableFuture<TcpStore> two = join(2);
        Stranger one = new Stranger().hello(1, PORT);
        assertEquals(Kind.READY, one.messages.receive().kind());
        zero.join().hearing(UniqueId.of(UniqueId.create().toBytes())::hear);
        two.join().hearing(UniqueId.of(UniqueId.create().toBytes())::hear);
        for (int i = 0; i < count; i++) {
            String key = "/1:0 collective-" + i;
            byte[] call = (to + "\n" + key.length() + ":" + key + rest).getBytes(StandardCharsets.UTF_8);
            one.messages.send(Kind.CALL, 1, call);
        }
        TcpStore.Failure expected = new TcpStore.Failure(1, why);
        assertEquals(expected, failed(zero));
        assertEquals(expected, failed(two));
        findPort();
    }

    @Test
    void moreCallsThanARankKeeps() throws IOException {
        String calls =
                "rank 1: expected at most 16384 announced calls that this process has not compared yet, got more";
        announces(0, "x", 16_385, "it has sent what no rank sends: CALL: " + calls);
        announces(2, "x", 16_385, "it has sent what no rank sends: CALL: " + calls);
        String characters = "rank 1: expected at most 4194304 characters of announced calls that this process has not"
                + " compared yet, got more";
        announces(0, "x".repeat(60_000), 70, "it has sent what no rank sends: CALL: " + characters);
        announces(2, "x".repeat(60_000), 70, "it has sent what no rank sends: CALL: " + characters);
    }

    private void refused(String text, int rank, String listening) throws IOException {
        CompletableFuture<TcpStore> zero = join(0);
        Stranger one = new Stranger().hello(rank, listening);
        StoreMessages.Message answer = one.messages.receive();
        assertEquals(Kind.REFUSED, answer.kind());
        assertEquals(text, answer.text());
        assertEquals("rank 0 of 3: " + text, failure(zero));
        findPort();
    }

    @Test
    void hellosOfNoRank() throws IOException {
        refused("a rank connected that calls itself 7: expected one from 0 to 2", 7, PORT);
        refused("a rank connected that calls itself -1: expected one from 0 to 2", -1, PORT);
        refused("rank 1 listens nowhere: expected a port from 1 to 65535, got \"70000\"", 1, "70000");
        refused(
                "rank 1 listens nowhere: expected a port from 1 to 65535, got \"" + "x".repeat(200)
                        + "…\" (5000 characters)",
                1,
                "x".repeat(5000));
    }

    @Test
    void whoSaysNothingAfterTheSecretIsNamed() throws IOException {
        CompletableFuture<TcpStore> zero = join(0);
        new Stranger().header(3, 1, 0);
        assertEquals(
                "rank 0 of 3: waited 2000 ms for ranks [1, 2] to come; 1 connection knew the secret and did not say"
                        + " which rank it was",
                failure(zero));
    }

    /** Else whoever writes to it would keep the others from hearing anything. */
    @Test
    void aRankThatReadsNothingIsEnded() throws IOException {
        CompletableFuture<TcpStore> zero = join(0);
        CompletableFuture<TcpStore> two = join(2);
        new Stranger().hello(1, PORT);
        String text = "x".repeat(60_000);
        TcpStore store = two.join();
        Thread.ofPlatform().daemon().start(() -> {
            for (int i = 0; i < 400; i++) {
                store.call(List.of(1), text);
            }
        });
        TcpStore.Failure expected = new TcpStore.Failure(1, "it does not read what the store says");
        assertEquals(expected, failed(zero));
        assertEquals(expected, failed(two));
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            value = {
                "READY | xy | the connection to rank 0 failed: READY: expected what Chagres writes, got 2 other bytes"
                        + " (java.io.EOFException)",
                "FAILED | xy | the answer of rank 0: expected READY or REFUSED, got FAILED"
            })
    void welcomesOfNoStore(Kind kind, String text, String why) throws IOException {
        try (ServerSocket listening = new ServerSocket(port, 1, InetAddress.getLoopbackAddress())) {
            CompletableFuture<TcpStore> one = join(1);
            welcome(listening).send(kind, 0, text.getBytes(StandardCharsets.UTF_8));
            assertEquals("rank 1 of 3: " + why, failure(one));
        }
    }

    private StoreMessages welcome(ServerSocket listening) throws IOException {
        StoreMessages messages = new StoreMessages(listening.accept());
        open.add(messages);
        assertTrue(messages.prove(SECRET, "store", "rank"));
        assertEquals(Kind.HELLO, messages.receive().kind());
        return messages;
    }

    @Test
    void aStoreThatSaysWhatNoneSaysHasFailed() throws IOException {
        InetSocketAddress somewhere = new InetSocketAddress("127.0.0.1", 1);
        try (ServerSocket listening = new ServerSocket(port, 1, InetAddress.getLoopbackAddress())) {
            CompletableFuture<TcpStore> one = join(1);
            StoreMessages store = welcome(listening);
            store.send(
                    Kind.READY, 0, new HandshakeReply(new byte[0], List.of(somewhere, somewhere, somewhere)).toBytes());
            one.join().answering(question -> PeerProgress.valueOf(question)); // Throws.
            store.send(Kind.ASK, 4, "HUH".getBytes(StandardCharsets.UTF_8));
            assertEquals("CAME", store.receive().text());
            store.send(Kind.ANSWER, 1, "0,7".getBytes(StandardCharsets.UTF_8));
            assertEquals(
                    new TcpStore.Failure(0, "it has sent what no rank sends: expected a rank from 0 to 2, got 7"),
                    failed(one));
        }
    }
}
