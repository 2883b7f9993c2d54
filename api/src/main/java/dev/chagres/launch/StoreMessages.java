package dev.chagres.launch;

import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ProtocolException;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.security.SecureRandom;
import java.util.Arrays;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;
import org.jspecify.annotations.Nullable;

/**
 * One end of a connection to the store: the messages that both ends share.
 *
 * <p>Threading: one thread reads, writes are thread-safe.
 */
final class StoreMessages implements AutoCloseable {
    /** The first byte of a message. */
    enum Kind {
        /** To the store: a rank's greeting; its number and a text follow. */
        HELLO,
        /** From the store: all ranks have connected; bytes follow. */
        READY,
        /** From the store: not all ranks will connect; a text follows. */
        REFUSED,
        /** Both ways: a rank has failed; its number, or -1, and what is {@link Told} follow. */
        FAILED,
        /** To the store: this rank has finished. From it: all have. */
        DONE,
        /** To the store: which ranks are behind? From it: are you? The question's number and a text follow. */
        ASK,
        /** To the store: this rank's progress. From it: the ranks at fault. The question's number and a text follow. */
        ANSWER,
        /** To the store: this rank's proposal after a failure; a {@link ShrinkDecision.Proposal} follows. */
        AGREE,
        /** From the store: the proposal was received, and the store waits for the others. */
        WAIT,
        /** From the store: the remaining ranks; a {@link ShrinkDecision} follows. */
        DECIDED,
        /** To the store: processes, a line, and this rank's call. From it: the number of a rank, and its call. */
        CALL,
        /** To the store: this connection ends, and its rank goes on. */
        LEAVE
    }

    /** In place of the number of a rank: nobody knows which it is. */
    static final int UNKNOWN = -1;

    private static final long MAGIC = 0x6368616772657331L;
    private static final int NONCE = 32;
    /** Bytes of a text. */
    private static final int LONGEST = 1 << 16;
    /** Bytes of a message: the addresses of ten thousands of ranks. */
    private static final int LONGEST_MESSAGE = 1 << 20;

    private static final SecureRandom RANDOM = new SecureRandom();

    private final Socket socket;
    private final DataInputStream in;
    private final DataOutputStream out;

    /** Since when a message is being written, where {@link #writes}. */
    private volatile long written;

    private volatile boolean writes;
    private volatile @Nullable String whyEnded;

    StoreMessages(Socket socket) throws IOException {
        this.socket = socket;
        socket.setTcpNoDelay(true);
        socket.setKeepAlive(true);
        in = new DataInputStream(new BufferedInputStream(socket.getInputStream()));
        out = new DataOutputStream(new BufferedOutputStream(socket.getOutputStream()));
    }

    /** Returns the address of this end. */
    InetAddress local() {
        return socket.getLocalAddress();
    }

    /** Returns the address of the other end. */
    InetAddress remote() {
        return socket.getInetAddress();
    }

    /** Sets the timeout of each following read; 0: none. */
    void timeout(int millis) throws IOException {
        socket.setSoTimeout(millis);
    }

    /**
     * Proves to the other end that this one knows the secret, and asks the same of it.
     *
     * @return whether the other end knows it
     * @throws java.io.EOFException when the other end closes the connection before it has said so
     */
    boolean prove(RankEnvironment.Secret secret, String self, String other) throws IOException {
        byte[] own = new byte[NONCE];
        RANDOM.nextBytes(own);
        synchronized (out) {
            out.writeLong(MAGIC);
            out.write(own);
            out.flush();
        }
        if (in.readLong() != MAGIC) {
            return false;
        }
        byte[] theirs = new byte[NONCE];
        in.readFully(theirs);
        synchronized (out) {
            out.write(code(secret, self, theirs, own));
            out.flush();
        }
        byte[] proof = new byte[NONCE];
        in.readFully(proof);
        return MessageDigest.isEqual(proof, code(secret, other, own, theirs));
    }

    private static byte[] code(RankEnvironment.Secret secret, String who, byte[] asked, byte[] own) {
        try {
            Mac mac = Mac.getInstance("HmacSHA256");
            mac.init(new SecretKeySpec(secret.bytes(), "HmacSHA256"));
            mac.update(who.getBytes(StandardCharsets.US_ASCII));
            mac.update(asked);
            return mac.doFinal(own);
        } catch (GeneralSecurityException impossible) { // Every Java platform has it.
            throw new IllegalStateException(impossible);
        }
    }

    /** Returns a text as the bytes of a message, truncated if it is too long. */
    static byte[] bytes(String text) {
        byte[] all = text.getBytes(StandardCharsets.UTF_8);
        return all.length <= LONGEST ? all : Arrays.copyOf(all, LONGEST);
    }

    void send(Kind kind, int number, byte[] bytes) throws IOException {
        synchronized (out) {
            written = System.nanoTime();
            writes = true;
            try {
                out.writeByte(kind.ordinal());
                out.writeInt(number);
                out.writeInt(bytes.length);
                out.write(bytes);
                out.flush();
            } finally {
                writes = false;
            }
        }
    }

    /** Returns whether a message is being written for longer than that: the other end reads nothing. */
    boolean isStuck(long nanos) {
        return writes && System.nanoTime() - written > nanos;
    }

    /** Ends the connection, and keeps why for {@link #whyEnded}. */
    void end(String why) {
        whyEnded = why;
        close();
    }

    /** Returns why this end has ended the connection; null where it has not. */
    @Nullable
    String whyEnded() {
        return whyEnded;
    }

    /**
     * A rank's report of a failure.
     *
     * @param decisions on who is left, that it had heard of then
     * @param text what happened
     */
    record Told(int decisions, String text) {
        byte[] toBytes() {
            byte[] what = StoreMessages.bytes(text);
            int length = Math.min(what.length, LONGEST - Integer.BYTES);
            return ByteBuffer.allocate(Integer.BYTES + length)
                    .putInt(decisions)
                    .put(what, 0, length)
                    .array();
        }

        static Told of(Message message) throws ProtocolException {
            ByteBuffer in = ByteBuffer.wrap(message.bytes());
            if (in.remaining() < Integer.BYTES) {
                throw new ProtocolException("FAILED: expected at least 4 bytes, got " + in.remaining());
            }
            return new Told(in.getInt(), StandardCharsets.UTF_8.decode(in).toString());
        }
    }

    /** A message that came. */
    record Message(Kind kind, int number, byte[] bytes) {
        String text() {
            return new String(bytes, StandardCharsets.UTF_8);
        }
    }

    Message receive() throws IOException {
        int kind = in.readUnsignedByte();
        int number = in.readInt();
        int length = in.readInt();
        if (kind >= Kind.values().length || length < 0 || length > LONGEST_MESSAGE) {
            throw new ProtocolException("message: expected a kind from 0 to " + (Kind.values().length - 1)
                    + " and 0 to " + LONGEST_MESSAGE + " bytes, got kind " + kind + " and " + length + " bytes");
        }
        byte[] bytes = new byte[length];
        in.readFully(bytes);
        return new Message(Kind.values()[kind], number, bytes);
    }

    @Override
    public void close() {
        try {
            socket.close();
        } catch (IOException _) {
            // It is no longer written to.
        }
    }
}
