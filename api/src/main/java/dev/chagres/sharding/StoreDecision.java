package dev.chagres.sharding;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.SortedMap;
import java.util.TreeMap;

/**
 * Which ranks are left when others have failed, as their store decides it.
 *
 * <p>Threading: immutable.
 *
 * @param left those that are left, and what each of them said; none where they cannot go on
 * @param shared what they need to meet again
 * @param refusal why they cannot go on; empty where they can
 */
record StoreDecision(SortedMap<Integer, Long> left, byte[] shared, String refusal) {
    /**
     * What a rank says of a failure.
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

        static Proposal of(byte[] bytes) throws IOException {
            var in = new DataInputStream(new ByteArrayInputStream(bytes));
            return new Proposal(in.readInt(), readRanks(in), readRanks(in), in.readUTF(), in.readLong(), in.readLong());
        }
    }

    /** A text has at most three times as many bytes, and 65,535 are the most. */
    private static final int LONGEST_TEXT = 8_000;

    StoreDecision {
        left = Collections.unmodifiableSortedMap(new TreeMap<>(left));
        shared = shared.clone();
    }

    static StoreDecision refused(String why) {
        return new StoreDecision(new TreeMap<>(), new byte[0], why);
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

    static StoreDecision of(byte[] bytes) throws IOException {
        var in = new DataInputStream(new ByteArrayInputStream(bytes));
        SortedMap<Integer, Long> left = new TreeMap<>();
        for (int rank : readRanks(in)) {
            left.put(rank, in.readLong());
        }
        return new StoreDecision(left, in.readNBytes(in.readInt()), in.readUTF());
    }

    /** Something that is written. */
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

    private static List<Integer> readRanks(DataInputStream in) throws IOException {
        int count = in.readInt();
        List<Integer> ranks = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            ranks.add(in.readInt());
        }
        return ranks;
    }
}
