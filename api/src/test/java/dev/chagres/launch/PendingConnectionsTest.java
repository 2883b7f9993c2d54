package dev.chagres.launch;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.SocketTimeoutException;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Connections to the store that have not proved yet to be those of ranks: how many are kept. */
@Tag("L0")
@Timeout(60)
class PendingConnectionsTest {
    private static final int RANKS = 2;
    private static final int MOST = RANKS + PendingConnections.BESIDE_RANKS;

    private final PendingConnections strangers = new PendingConnections(RANKS);
    private final List<Socket> clients = new ArrayList<>();
    private final List<StoreMessages> connections = new ArrayList<>();
    private ServerSocket listening;

    @BeforeEach
    void listen() throws IOException {
        listening = new ServerSocket(0, 1, InetAddress.getLoopbackAddress());
    }

    @AfterEach
    void closeAll() throws IOException {
        listening.close();
        for (Socket client : clients) {
            client.close();
        }
        connections.forEach(StoreMessages::close);
    }

    private void come(int times) throws IOException {
        for (int i = 0; i < times; i++) {
            clients.add(new Socket(InetAddress.getLoopbackAddress(), listening.getLocalPort()));
            StoreMessages connection = new StoreMessages(listening.accept());
            connections.add(connection);
            strangers.add(connection);
        }
    }

    private void assertClosed(int client) throws IOException {
        assertEquals(-1, clients.get(client).getInputStream().read(), "client " + client);
    }

    private void assertOpen(int client) throws IOException {
        clients.get(client).setSoTimeout(1);
        assertThrows(
                SocketTimeoutException.class,
                () -> clients.get(client).getInputStream().read(),
                "client " + client);
    }

    @Test
    void oneTooManyClosesTheOldest() throws IOException {
        come(MOST);
        assertOpen(0);
        come(2);
        assertClosed(0);
        assertClosed(1);
        assertOpen(2);
        assertOpen(MOST + 1);
    }

    @Test
    void oneThatIsKnownByNowStaysOpen() throws IOException {
        come(1);
        strangers.remove(connections.getFirst());
        come(MOST + 1);
        assertOpen(0);
        assertClosed(1);
        assertOpen(2);
    }

    @Test
    void allAreClosedWithTheStore() throws IOException {
        come(3);
        strangers.close();
        for (int client = 0; client < 3; client++) {
            assertClosed(client);
        }
    }
}
