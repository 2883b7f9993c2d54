package dev.chagres.launch;

import dev.chagres.internal.Checks;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import java.security.SecureRandom;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * Processes that a program has started: each run has a port and a secret of its own, which rank 0 chooses and the program passes on.
 *
 * <p>Threading: immutable.
 *
 * @param group passes texts among the processes
 * @param rank r, from 0 to N - 1
 * @param hosts of each rank
 * @param localRank which device
 */
record Rendezvous(ProcessGroup group, int rank, List<String> hosts, int localRank) implements RankProcess {
    static final String LAUNCHER = "the program that started the processes";

    private static final int SECRET_BYTES = 32;
    private static final String SEPARATOR = " ";
    /** Tells apart processes of one host, and pods whose processes have equal numbers. */
    private static final String PROCESS = HexFormat.of().formatHex(random());

    /**
     * Reads what a group says of itself.
     *
     * @throws IllegalArgumentException when it names no host, a rank that is none of theirs, or a negative device
     */
    static Rendezvous of(ProcessGroup group) {
        List<String> named =
                Checks.given("group.hosts()", Checks.given("group", group).hosts());
        for (int rank = 0; rank < named.size(); rank++) {
            Checks.given("group.hosts(), rank " + rank, named.get(rank));
        }
        List<String> hosts = List.copyOf(named);
        if (hosts.isEmpty()) {
            throw new IllegalArgumentException("group: expected the host of each rank, got none");
        }
        int rank = group.rank();
        if (rank < 0 || rank >= hosts.size()) {
            throw new IllegalArgumentException("group: expected a rank from 0 to " + (hosts.size() - 1)
                    + ", for there are hosts of " + hosts.size() + " ranks, got " + rank);
        }
        if (group.device() < 0) {
            throw new IllegalArgumentException(
                    "group: expected a device of at least 0 for rank " + rank + ", got " + group.device());
        }
        return new Rendezvous(group, rank, hosts, group.device());
    }

    @Override
    public int count() {
        return hosts.size();
    }

    @Override
    public String launcher() {
        return LAUNCHER;
    }

    @Override
    public RankEnvironment meet() {
        ServerSocket listening = rank == 0 ? listen(hosts.getFirst()) : null;
        try {
            String own = listening == null
                    ? PROCESS
                    : String.join(
                            SEPARATOR,
                            PROCESS,
                            Integer.toString(listening.getLocalPort()),
                            HexFormat.of().formatHex(random()));
            return entry(group.allGather(own), listening);
        } catch (RuntimeException | Error failed) {
            close(listening);
            throw failed;
        }
    }

    /** Shows none of the texts: one has the secret. */
    private RankEnvironment entry(List<String> texts, @Nullable ServerSocket listening) {
        Checks.given("group.allGather(text)", texts);
        if (texts.size() != count()) {
            throw new IllegalStateException(
                    "allGather: expected the texts of " + count() + " ranks, got " + texts.size());
        }
        for (int other = 0; other < texts.size(); other++) {
            Checks.given("group.allGather(text), rank " + other, texts.get(other));
        }
        ensureProcesses(texts);
        String[] first = texts.getFirst().split(SEPARATOR);
        if (first.length != 3) {
            throw otherText("");
        }
        var store = new InetSocketAddress(hosts.getFirst(), port(first[1]));
        if (store.isUnresolved()) {
            throw new IllegalStateException("rank " + rank + ": the host of rank 0, " + hosts.getFirst()
                    + ", is unknown here; name it by its address");
        }
        var secret = new RankEnvironment.Secret(first[2].getBytes(StandardCharsets.UTF_8));
        return new RankEnvironment(launcher(), rank, count(), localRank, store, secret, listening);
    }

    private static int port(String text) {
        try {
            int port = Integer.parseInt(text);
            if (port >= 1 && port <= RankEnvironment.LAST_PORT) {
                return port;
            }
        } catch (NumberFormatException _) {
            // Its message would have the text.
        }
        throw otherText(", whose port is no number from 1 to " + RankEnvironment.LAST_PORT);
    }

    private static IllegalStateException otherText(String how) {
        return new IllegalStateException(
                "allGather: expected port and secret in the text of rank 0, which comes first, got another text" + how);
    }

    private void ensureProcesses(List<String> texts) {
        Map<String, Integer> ranks = new HashMap<>();
        for (int other = 0; other < texts.size(); other++) {
            Integer before = ranks.putIfAbsent(texts.get(other).split(SEPARATOR)[0], other);
            if (before != null) {
                throw new IllegalStateException("ranks " + before + " and " + other
                        + " are in one process, on host " + hosts.get(other)
                        + ": expected a process for each rank; ranks that are threads are those of Ranks.local");
            }
        }
    }

    private ServerSocket listen(String host) {
        var address = new InetSocketAddress(host, 0);
        ServerSocket socket = null;
        try {
            socket = new ServerSocket();
            socket.bind(address, count());
            return socket;
        } catch (IOException failed) {
            close(socket);
            throw new IllegalStateException(
                    "rank 0 cannot listen at " + host + " (" + failed.getMessage()
                            + "): expected the name or address by which other processes reach its host, of one of its"
                            + " network interfaces",
                    failed);
        }
    }

    private static void close(@Nullable ServerSocket socket) {
        try {
            if (socket != null) {
                socket.close();
            }
        } catch (IOException _) {
            // What failed before is told.
        }
    }

    private static byte[] random() {
        byte[] bytes = new byte[SECRET_BYTES];
        new SecureRandom().nextBytes(bytes);
        return bytes;
    }
}
