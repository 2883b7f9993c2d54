package dev.chagres.checkpoint;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.io.RecipeDifferences;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.parameter.State;
import java.lang.foreign.MemorySegment;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

/**
 * Transfers a state between rank 0, which has the file, and the other ranks. Rank 0 announces what comes next, piece by piece, and the
 * others take part; so a failure of the file ends all of them.
 *
 * <p>Threading: the device's thread.
 */
final class StateTransfer implements AutoCloseable {
    /** How many bytes of a tensor are sent at a time; a multiple of every element's size. */
    static final long PIECE_BYTES = 16L << 20;

    /** What comes next: its number, and three that belong to it. */
    private static final int WORDS = 4;

    private static final int GATHER = 0;
    private static final int SCATTER = 1;
    private static final int NUMBER = 2;
    private static final int DONE = 3;
    private static final int FAILED = 4;
    private static final int IGNORED = 5;
    private static final int MISSING = 6;

    private final Communicator all;
    private final Stream stream;
    private final List<StateTensor> tensors;
    private final List<State.Number> numbers;
    private final Scope room;
    private final Tensor next;
    private final Tensor piece;
    private final List<String> ignored = new ArrayList<>();
    private final List<String> missing = new ArrayList<>();

    StateTransfer(Communicator all, Stream stream, List<StateTensor> tensors, List<State.Number> numbers) {
        this.all = all;
        this.stream = stream;
        this.tensors = tensors;
        this.numbers = numbers;
        long largest = tensors.stream()
                .mapToLong(tensor -> tensor.spec().byteSize())
                .max()
                .orElse(0);
        room = stream.device().openScope(stream);
        next = room.tensor(DType.INT64, WORDS);
        piece = room.tensor(DType.BYTE, Math.min(largest, PIECE_BYTES));
    }

    /** Returns whether this rank has the file. */
    boolean isRoot() {
        return all.rank() == StateTensor.ROOT;
    }

    /** On rank 0: runs {@code body}, which calls the methods below, then ends the others' part; they throw what it throws. */
    void lead(Runnable body) {
        try {
            body.run();
        } catch (RankFailedException failure) {
            throw failure;
        } catch (RuntimeException | Error failure) {
            try {
                tell(failure);
            } catch (RuntimeException later) {
                failure.addSuppressed(later);
            }
            throw failure;
        }
        say(DONE, 0, 0, 0);
    }

    /** On rank 0: fills {@code target} with the bytes of tensor {@code index} from byte {@code offset} on. */
    void gather(int index, long offset, MemorySegment target) {
        int size = tensors.get(index).spec().dtype().byteSize();
        for (long done = 0; done < target.byteSize(); done += piece.byteSize()) {
            MemorySegment part = target.asSlice(done, Math.min(piece.byteSize(), target.byteSize() - done));
            long first = (offset + done) / size;
            long count = part.byteSize() / size;
            say(GATHER, index, first, count);
            try (Scope views = room.open()) {
                gather(index, first, count, views).copyTo(stream, part);
            }
            all.synchronize(stream);
        }
    }

    /** On rank 0: writes the bytes of {@code source} to tensor {@code index} from byte {@code offset} on; at most a piece. */
    void scatter(int index, long offset, MemorySegment source) {
        int size = tensors.get(index).spec().dtype().byteSize();
        long count = source.byteSize() / size;
        say(SCATTER, index, offset / size, count);
        try (Scope views = room.open()) {
            elements(index, count, views).copyFrom(stream, source);
        }
        scatter(index, offset / size, count);
        all.synchronize(stream);
    }

    /** On rank 0: gives number {@code index} the same value everywhere. */
    void number(int index, long value) {
        say(NUMBER, index, value, 0);
        numbers.get(index).writer().accept(value);
    }

    /** On rank 0: reports a tensor of another recipe in the file. */
    void ignored(String name) {
        ignored.add(name);
        say(IGNORED, name);
    }

    /** On rank 0: reports a tensor that the file lacks, because its recipe was another. */
    void missing(String name) {
        missing.add(name);
        say(MISSING, name);
    }

    /** On every rank, at the end: returns what rank 0 has reported. */
    RecipeDifferences differences() {
        return new RecipeDifferences(ignored, missing);
    }

    /** On the other ranks: takes part in what rank 0 announces, and throws what it has thrown. */
    void follow() {
        while (true) {
            long[] words = hear();
            int index = (int) words[1];
            switch ((int) words[0]) {
                case GATHER -> {
                    try (Scope views = room.open()) {
                        gather(index, words[2], words[3], views);
                    }
                }
                case SCATTER -> scatter(index, words[2], words[3]);
                case NUMBER -> numbers.get(index).writer().accept(words[2]);
                case IGNORED -> ignored.add(text(hear(index)));
                case MISSING -> missing.add(text(hear(index)));
                case FAILED -> throw RankAccord.decoded(hear(index), StateTensor.ROOT);
                default -> {
                    return;
                }
            }
        }
    }

    private Tensor elements(int index, long count, Scope views) {
        return views.reinterpret(piece, tensors.get(index).spec().dtype(), 0, count);
    }

    private Tensor gather(int index, long first, long count, Scope views) {
        Tensor elements = elements(index, count, views);
        tensors.get(index).gather(first, elements, all, stream, views);
        return elements;
    }

    private void scatter(int index, long first, long count) {
        try (Scope views = room.open()) {
            tensors.get(index).scatter(first, elements(index, count, views), all, stream, views);
        }
    }

    private void say(long... words) {
        next.set(stream, words);
        all.broadcast(next, next, StateTensor.ROOT, stream);
        all.synchronize(stream);
    }

    private long[] hear() {
        all.broadcast(null, next, StateTensor.ROOT, stream);
        all.synchronize(stream);
        return next.toLongs(stream);
    }

    private void say(int what, String name) {
        byte[] bytes = name.getBytes(StandardCharsets.UTF_8);
        say(what, bytes.length, 0, 0);
        say(bytes);
    }

    private void say(byte[] bytes) {
        try (Scope scope = room.open()) {
            Tensor message = scope.tensor(DType.BYTE, bytes.length);
            message.set(stream, bytes);
            all.broadcast(message, message, StateTensor.ROOT, stream);
            all.synchronize(stream);
        }
    }

    private byte[] hear(int length) {
        try (Scope scope = room.open()) {
            Tensor message = scope.tensor(DType.BYTE, length);
            all.broadcast(null, message, StateTensor.ROOT, stream);
            all.synchronize(stream);
            return message.toBytes(stream);
        }
    }

    private static String text(byte[] bytes) {
        return new String(bytes, StandardCharsets.UTF_8);
    }

    private void tell(Throwable failure) {
        byte[] text = RankAccord.encoded(failure);
        say(FAILED, text.length, 0, 0);
        say(text);
    }

    @Override
    public void close() {
        room.close();
    }
}
