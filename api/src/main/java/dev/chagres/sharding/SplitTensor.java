package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.io.TensorSpec;
import dev.chagres.model.ParameterSplit;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.Reduction;
import dev.chagres.ops.Rows;
import org.jspecify.annotations.Nullable;

/**
 * A tensor of the state of a whole model whose elements are divided among tensor-parallel ranks as a {@link ParameterSplit} says.
 *
 * <p>Each rank puts what it gives of a piece into a piece of zero bytes; the root adds the bytes up, of which one rank alone gives each.
 *
 * <p>Threading: the device's thread.
 *
 * @param spec name, type and shape of the whole tensor
 * @param own what this rank holds: its part of a parameter, or of what an optimizer keeps of it; null where it has another stage of a
 *     pipeline
 * @param split which elements these are
 * @param gives whether this is the one among ranks that hold the same elements which gives them
 */
record SplitTensor(TensorSpec spec, @Nullable Tensor own, ParameterSplit split, Copy gives) implements StateTensor {
    /** Of ranks that hold the same elements one gives them. */
    enum Copy {
        GIVES,
        RECEIVES_ONLY
    }

    /**
     * Checks that the elements can be moved.
     *
     * @throws IllegalArgumentException when they are of another type than FLOAT32, BFLOAT16, FLOAT16, or pairs of bytes
     */
    SplitTensor {
        if (!spec.dtype().isFloat() && !isPairs(spec)) {
            throw new IllegalArgumentException(
                    "state: expected parts of FLOAT32, BFLOAT16 or FLOAT16, or pairs of" + " bytes, got " + spec);
        }
    }

    private static boolean isPairs(TensorSpec spec) {
        return spec.dtype() == DType.BYTE
                && spec.shape().rank() == 2
                && spec.shape().size(1) == 2;
    }

    @Override
    public void gather(long first, Tensor elements, Communicator all, Stream stream, Scope views) {
        Tensor held = own;
        if (gives == Copy.GIVES && held != null && held.count() > 0) {
            Moved moved = moved(held, first, elements, stream, views);
            Rows.gatherRows(moved.own, moved.index, moved.piece, stream);
        } else {
            elements.zero(stream);
        }
        Tensor bytes = views.reinterpret(elements, DType.BYTE, 0, elements.byteSize());
        all.reduce(bytes, all.rank() == ROOT ? bytes : null, Reduction.SUM, ROOT, stream);
    }

    @Override
    public void scatter(long first, Tensor elements, Communicator all, Stream stream, Scope views) {
        all.broadcast(elements, elements, ROOT, stream);
        Tensor held = own;
        if (held != null && held.count() > 0) {
            Moved moved = moved(held, first, elements, stream, views);
            Rows.scatterRows(moved.piece, moved.index, moved.own, stream);
        }
    }

    /** Rows of equally many elements: this rank's, those of a piece, and the number of this rank's for each of the piece's; -1: not its own. */
    private record Moved(Tensor own, Tensor index, Tensor piece) {}

    private Moved moved(Tensor held, long first, Tensor elements, Stream stream, Scope views) {
        // Nothing computes with pairs of bytes: they move as numbers of 16 bits.
        boolean pairs = isPairs(spec);
        DType type = pairs ? DType.BFLOAT16 : spec.dtype();
        long width = pairs ? 2 : 1;
        long begin = first / width;
        long count = elements.count() / width;
        long run = greatestDivisor(greatestDivisor(split.run(), begin), count);
        int rows = Math.toIntExact(count / run);
        int[] index = new int[rows];
        for (int row = 0; row < rows; row++) {
            long local = split.local(begin + row * run);
            index[row] = local < 0 ? -1 : Math.toIntExact(local / run);
        }
        Tensor places = views.tensor(DType.INT32, rows);
        places.set(stream, index);
        return new Moved(matrix(held, type, run, views), places, matrix(elements, type, run, views));
    }

    private static Tensor matrix(Tensor tensor, DType type, long columns, Scope views) {
        long count = tensor.byteSize() / type.byteSize();
        return views.view(views.reinterpret(tensor, type, 0, count), 0, count / columns, columns);
    }

    private static long greatestDivisor(long a, long b) {
        return b == 0 ? a : greatestDivisor(b, a % b);
    }
}
