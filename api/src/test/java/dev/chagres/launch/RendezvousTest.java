package dev.chagres.launch;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.nccl.RankFailedException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

/** How processes that a program has started come to know where they meet. */
@Tag("L0")
class RendezvousTest {
    private static final String HERE = "127.0.0.1";
    /** Of the text of another process; its own never begins so. */
    private static final String OTHER = "another";

    private final List<String> said = new ArrayList<>();

    /** A group whose processes say what {@code answer} makes of this one's text. */
    private ProcessGroup group(int rank, List<String> hosts, int device, UnaryOperator<List<String>> answer) {
        return new ProcessGroup() {
            @Override
            public int rank() {
                return rank;
            }

            @Override
            public List<String> hosts() {
                return hosts;
            }

            @Override
            public int device() {
                return device;
            }

            @Override
            public List<String> allGather(String text) {
                said.add(text);
                return answer.apply(List.of(text));
            }
        };
    }

    private ProcessGroup two(UnaryOperator<List<String>> answer) {
        return group(0, List.of(HERE, HERE), 0, answer);
    }

    private static List<String> withOther(List<String> own) {
        return List.of(own.getFirst(), OTHER);
    }

    private static String refusal(ProcessGroup group) {
        Exception thrown = assertThrows(
                IllegalStateException.class, () -> Rendezvous.of(group).meet());
        return String.valueOf(thrown.getMessage());
    }

    @Test
    void rank0ListensAtItsHostAloneWithANewPortAndSecretEachTime() throws Exception {
        Rendezvous meeting = Rendezvous.of(two(RendezvousTest::withOther));
        RankEnvironment first = meeting.meet();
        RankEnvironment second = meeting.meet();
        try (ServerSocket one = Objects.requireNonNull(first.listening());
                ServerSocket two = Objects.requireNonNull(second.listening())) {
            assertEquals(InetAddress.getByName(HERE), one.getInetAddress());
            assertEquals(new InetSocketAddress(HERE, one.getLocalPort()), first.store());
            assertNotEquals(one.getLocalPort(), two.getLocalPort());
            assertNotEquals(said.get(0).split(" ")[2], said.get(1).split(" ")[2]);
            assertFalse(first.toString().contains(said.get(0).split(" ")[2]), "the secret is shown");
        }
    }

    @Test
    void otherRanksTakeWhatRank0Says() {
        List<String> hosts = List.of(HERE, "host-1", HERE);
        RankEnvironment met = Rendezvous.of(
                        group(2, hosts, 5, own -> List.of("a 4711 0123456789abcdef", OTHER, own.getFirst())))
                .meet();
        assertEquals(new InetSocketAddress(HERE, 4711), met.store());
        assertEquals("0123456789abcdef", new String(met.secret().bytes(), StandardCharsets.UTF_8));
        assertEquals(2, met.rank());
        assertEquals(3, met.count());
        assertEquals(5, met.localRank());
        assertNull(met.listening());
        assertEquals(1, said.getFirst().split(" ").length, "another rank than 0 has no secret");
    }

    @Test
    void oneProcessIsARankOfOne() {
        List<Integer> counts = Ranks.ofProcesses(group(0, List.of(HERE), 0, own -> own))
                .run(rank -> rank.communicator().ranks());
        assertEquals(List.of(1), counts);
    }

    @Test
    void aRanksResultMayBeNull() {
        assertEquals(
                Arrays.asList((Object) null),
                Ranks.ofProcesses(group(0, List.of(HERE), 0, own -> own)).run(rank -> null));
        assertEquals(Arrays.asList((Object) null), Ranks.local(1).run(rank -> null));
    }

    @Test
    void aFailureOfNobodyKnowsWhomNamesNoRank() {
        RankFailedException nobodys = ProcessRun.afterwards(1, new TcpStore.Failure(-1, "as rank 0 says: why"));
        assertEquals("a rank failed after rank 1 had finished: as rank 0 says: why", nobodys.getMessage());
        assertEquals(List.of(), nobodys.ranks());
        RankFailedException known = ProcessRun.afterwards(1, new TcpStore.Failure(0, "why"));
        assertEquals("rank 0 failed after rank 1 had finished: why", known.getMessage());
        assertEquals(List.of(0), known.ranks());
    }

    @Test
    void aPurposeMustFitIntoWhatRanksSayWhenTheyCome() {
        Ranks alone = Ranks.ofProcesses(group(0, List.of(HERE), 0, own -> own));
        assertEquals(List.of(0), alone.withPurpose("x".repeat(32_768)).run(Rank::index));
        assertEquals(
                "newWhat: expected at most 32768 bytes in UTF-8, got 32769; say a hash of what is long",
                purpose(alone, "x".repeat(32_766) + "漢"));
        assertEquals(
                "newWhat: expected a text that UTF-8 can hold, got one with half a surrogate pair",
                purpose(alone, "\uD800"));
    }

    private static String purpose(Ranks ranks, String what) {
        return String.valueOf(assertThrows(IllegalArgumentException.class, () -> ranks.withPurpose(what))
                .getMessage());
    }

    @Test
    void groupsThatCannotBeAreRefused() {
        assertEquals("group: expected the host of each rank, got none", argument(group(0, List.of(), 0, own -> own)));
        assertEquals(
                "group: expected a rank from 0 to 1, for there are hosts of 2 ranks, got 2",
                argument(group(2, List.of(HERE, HERE), 0, own -> own)));
        assertEquals(
                "group: expected a device of at least 0 for rank 1, got -1",
                argument(group(1, List.of(HERE, HERE), -1, own -> own)));
        assertEquals(
                "group.hosts(): expected a value, got null",
                missing(() -> Rendezvous.of(group(0, null, 0, own -> own))));
        assertEquals(
                "group.hosts(), rank 1: expected a value, got null",
                missing(() -> Rendezvous.of(group(0, Arrays.asList(HERE, null), 0, own -> own))));
        assertEquals(
                "group.allGather(text): expected a value, got null",
                missing(() -> Rendezvous.of(two(own -> null)).meet()));
        assertEquals(
                "group.allGather(text), rank 1: expected a value, got null",
                missing(() -> Rendezvous.of(two(own -> Arrays.asList(own.getFirst(), null)))
                        .meet()));
    }

    private static String missing(Executable call) {
        return String.valueOf(assertThrows(NullPointerException.class, call).getMessage());
    }

    private static String argument(ProcessGroup group) {
        return String.valueOf(assertThrows(IllegalArgumentException.class, () -> Ranks.ofProcesses(group))
                .getMessage());
    }

    @Test
    void ranksInOneProcessAreRefused() {
        assertEquals(
                "ranks 0 and 1 are in one process, on host 127.0.0.1: expected a process for each rank; ranks that are"
                        + " threads are those of Ranks.local",
                refusal(two(own -> List.of(own.getFirst(), own.getFirst().split(" ")[0]))));
    }

    @Test
    void otherTextsAreRefusedAndNotShown() {
        assertEquals("allGather: expected the texts of 2 ranks, got 1", refusal(two(own -> own)));
        assertEquals(
                "allGather: expected port and secret in the text of rank 0, which comes first, got another text",
                refusal(two(own -> List.of(OTHER, own.getFirst()))));
        for (String text : List.of("a secret 4711", "a  4711", "a 99999 b", "a -1 b", "a 0 b", "a 4711x b")) {
            assertEquals(
                    "allGather: expected port and secret in the text of rank 0, which comes first, got another text,"
                            + " whose port is no number from 1 to 65535",
                    refusal(two(own -> List.of(text, own.getFirst()))),
                    text);
        }
    }

    @Test
    void aHostThatIsNotThisOneIsToldByItsName() {
        String refused = refusal(group(0, List.of("192.0.2.1", HERE), 0, RendezvousTest::withOther));
        assertTrue(
                refused.matches(
                        "rank 0 cannot listen at 192\\.0\\.2\\.1 \\(.+\\): expected the name or address by which"
                                + " other processes reach its host, of one of its network interfaces"),
                refused);
        assertEquals(
                "rank 1: the host of rank 0, no-such-host.invalid, is unknown here; name it by its address",
                refusal(group(
                        1,
                        List.of("no-such-host.invalid", HERE),
                        0,
                        own -> List.of("a 4711 0123456789abcdef", own.getFirst()))));
    }
}
