package dev.chagres.checkpoint;

import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.io.TensorSpec;
import dev.chagres.nccl.Communicator;
import dev.chagres.parameter.ParameterShard.Part;
import dev.chagres.parameter.State;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * A tensor of the state of a whole model, and which of its elements each rank holds. It is a range of a piece of a group, of which rank r
 * holds {@code parts[r]}.
 *
 * <p>Threading: the device's thread.
 *
 * @param spec name, type and shape of the whole tensor
 * @param may the values that elements may have
 * @param vector this rank's parts of all pieces, one after another; null where it holds none
 * @param pieceOffset first element of the piece where all parts lie together
 * @param pieceCount elements of the piece, a multiple of the number of parts
 * @param offset first element of the tensor in the piece
 * @param parts the part of each rank; null where a rank holds nothing
 */
record StateShard(
        TensorSpec spec,
        State.Values may,
        @Nullable Tensor vector,
        long pieceOffset,
        long pieceCount,
        long offset,
        List<? extends @Nullable Part> parts)
        implements StateTensor {
    /** Returns a tensor of which each rank has all; who lists it checks its values. */
    static StateShard whole(String name, Tensor tensor, int ranks) {
        TensorSpec spec = new TensorSpec(name, tensor.dtype(), tensor.shape());
        return new StateShard(
                spec, State.Values.ANY, tensor, 0, tensor.count(), 0, Collections.nCopies(ranks, new Part(0, 1)));
    }

    /** Of elements {@code first} to before {@code first + count} of the tensor, the first that {@code rank} holds. */
    private long begin(int rank, long first) {
        return Math.max(first, part(rank).begin(pieceCount) - offset);
    }

    private Part part(int rank) {
        return Checks.given("part", parts.get(rank));
    }

    private long held(int rank, long first, long count) {
        Part part = parts.get(rank);
        if (part == null) {
            return 0;
        }
        long end = Math.min(first + count, part.begin(pieceCount) + part.of(pieceCount) - offset);
        return end - begin(rank, first);
    }

    /** Of several ranks that hold the same elements, the first one sends them. */
    private boolean gives(int rank, long first, long count) {
        return held(rank, first, count) > 0 && parts.indexOf(parts.get(rank)) == rank;
    }

    /** Returns what this rank, {@code rank}, holds of those elements. */
    private Tensor own(int rank, long first, long count, Scope views) {
        Part part = part(rank);
        long place = part.of(pieceOffset) + begin(rank, first) + offset - part.begin(pieceCount);
        return views.view(Checks.given("vector", vector), place, held(rank, first, count));
    }

    /** Returns the place in {@code elements}, which begin with {@code first}, of what {@code rank} holds of them. */
    private Tensor place(Tensor elements, int rank, long first, Scope views) {
        return views.view(elements, begin(rank, first) - first, held(rank, first, elements.count()));
    }

    @Override
    public List<Stretch> held(int rank) {
        return stretches(rank, 0, 1);
    }

    @Override
    public List<Stretch> written(int rank) {
        Part part = parts.get(rank);
        if (part == null) {
            return List.of();
        }
        int[] holders = IntStream.range(0, parts.size())
                .filter(other -> part.equals(parts.get(other)))
                .toArray();
        return stretches(rank, Arrays.binarySearch(holders, rank), holders.length);
    }

    /** Returns one of so many equal parts of what a rank holds. */
    private List<Stretch> stretches(int rank, int share, int shares) {
        long all = spec.shape().count();
        long held = held(rank, 0, all);
        if (held <= 0) {
            return List.of();
        }
        long begin = held * share / shares;
        long count = held * (share + 1) / shares - begin;
        if (count == 0) {
            return List.of();
        }
        Part part = part(rank);
        long first = begin(rank, 0) + begin;
        long place = part.of(pieceOffset) + first + offset - part.begin(pieceCount);
        int size = spec.dtype().byteSize();
        return List.of(new Stretch(first * size, Checks.given("vector", vector), place * size, count * size));
    }

    @Override
    public void gather(long first, Tensor elements, Communicator all, Stream stream, Scope views) {
        long count = elements.count();
        if (all.rank() != ROOT) {
            if (gives(all.rank(), first, count)) {
                all.send(own(all.rank(), first, count, views), ROOT, stream);
            }
            return;
        }
        if (gives(ROOT, first, count)) {
            place(elements, ROOT, first, views).copyFrom(stream, own(ROOT, first, count, views));
        }
        int[] givers = IntStream.range(ROOT + 1, all.ranks())
                .filter(rank -> gives(rank, first, count))
                .toArray();
        if (givers.length > 0) {
            Communicator.group(() -> {
                for (int rank : givers) {
                    all.receive(place(elements, rank, first, views), rank, stream);
                }
            });
        }
    }

    @Override
    public void scatter(long first, Tensor elements, Communicator all, Stream stream, Scope views) {
        all.broadcast(elements, elements, ROOT, stream);
        long count = elements.count();
        if (held(all.rank(), first, count) > 0) {
            own(all.rank(), first, count, views).copyFrom(stream, place(elements, all.rank(), first, views));
        }
    }
}
