package dev.chagres.checkpoint;

import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.io.TensorSpec;
import dev.chagres.nccl.Communicator;
import dev.chagres.parameter.State;
import java.lang.foreign.MemorySegment;
import java.util.List;

/**
 * A tensor of the state of a whole model, of which ranks hold parts.
 *
 * <p>Threading: the device's thread.
 */
sealed interface StateTensor permits StateShard, SplitTensor {
    /** Of all ranks, the one that has the file. */
    int ROOT = 0;

    /** Returns name, type and shape of the whole tensor. */
    TensorSpec spec();

    /** Returns the values that its elements may have. */
    State.Values may();

    /**
     * Bytes of the whole tensor that lie one after another on a rank.
     *
     * @param first of them in the whole tensor
     * @param vector has them, and others
     * @param place of the first one there, if each element had its own number there
     * @param bytes how many, at least one
     * @param repeat how many neighbours have the same number there
     */
    record Stretch(long first, Tensor vector, long place, long bytes, int repeat) {
        Stretch(long first, Tensor vector, long place, long bytes) {
            this(first, vector, place, bytes, 1);
        }

        /** Returns the one that begins here and has so many bytes. */
        Stretch with(long count) {
            return new Stretch(first, vector, place, count, repeat);
        }

        /** Returns some of these bytes, from one of the tensor on. */
        Stretch part(long begin, long count) {
            return new Stretch(begin, vector, place + begin - first, count, repeat);
        }

        /** Returns the place of the first number in the vector. */
        long begin() {
            return begin(place);
        }

        private long begin(long of) {
            int size = vector.dtype().byteSize();
            return repeat == 1 ? of : of / size / repeat * size;
        }

        /** Returns the bytes of the numbers in the vector. */
        long held() {
            int size = vector.dtype().byteSize();
            return repeat == 1 ? bytes : begin(place + bytes - size) + size - begin();
        }

        /** Returns the tensor's bytes, of those of the vector. */
        MemorySegment repeated(MemorySegment held) {
            if (repeat == 1) {
                return held;
            }
            MemorySegment all = MemorySegment.ofArray(new byte[Math.toIntExact(bytes)]);
            int size = vector.dtype().byteSize();
            for (long next = 0; next < bytes; next += size) {
                MemorySegment.copy(held, begin(place + next) - begin(), all, next, size);
            }
            return all;
        }

        /** Returns the vector's bytes, of those of the tensor, whose memory they take. */
        MemorySegment distinct(MemorySegment all) {
            int size = vector.dtype().byteSize();
            for (long next = 0; repeat > 1 && next < bytes; next += size) {
                MemorySegment.copy(all, next, all, begin(place + next) - begin(), size);
            }
            return all.asSlice(0, held());
        }
    }

    /** Returns what this rank, {@code rank}, holds. */
    List<Stretch> held(int rank);

    /** Returns what this rank, {@code rank}, writes of that: ranks that hold the same have equal parts of it. */
    List<Stretch> written(int rank);

    /** Enqueues the collection of {@code elements}, from {@code first} on, on the root; elsewhere they are only room for it. */
    void gather(long first, Tensor elements, Communicator all, Stream stream, Scope views);

    /** Enqueues the distribution of the root's {@code elements}, from {@code first} on, to the ranks that hold them. */
    void scatter(long first, Tensor elements, Communicator all, Stream stream, Scope views);
}
