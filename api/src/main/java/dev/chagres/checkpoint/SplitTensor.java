package dev.chagres.checkpoint;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.io.TensorSpec;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.Reduction;
import dev.chagres.ops.Rows;
import dev.chagres.parallel.ParameterSplit;
import dev.chagres.parameter.ParameterShard.Part;
import dev.chagres.parameter.State;
import java.util.ArrayList;
import java.util.List;
import java.util.function.BiConsumer;
import org.jspecify.annotations.Nullable;

/**
 * A tensor of the state of a whole model that is split among tensor-parallel ranks as a {@link ParameterSplit} says, and perhaps sharded further among the ranks that have the same part.
 *
 * <p>Each rank copies the elements that it sends into a piece of zeros; a sum over the ranks, in which only one rank sends each element,
 * collects them on the root.
 *
 * <p>Threading: the device's thread.
 *
 * @param spec name, type and shape of the whole tensor
 * @param width numbers of the tensor for each element of the split
 * @param own what this rank holds; null where it holds nothing
 * @param may the values that elements may have
 * @param split which elements of the whole a rank has before they are sharded
 * @param copies which one this is among ranks that hold the same elements; the first gives them
 */
record SplitTensor(
        TensorSpec spec,
        int width,
        State.Values may,
        @Nullable Own own,
        ParameterSplit split,
        Copies copies) implements StateTensor {
    /**
     * A range of a rank's part.
     *
     * @param vector has it, and others
     * @param repeat how many elements of the part have the same number there; they begin together
     * @param place its first element there, if each had its own number
     * @param first its first element in the rank's part
     * @param count elements, of one number or of a pair of bytes each
     */
    record Own(Tensor vector, int repeat, long place, long first, long count) {
        /**
         * Returns the elements that a rank holds of a range of a piece of a group, or null.
         *
         * @param pieceOffset first element of the piece where all its parts lie together
         * @param pieceCount elements of the piece
         * @param offset first element of the stretch in the piece
         * @param count elements of the stretch
         * @param part of the piece, which the rank holds
         */
        static @Nullable Own of(
                Tensor vector, int repeat, long pieceOffset, long pieceCount, long offset, long count, Part part) {
            long begin = part.begin(pieceCount);
            long first = Math.max(0, begin - offset);
            long end = Math.min(count, begin + part.of(pieceCount) - offset);
            return first < end
                    ? new Own(vector, repeat, part.of(pieceOffset) + offset + first - begin, first, end - first)
                    : null;
        }
    }

    /**
     * Ranks that hold the same elements.
     *
     * @param index of this one; -1 where others give the elements
     * @param count of all
     */
    record Copies(int index, int count) {}

    @Override
    public List<Stretch> held(int rank) {
        return stretches(0, 1);
    }

    @Override
    public List<Stretch> written(int rank) {
        return copies.index < 0 ? List.of() : stretches(copies.index, copies.count);
    }

    /** Returns one of so many equal parts of what this rank holds: runs that lie together in its part and in the whole. */
    private List<Stretch> stretches(int share, int shares) {
        List<Stretch> all = new ArrayList<>();
        Own held = own;
        if (held == null || held.count == 0) {
            return all;
        }
        long size = (long) width * spec.dtype().byteSize();
        long run = split.run();
        long end = held.count * (share + 1) / shares;
        long count;
        for (long next = held.count * share / shares; next < end; next += count) {
            long local = held.first + next;
            count = Math.min(end - next, run - local % run);
            long first = split.element(local) * size;
            Stretch last = all.isEmpty() ? null : all.getLast();
            if (last != null && last.first() + last.bytes() == first) {
                all.removeLast();
                all.add(last.with(last.bytes() + count * size));
            } else {
                all.add(new Stretch(first, held.vector, (held.place + next) * size, count * size, held.repeat));
            }
        }
        return all;
    }

    @Override
    public void gather(long first, Tensor elements, Communicator all, Stream stream, Scope views) {
        Own held = own;
        Moved moved = held == null || copies.index != 0 ? null : moved(held, first, elements, stream, views);
        if (moved != null) {
            Rows.gatherRows(moved.own, moved.index, moved.piece, stream);
        } else {
            elements.zero(stream);
            if (held != null && copies.index == 0) {
                runs(held, first, elements, views, (here, piece) -> piece.copyFrom(stream, here));
            }
        }
        Tensor bytes = views.reinterpret(elements, DType.BYTE, 0, elements.byteSize());
        all.reduce(bytes, all.rank() == ROOT ? bytes : null, Reduction.SUM, ROOT, stream);
    }

    @Override
    public void scatter(long first, Tensor elements, Communicator all, Stream stream, Scope views) {
        all.broadcast(elements, elements, ROOT, stream);
        Own held = own;
        if (held == null) {
            return;
        }
        Moved moved = moved(held, first, elements, stream, views);
        if (moved != null) {
            Rows.scatterRows(moved.piece, moved.index, moved.own, stream);
        } else {
            runs(held, first, elements, views, (here, piece) -> here.copyFrom(stream, piece));
        }
    }

    /** Passes on, run by run, what this rank holds of a piece, and its place there. */
    private void runs(Own held, long first, Tensor elements, Scope views, BiConsumer<Tensor, Tensor> move) {
        long run = split.run() * width;
        long end = first + elements.count();
        long begin = held.first * width;
        long next;
        for (long from = first; from < end; from = next) {
            next = Math.min(end, (from / run + 1) * run);
            long local = split.local(from / width);
            if (local >= 0) {
                long place = local * width + from % width - begin; // among those that are held
                long skipped = Math.max(0, -place);
                long count = Math.min(next - from, held.count * width - place) - skipped;
                if (count > 0) {
                    move.accept(
                            views.view(held.vector, held.place * width + place + skipped, count),
                            views.view(elements, from + skipped - first, count));
                }
            }
        }
    }

    /** Rows of equally many elements: this rank's, those of a piece, and the number of this rank's for each of the piece's; -1: not its own. */
    private record Moved(Tensor own, Tensor index, Tensor piece) {}

    /** Bytes are not computed with, and are moved as 16-bit numbers; null where that cannot be, or a rank has all in one run. */
    private @Nullable Moved moved(Own held, long first, Tensor elements, Stream stream, Scope views) {
        DType type = spec.dtype() == DType.BYTE ? DType.BFLOAT16 : spec.dtype();
        long begin = first / width;
        long count = elements.count() / width;
        long run = held.repeat > 1 ? 1 : greatestDivisor(split.run(), begin, count, held.first, held.count, held.place);
        long bytes = run * width * spec.dtype().byteSize();
        if (split.ranks() == 1 || bytes % type.byteSize() != 0) {
            return null;
        }
        int rows = Math.toIntExact(count / run);
        int[] index = new int[rows];
        for (int row = 0; row < rows; row++) {
            long place = split.local(begin + row * run) - held.first;
            index[row] = place < 0 || place >= held.count ? -1 : Math.toIntExact(place / run / held.repeat);
        }
        Tensor places = views.tensor(DType.INT32, rows);
        places.set(stream, index);
        long columns = bytes / type.byteSize();
        long ownRows = Math.ceilDiv(held.count / run, (long) held.repeat);
        return new Moved(
                matrix(held.vector, type, held.place / run / held.repeat * columns, ownRows, columns, views),
                places,
                matrix(elements, type, 0, rows, columns, views));
    }

    private static Tensor matrix(Tensor tensor, DType type, long first, long rows, long columns, Scope views) {
        long count = tensor.byteSize() / type.byteSize();
        return views.view(views.reinterpret(tensor, type, 0, count), first, rows, columns);
    }

    private static long greatestDivisor(long... numbers) {
        long common = 0;
        for (long number : numbers) {
            long next = number;
            while (next != 0) {
                long rest = common % next;
                common = next;
                next = rest;
            }
        }
        return common;
    }
}
