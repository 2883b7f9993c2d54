package dev.chagres.launch;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.Map;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** The variables of ranks that a program starts say to each which rank it is, and to all where they meet. */
@Tag("L0")
class RankVariablesTest {
    @Test
    void ranksReadWhatTheyAreGiven() throws IOException {
        try (RankVariables variables = RankVariables.ofThisHost(3)) {
            RankEnvironment first = RankEnvironment.of(variables.of(0));
            for (int rank = 0; rank < 3; rank++) {
                RankEnvironment read = RankEnvironment.of(variables.of(rank));
                assertEquals("./chagres launch", read.launcher());
                assertEquals(rank, read.rank());
                assertEquals(3, read.count());
                assertEquals(rank, read.localRank());
                assertTrue(read.store().getAddress().isLoopbackAddress());
                assertEquals(first.store(), read.store());
                assertArrayEquals(first.secret().bytes(), read.secret().bytes());
            }
        }
    }

    /** Two runs that begin at once, and programs that ask for any port, never meet at it; rank 0 can listen there. */
    @Test
    void nobodyElseIsGivenThePort() throws IOException {
        try (RankVariables variables = RankVariables.ofThisHost(2)) {
            InetSocketAddress store = RankEnvironment.of(variables.of(0)).store();
            for (int i = 0; i < 40_000; i++) { // more than the ports that the system gives
                try (ServerSocket other = new ServerSocket(0, 1, store.getAddress())) {
                    assertNotEquals(store.getPort(), other.getLocalPort());
                }
            }
            try (ServerSocket first = new ServerSocket(store.getPort(), 1, store.getAddress())) {
                assertEquals(store.getPort(), first.getLocalPort());
                variables.close();
                variables.close();
                try (Socket second = new Socket(store.getAddress(), store.getPort())) {
                    assertTrue(second.isConnected());
                }
            }
        }
    }

    @Test
    void eachRunHasASecretOfItsOwnThatIsNotShown() throws IOException {
        try (RankVariables one = RankVariables.ofThisHost(1);
                RankVariables other = RankVariables.ofThisHost(1)) {
            Map<String, String> variables = one.of(0);
            String secret = String.valueOf(variables.get(RankEnvironment.SECRET));
            assertEquals(64, secret.length());
            assertNotEquals(secret, other.of(0).get(RankEnvironment.SECRET));
            assertEquals("RankVariables(count=1, port=" + variables.get(RankEnvironment.PORT) + ")", one.toString());
            assertFalse(one.toString().contains(secret));
        }
    }

    @Test
    void ranksThatDoNotExistAreRefused() throws IOException {
        assertThrown(
                IllegalArgumentException.class,
                "count: expected at least 1 rank, got 0",
                () -> RankVariables.ofThisHost(0));
        try (RankVariables two = RankVariables.ofThisHost(2)) {
            assertThrown(IllegalArgumentException.class, "rank: expected one from 0 to 1, got 2", () -> two.of(2));
            assertThrown(IllegalArgumentException.class, "rank: expected one from 0 to 1, got -1", () -> two.of(-1));
        }
    }
}
