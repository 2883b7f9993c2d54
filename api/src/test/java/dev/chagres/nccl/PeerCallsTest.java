package dev.chagres.nccl;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.chagres.Device;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** What another process says of splits that this one has no part in goes with the communicators that they were made from. */
@Tag("L0")
class PeerCallsTest {
    private static final CommunicatorConfig CONFIG = CommunicatorConfig.standard();
    private static final Map<Integer, String> SAID = Map.of(1, "1");
    private static final Map<Integer, String> NOTHING = Map.of();

    @Test
    void membersOfOthersAreForgottenWithWhatTheyWereSplitFrom() {
        UniqueId id = UniqueId.of(UniqueId.create().toBytes());
        PeerCalls calls = id.peers().calls;
        PeerCalls elsewhere = new PeerCalls();
        elsewhere.tellThrough((_, text) -> id.hear(1, text));
        try (Device device = Device.open();
                Communicator world = Communicator.open(device, id, 1, 0, CONFIG);
                Communicator part = world.split(0, 0, CONFIG)) {
            for (String key : List.of(
                    "/2:1 members", "/2:1/3:0 members", "/1:0/1:1 members", "/1:0-1 members", "/1:0 collective-1")) {
                elsewhere.tell(List.of(0), key, "1");
                assertEquals(SAID, calls.said(key), key);
            }
            world.close();
            assertEquals(NOTHING, calls.said("/2:1 members"), "of another color");
            assertEquals(NOTHING, calls.said("/2:1/3:0 members"), "of a split of that");
            assertEquals(SAID, calls.said("/1:0/1:1 members"), "of a split of what is open");
            assertEquals(SAID, calls.said("/1:0-1 members"), "of a shrink of what is open");
            part.close();
            assertEquals(NOTHING, calls.said("/1:0/1:1 members"), "of a split of what is closed");
            assertEquals(NOTHING, calls.said("/1:0-1 members"), "of a shrink of what is closed");
            assertEquals(SAID, calls.said("/1:0 collective-1"), "a call is not a member");
        }
    }

    /** Processes that run ahead of what this one compares, or say what it never asks for, do not fill its memory. */
    @Test
    void aProcessHasRoomForSoManyCalls() {
        PeerCalls calls = new PeerCalls();
        PeerCalls elsewhere = new PeerCalls();
        for (int from = 1; from <= 2; from++) {
            int process = from;
            elsewhere.tellThrough((_, text) -> calls.hear(process, text));
            for (int i = 0; i < PeerCalls.MOST; i++) {
                elsewhere.tell(List.of(0), "collective-" + i, "all-reduce of " + i);
            }
            assertThrown(
                    IllegalStateException.class,
                    "rank " + process + ": expected at most 16384 announced calls that this process has not compared"
                            + " yet, got more",
                    () -> elsewhere.tell(List.of(0), "more", "call"));
            elsewhere.tell(List.of(0), "collective-1", "again");
        }
        assertEquals(NOTHING, calls.said("more"));
        assertEquals(Map.of(1, "again", 2, "again"), calls.said("collective-1"));
        calls.forget("collective-1");
        elsewhere.tell(List.of(0), "more", "call");
        assertEquals(Map.of(2, "call"), calls.said("more"));
        calls.forgetIf(key -> key.startsWith("collective"));
        for (int i = 1; i < PeerCalls.MOST; i++) {
            elsewhere.tell(List.of(0), "collective-" + i, "all-reduce of " + i);
        }
        assertThrows(IllegalStateException.class, () -> elsewhere.tell(List.of(0), "collective-0", "call"));
    }

    @Test
    void aProcessHasRoomForSoManyCharacters() {
        PeerCalls calls = new PeerCalls();
        PeerCalls elsewhere = new PeerCalls();
        elsewhere.tellThrough((_, text) -> calls.hear(1, text));
        String half = "x".repeat(PeerCalls.MOST_CHARACTERS / 2 - 1);
        elsewhere.tell(List.of(0), "a", half);
        elsewhere.tell(List.of(0), "b", half);
        assertThrown(
                IllegalStateException.class,
                "rank 1: expected at most 4194304 characters of announced calls that this process has not compared"
                        + " yet, got more",
                () -> elsewhere.tell(List.of(0), "c", ""));
        elsewhere.tell(List.of(0), "b", "1");
        elsewhere.tell(List.of(0), "c", half.substring(2));
        calls.forget("c");
        elsewhere.tell(List.of(0), "d", half.substring(2));
    }

    @Test
    void whatNoProcessSaysIsNotKept() {
        PeerCalls calls = new PeerCalls();
        for (String text : List.of("", "key", "x:key", "-1:key", "9:key", "2147483647:key", ":key")) {
            calls.hear(1, text);
        }
        assertEquals(NOTHING, calls.said("key"));
        calls.hear(1, "3:key1");
        assertEquals(SAID, calls.said("key"));
    }
}
