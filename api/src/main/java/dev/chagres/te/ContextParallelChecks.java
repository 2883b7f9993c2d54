package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.DeviceState;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * Checks of the functions over packed tokens of context-parallel ranks.
 *
 * <p>Threading: the device's thread.
 */
final class ContextParallelChecks {
    /** TE starts 32 threads per token and counts them in signed 32 bits. */
    private static final int MOST_TOKENS = (1 << 26) - 1;
    /** The grid's second dimension has a block for each part, or each head. */
    static final int MOST_PARTS = 65_535;
    /** As many offsets as fit into the 48 KiB of shared memory of a block. */
    private static final int MOST_OFFSETS = 12_288;

    private static final int VECTOR_BYTES = 16;

    private ContextParallelChecks() {}

    /** Checks offsets of at least one sequence. */
    static void offsets(String argument, Tensor offsets, Stream stream) {
        offsets(argument, offsets, MOST_OFFSETS, stream);
    }

    /** Checks two lists of offsets, which a block keeps in shared memory together. */
    static void twoOffsets(Tensor padded, Tensor valid, Stream stream) {
        offsets("cuSeqlensPadded", padded, MOST_OFFSETS / 2, stream);
        Checks.vector(stream, "cuSeqlens", valid, DType.INT32, padded.count());
    }

    private static void offsets(String argument, Tensor offsets, int most, Stream stream) {
        Checks.typed(stream, argument, offsets, DType.INT32);
        if (offsets.rank() != 1 || offsets.size(0) < 2 || offsets.size(0) > most) {
            throw new IllegalArgumentException(argument + ": expected INT32[B + 1] with B from 1 to " + (most - 1)
                    + ", got " + Checks.describe(offsets));
        }
    }

    /** Checks heads [T, h, d] or [n, T, h, d] with an even T. */
    static void tokens(String argument, Tensor tensor, Stream stream) {
        Checks.floats(stream, argument, tensor);
        int rank = tensor.rank();
        boolean fits = (rank == 3 || (rank == 4 && tensor.size(0) <= MOST_PARTS))
                && tensor.size(rank - 3) % 2 == 0
                && tensor.size(rank - 3) <= MOST_TOKENS
                && isWhole(tensor, rank - 2);
        if (!fits) {
            throw new IllegalArgumentException(argument + ": expected [T, h, d] or [n, T, h, d] with n at most "
                    + MOST_PARTS + ", T even and at most " + MOST_TOKENS + ", and h d a multiple of " + VECTOR_BYTES
                    + " bytes, got " + Checks.describe(tensor));
        }
        Checks.aligned(argument, tensor);
    }

    /** Checks tokens [T, …]. */
    static void rows(String argument, Tensor tensor, Stream stream) {
        Checks.floats(stream, argument, tensor);
        if (tensor.rank() < 2 || tensor.size(0) > MOST_TOKENS || !isWhole(tensor, 1)) {
            throw new IllegalArgumentException(argument + ": expected [T, ...] with T at most " + MOST_TOKENS
                    + " and a token a multiple of " + VECTOR_BYTES + " bytes, got " + Checks.describe(tensor));
        }
        Checks.aligned(argument, tensor);
    }

    /** Returns whether the dimensions from {@code first} on span a multiple of 16 bytes that TE can count in 32 bits. */
    private static boolean isWhole(Tensor tensor, int first) {
        long bytes = tensor.dtype().byteSize();
        for (int i = first; i < tensor.rank(); i++) {
            bytes = Math.multiplyHigh(bytes, tensor.size(i)) == 0 ? bytes * tensor.size(i) : Long.MAX_VALUE;
        }
        return bytes % VECTOR_BYTES == 0 && bytes >= 0 && bytes <= Integer.MAX_VALUE;
    }

    /** Checks that {@code part} is like {@code whole}, but with T / divisor tokens; T is the third-last dimension. */
    static void part(String argument, Tensor part, String wholeArgument, Tensor whole, int divisor, Stream stream) {
        Checks.on(stream, argument, part);
        int rank = whole.rank();
        boolean fits = part.dtype() == whole.dtype() && part.rank() == rank;
        for (int i = 0; fits && i < rank; i++) {
            fits = part.size(i) == (i == rank - 3 ? whole.size(i) / divisor : whole.size(i));
        }
        if (!fits) {
            throw new IllegalArgumentException(argument + ": expected " + whole.dtype() + " like " + wholeArgument + " "
                    + whole.shape() + " with " + whole.size(rank - 3) / divisor + " tokens, got "
                    + Checks.describe(part));
        }
        Checks.aligned(argument, part);
    }

    static void indices(Tensor output, int worldSize, Stream stream) {
        Checks.typed(stream, "output", output, DType.INT32);
        worldSize(worldSize);
        if (output.rank() != 1 || output.size(0) % 2 != 0 || output.size(0) > MOST_TOKENS / worldSize) {
            throw new IllegalArgumentException("output: expected INT32[T / worldSize], even and at most "
                    + MOST_TOKENS / worldSize + ", got " + Checks.describe(output));
        }
    }

    private static void worldSize(int worldSize) {
        if (worldSize < 1 || worldSize > MOST_TOKENS) {
            throw new IllegalArgumentException("worldSize: expected from 1 to " + MOST_TOKENS + ", got " + worldSize);
        }
    }

    static void reorder(Tensor inp, Tensor cuSeqlens, Tensor out, int worldSize, Stream stream) {
        rows("inp", inp, stream);
        offsets("cuSeqlens", cuSeqlens, stream);
        Checks.like(stream, "out", out, inp);
        Checks.aligned("out", out);
        worldSize(worldSize);
        if (inp.size(0) % (2 * worldSize) != 0) {
            throw new IllegalArgumentException("inp: expected a multiple of 2 worldSize = " + 2 * worldSize
                    + " tokens, got " + Checks.describe(inp));
        }
        Checks.written("out", out, "inp", inp, "cuSeqlens", cuSeqlens);
    }

    /** Host memory for handles, kept per device, for functions that take pointers to handles. */
    static final class TensorCells implements AutoCloseable {
        private static final int MOST = 5;
        private static final DeviceState.Attachment<TensorCells> ATTACHMENT =
                new DeviceState.Attachment<>(device -> new TensorCells());

        private final Arena arena = Arena.ofShared();
        private final MemorySegment[] cells = new MemorySegment[MOST];

        private TensorCells() {
            for (int i = 0; i < MOST; i++) {
                cells[i] = arena.allocate(ValueLayout.JAVA_LONG);
            }
        }

        static TensorCells of(Stream stream) {
            return Inside.state(stream).get(ATTACHMENT);
        }

        /** Stores the tensor's handle in cell {@code index}, and returns the cell; the next call for it overwrites it. */
        MemorySegment cell(int index, Tensor tensor) {
            cells[index].set(ValueLayout.JAVA_LONG, 0, tensor.handle().address());
            return cells[index];
        }

        @Override
        public void close() {
            arena.close();
        }
    }
}
