package dev.chagres.launch;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.security.SecureRandom;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * The variables of the environment by which processes of this host, each of which calls {@link Ranks#fromEnvironment()}, find each other:
 * for a program that starts them, such as {@code ./chagres launch}.
 *
 * {@snippet file="dev/chagres/launch/RankJvms.java" region="variables"}
 *
 * <p>Each object is for one run: it has a free port for the store and a secret of its own.
 *
 * <p>Threading: immutable.
 */
public final class RankVariables {
    private static final int SECRET_BYTES = 32;

    private final int count;
    private final int port;
    private final String secret;

    private RankVariables(int count, int port, String secret) {
        this.count = count;
        this.port = port;
        this.secret = secret;
    }

    /**
     * Finds a free port, which stays free only as long as no other program takes it, and draws a secret.
     *
     * @param count of ranks
     * @throws IllegalArgumentException when the count is below 1
     * @throws IOException when no port is free
     */
    public static RankVariables ofThisHost(int count) throws IOException {
        if (count < 1) {
            throw new IllegalArgumentException("count: expected at least 1 rank, got " + count);
        }
        byte[] secret = new byte[SECRET_BYTES];
        new SecureRandom().nextBytes(secret);
        try (ServerSocket free = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            return new RankVariables(count, free.getLocalPort(), HexFormat.of().formatHex(secret));
        }
    }

    /**
     * Returns the variables of a rank, to be added to the environment of its process. They contain the secret: do not log them.
     *
     * @throws IllegalArgumentException when there is no such rank
     */
    public Map<String, String> of(int rank) {
        if (rank < 0 || rank >= count) {
            throw new IllegalArgumentException("rank: expected one from 0 to " + (count - 1) + ", got " + rank);
        }
        Map<String, String> variables = new LinkedHashMap<>();
        variables.put(RankEnvironment.RANK, Integer.toString(rank));
        variables.put(RankEnvironment.RANKS, Integer.toString(count));
        variables.put(RankEnvironment.LOCAL_RANK, Integer.toString(rank));
        variables.put(RankEnvironment.ADDRESS, InetAddress.getLoopbackAddress().getHostAddress());
        variables.put(RankEnvironment.PORT, Integer.toString(port));
        variables.put(RankEnvironment.SECRET, secret);
        return variables;
    }

    /** Returns the number of ranks and the port, without the secret. */
    @Override
    public String toString() {
        return "RankVariables(count=" + count + ", port=" + port + ")";
    }
}
