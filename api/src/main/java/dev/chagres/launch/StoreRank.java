package dev.chagres.launch;

import dev.chagres.bindings.ForeignText;
import dev.chagres.nccl.PeerProgress;
import java.io.IOException;
import java.net.ProtocolException;
import java.util.Arrays;
import java.util.List;

/**
 * One rank as the store serves it: what the rank says, until its connection ends.
 *
 * <p>Threading: a thread of its own.
 */
final class StoreRank {
    private final StoreServer server;
    private final int rank;
    private final int count;
    private final StoreMessages connection;

    StoreRank(StoreServer server, int rank, StoreMessages connection) {
        this.server = server;
        this.rank = rank;
        this.connection = connection;
        count = server.environment.count();
    }

    void serve() {
        try {
            connection.timeout(0);
            StoreMessages.Message message = connection.receive();
            while (message.kind() != StoreMessages.Kind.LEAVE) {
                take(message);
                message = connection.receive();
            }
            server.leave(rank, connection);
        } catch (ProtocolException unreadable) {
            String why = TcpStore.UNREADABLE + unreadable.getMessage();
            server.lost(rank, connection, why);
            sayLast(why);
        } catch (IOException ended) {
            String why = connection.whyEnded();
            server.lost(rank, connection, why == null ? TcpStore.ENDED : why);
        }
    }

    /** Else the rank would take the end of its connection for that of the rank that keeps the store. */
    private void sayLast(String why) {
        try {
            connection.send(
                    StoreMessages.Kind.FAILED, rank, server.news.telling(why).toBytes());
        } catch (IOException _) {
            // It has ended.
        }
    }

    private void take(StoreMessages.Message message) throws ProtocolException {
        switch (message.kind()) {
            case FAILED -> failed(message.number(), StoreMessages.Told.of(message));
            case DONE -> server.finished(rank);
            case ASK -> server.inquiries.begin(rank, message.number(), message.text());
            case ANSWER -> server.inquiries.answered(rank, message.number(), progress(message.text()));
            case CALL -> StoreCall.of(rank, message.text(), count).passOn(server);
            case AGREE -> server.accords.come(rank, ShrinkDecision.Proposal.of(message.bytes(), rank, count));
            default ->
                throw new ProtocolException(
                        "message: expected one that a rank says after its hello, got " + message.kind());
        }
    }

    private void failed(int other, StoreMessages.Told told) throws ProtocolException {
        if (other != StoreMessages.UNKNOWN) {
            HangQuery.checked(other, count);
        }
        if (other == rank) {
            server.accords.comesNoMore(rank);
            server.tellFailure(rank, told.text());
        } else if (server.news.failed(other, told)) {
            server.tellOthers(other, told.text());
        }
    }

    private static PeerProgress progress(String text) throws ProtocolException {
        for (PeerProgress progress : PeerProgress.values()) {
            if (progress.name().equals(text)) {
                return progress;
            }
        }
        throw new ProtocolException("ANSWER: expected one of " + Arrays.toString(PeerProgress.values()) + ", got "
                + ForeignText.quoted(text));
    }

    /** A rank's announcement of its next call, for some of the others. */
    record StoreCall(int from, List<Integer> to, String text) {
        /** Reads what {@link #toBytes} wrote. */
        static StoreCall of(int from, String message, int count) throws ProtocolException {
            int line = message.indexOf('\n');
            if (line < 0) {
                throw new ProtocolException(
                        "CALL: expected a line of ranks, got none in " + message.length() + " characters");
            }
            return new StoreCall(from, HangQuery.ranks(message.substring(0, line), count), message.substring(line + 1));
        }

        /**
         * Sends it to the others, last to the rank that keeps the store: the call may make that rank fail, and the others must receive the call
         * before the failure.
         *
         * @throws ProtocolException when that rank has no room for it
         */
        void passOn(StoreServer server) throws ProtocolException {
            passToOthers(server);
            if (to.contains(server.environment.rank())) {
                server.news.heard(from, text);
            }
        }

        /** Sends it to the others, but not to the rank that keeps the store. */
        void passToOthers(StoreServer server) {
            byte[] bytes = StoreMessages.bytes(text);
            try (var _ = server.lock.hold()) {
                to.forEach(rank -> server.tellRank(rank, StoreMessages.Kind.CALL, from, bytes));
            }
        }

        byte[] toBytes() {
            return StoreMessages.bytes(HangQuery.text(to) + "\n" + text);
        }
    }
}
