package dev.chagres.nccl;

import static org.junit.jupiter.api.Assertions.assertEquals;

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
        PeerCalls calls = id.peers().calls();
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
