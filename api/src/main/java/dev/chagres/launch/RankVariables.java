package dev.chagres.launch;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
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
 * <p>Each object is for one run: it has a secret of its own and a free port for the store, which no program is given that asks for any port
 * until this object is closed. So close it when the ranks have met, or have ended.
 *
 * <p>Threading: thread-safe.
 */
public final class RankVariables implements AutoCloseable {
    private static final int SECRET_BYTES = 32;

    private final int count;
    /** Bound, so that the port is taken, and not listening, so that rank 0 can. */
    private final Socket reserved;

    private final int port;
    private final String secret;

    private RankVariables(int count, Socket reserved, String secret) {
        this.count = count;
        this.reserved = reserved;
        port = reserved.getLocalPort();
        this.secret = secret;
    }

    /**
     * Takes a free port and draws a secret.
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
        Socket reserved = new Socket();
        try {
            reserved.setReuseAddress(true);
            reserved.bind(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0));
        } catch (IOException failed) {
            reserved.close();
            throw failed;
        }
        return new RankVariables(count, reserved, HexFormat.of().formatHex(secret));
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

    /** Gives up the port; rank 0 listens on. Closing twice does nothing. */
    @Override
    public void close() {
        try {
            reserved.close();
        } catch (IOException failed) {
            throw new UncheckedIOException(failed);
        }
    }

    /** Returns the number of ranks and the port, without the secret. */
    @Override
    public String toString() {
        return "RankVariables(count=" + count + ", port=" + port + ")";
    }
}
