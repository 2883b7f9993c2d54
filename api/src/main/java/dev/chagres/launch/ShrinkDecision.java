package dev.chagres.launch;

import dev.chagres.internal.Checks;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.ProtocolException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.SortedMap;
import java.util.TreeMap;

/**
 * The store's decision which ranks remain after others have failed.
 *
 * <p>Threading: immutable.
 *
 * @param left those that are left, and what each of them said; none where they cannot go on
 * @param shared what they need to meet again
 * @param refusal why they cannot go on; empty where they can
 */
record ShrinkDecision(SortedMap<Integer, Long> left, byte[] shared, String refusal) {
    /**
     * A rank's proposal after a failure.
     *
     * <p>Threading: immutable.
     *
     * @param attempt counted up by the rank, for it may say the same again
     * @param members of the communicator that failed
     * @param missed those that did not come in time
     * @param why what it has heard
     * @param value what it tells the others
     * @param timeoutMillis how long it waits for them
     */
    record Proposal(
            int attempt, List<Integer> members, List<Integer> missed, String why, long value, long timeoutMillis) {
        Proposal {
            members = List.copyOf(members);
            missed = List.copyOf(missed);
        }

        byte[] toBytes() {
            return written(out -> {
                out.writeInt(attempt);
                writeRanks(out, members);
                writeRanks(out, missed);
                out.writeUTF(why.substring(0, Math.min(why.length(), LONGEST_TEXT)));
                out.writeLong(value);
                out.writeLong(timeoutMillis);
            });
        }

        /** Reads what rank {@code rank} of {@code count} has said. */
        static Proposal of(byte[] bytes, int rank, int count) throws ProtocolException {
            Proposal read = read(
                    "AGREE",
                    bytes,
                    in -> new Proposal(
                            in.readInt(),
                            readRanks(in, count),
                            readRanks(in, count),
                            in.readUTF(),
                            in.readLong(),
                            in.readLong()));
            if (!read.members.contains(rank) || read.timeoutMillis < 0) {
                throw new ProtocolException("AGREE: expected members with rank " + rank
                        + " and a timeout from 0 on, got " + read.members + " and " + read.timeoutMillis + " ms");
            }
            return read;
        }
    }

    /** A text has at most three times as many bytes, and 65,535 are the most. */
    private static final int LONGEST_TEXT = 8_000;

    ShrinkDecision {
        left = Collections.unmodifiableSortedMap(new TreeMap<>(left));
        shared = shared.clone();
    }

    static ShrinkDecision refused(String why) {
        return new ShrinkDecision(new TreeMap<>(), new byte[0], why);
    }

    byte[] toBytes() {
        return written(out -> {
            writeRanks(out, List.copyOf(left.keySet()));
            for (long value : left.values()) {
                out.writeLong(value);
            }
            out.writeInt(shared.length);
            out.write(shared);
            out.writeUTF(refusal.substring(0, Math.min(refusal.length(), LONGEST_TEXT)));
        });
    }

    /** Reads what the store of {@code count} ranks has said. */
    static ShrinkDecision of(byte[] bytes, int count) throws ProtocolException {
        return read("DECIDED", bytes, in -> {
            SortedMap<Integer, Long> left = new TreeMap<>();
            for (int rank : readRanks(in, count)) {
                left.put(rank, in.readLong());
            }
            return new ShrinkDecision(left, in.readNBytes(in.readInt()), in.readUTF());
        });
    }

    /** Something that is read. */
    interface Reading<T> {
        T from(DataInputStream in) throws IOException;
    }

    /**
     * Reads a message.
     *
     * @throws ProtocolException when it is none; the text begins with {@code what}
     */
    static <T> T read(String what, byte[] bytes, Reading<T> reading) throws ProtocolException {
        var in = new DataInputStream(new ByteArrayInputStream(bytes));
        try {
            return reading.from(in);
        } catch (IOException | IllegalArgumentException other) { // A number of bytes may be below 0.
            var unreadable = new ProtocolException(what + ": "
                    + (other instanceof ProtocolException
                            ? other.getMessage()
                            : "expected what Chagres writes, got " + bytes.length + " other bytes ("
                                    + Checks.describe(other) + ")"));
            unreadable.initCause(other);
            throw unreadable;
        }
    }

    /** Writes a message. */
    private interface Writing {
        void to(DataOutputStream out) throws IOException;
    }

    private static byte[] written(Writing writing) {
        var bytes = new ByteArrayOutputStream();
        try (var out = new DataOutputStream(bytes)) {
            writing.to(out);
        } catch (IOException impossible) { // It is memory.
            throw new UncheckedIOException(impossible);
        }
        return bytes.toByteArray();
    }

    private static void writeRanks(DataOutputStream out, List<Integer> ranks) throws IOException {
        out.writeInt(ranks.size());
        for (int rank : ranks) {
            out.writeInt(rank);
        }
    }

    private static List<Integer> readRanks(DataInputStream in, int count) throws IOException {
        int numbers = in.readInt();
        if (numbers < 0 || numbers > count) {
            throw new ProtocolException("expected at most " + count + " ranks, got " + numbers);
        }
        List<Integer> ranks = new ArrayList<>();
        for (int i = 0; i < numbers; i++) {
            ranks.add(HangQuery.checked(in.readInt(), count));
        }
        return ranks;
    }
}
