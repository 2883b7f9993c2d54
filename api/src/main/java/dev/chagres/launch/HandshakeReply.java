package dev.chagres.launch;

import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ProtocolException;
import java.util.ArrayList;
import java.util.List;

/**
 * The store's message to each rank once all have connected.
 *
 * <p>Threading: immutable.
 *
 * @param shared what rank 0 gives
 * @param addresses where each rank listens: one of them keeps the store when rank 0 has failed
 */
record HandshakeReply(byte[] shared, List<InetSocketAddress> addresses) {
    HandshakeReply {
        shared = shared.clone();
        addresses = List.copyOf(addresses);
    }

    byte[] toBytes() {
        var bytes = new ByteArrayOutputStream();
        try (var out = new DataOutputStream(bytes)) {
            out.writeInt(shared.length);
            out.write(shared);
            out.writeInt(addresses.size());
            for (InetSocketAddress address : addresses) {
                byte[] host = address.getAddress().getAddress();
                out.writeByte(host.length);
                out.write(host);
                out.writeInt(address.getPort());
            }
        } catch (IOException impossible) { // It is memory.
            throw new UncheckedIOException(impossible);
        }
        return bytes.toByteArray();
    }

    /** Reads what the store of {@code count} ranks gives. */
    static HandshakeReply of(byte[] bytes, int count) throws ProtocolException {
        return ShrinkDecision.read("READY", bytes, in -> {
            byte[] shared = in.readNBytes(in.readInt());
            int numbers = in.readInt();
            if (numbers != count) {
                throw new ProtocolException("expected the addresses of " + count + " ranks, got " + numbers);
            }
            List<InetSocketAddress> addresses = new ArrayList<>();
            for (int rank = 0; rank < count; rank++) {
                InetAddress host = InetAddress.getByAddress(in.readNBytes(in.readUnsignedByte()));
                addresses.add(new InetSocketAddress(host, in.readInt()));
            }
            return new HandshakeReply(shared, addresses);
        });
    }
}
