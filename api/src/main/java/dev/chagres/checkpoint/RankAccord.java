package dev.chagres.checkpoint;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.ranks.AllGatherLongs;
import dev.chagres.io.SafetensorsException;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.RankFailedException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;

/**
 * Ranks that go on together: what one of them throws, all throw. A rank that is alone agrees with itself.
 *
 * <p>Threading: the device's thread.
 */
record RankAccord(@Nullable Communicator all, Stream stream) {
    /** Of a rank whose work was done. */
    private static final long DONE = -1;

    private static final String BETWEEN = "\0";

    int rank() {
        return all == null ? 0 : all.rank();
    }

    /** Returns the numbers of all ranks, in their order. */
    long[] gather(long... own) {
        return all == null || own.length == 0 ? own : AllGatherLongs.ofAll(all, stream, own);
    }

    /** Runs each rank's own work, and waits for that of the others. */
    void together(Runnable work) {
        RuntimeException failure = null;
        try {
            work.run();
        } catch (RankFailedException others) {
            throw others;
        } catch (RuntimeException own) {
            failure = own;
        }
        byte[] text = failure == null ? new byte[0] : encoded(failure);
        long[] lengths = gather(failure == null ? DONE : text.length);
        for (int rank = 0; rank < lengths.length; rank++) {
            if (lengths[rank] != DONE) {
                byte[] told = broadcast(text, (int) lengths[rank], rank);
                throw failure != null ? failure : decoded(told, rank);
            }
        }
    }

    /** Returns what the root's work has returned. */
    String ofRoot(Supplier<String> work) {
        byte[][] text = {new byte[0]};
        together(() -> {
            if (rank() == StateTensor.ROOT) {
                text[0] = work.get().getBytes(StandardCharsets.UTF_8);
            }
        });
        int length = (int) gather(text[0].length)[StateTensor.ROOT];
        return new String(broadcast(text[0], length, StateTensor.ROOT), StandardCharsets.UTF_8);
    }

    private byte[] broadcast(byte[] own, int length, int root) {
        Communicator ranks = all;
        if (ranks == null || length == 0) {
            return own;
        }
        try (Scope scope = stream.device().openScope(stream)) {
            Tensor message = scope.tensor(DType.BYTE, length);
            if (ranks.rank() == root) {
                message.set(stream, own);
            }
            ranks.broadcast(message, message, root, stream);
            ranks.synchronize(stream);
            return message.toBytes(stream);
        }
    }

    /** Returns what other ranks need to throw the same. */
    static byte[] encoded(Throwable failure) {
        String text = failure instanceof SafetensorsException known
                ? known.file() + BETWEEN + known.tensor().orElse("") + BETWEEN + known.getMessage()
                : BETWEEN + BETWEEN + Checks.describe(failure);
        return text.getBytes(StandardCharsets.UTF_8);
    }

    /** Returns what the other rank has thrown. */
    static RuntimeException decoded(byte[] told, int rank) {
        String[] parts = new String(told, StandardCharsets.UTF_8).split(BETWEEN, 3);
        return parts[0].isEmpty()
                ? new IllegalStateException("rank " + rank
                        + (rank == StateTensor.ROOT ? ", which has the file, failed: " : " failed: ")
                        + parts[2])
                : SafetensorsException.ofRank(parts[2], Path.of(parts[0]), parts[1].isEmpty() ? null : parts[1]);
    }
}
