package dev.chagres.parameter;

import dev.chagres.DType;
import dev.chagres.HostBuffer;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Inside;
import dev.chagres.parallel.ParameterSplit;
import dev.chagres.parameter.ParameterLayout.Stretch;
import dev.chagres.parameter.ParameterRange.Decay;
import dev.chagres.parameter.ParameterShard.Part;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.LongStream;
import org.jspecify.annotations.Nullable;

/**
 * One rank's shards of all pieces, as optimizers see them.
 *
 * <p>Threading: immutable.
 */
final class ShardRanges {
    private ShardRanges() {}

    /** Returns the stretches of one rank's parts, in the order of the parts of gradients. */
    static List<Stretch> of(List<FlatGroup> groups, ParameterShard shard) {
        List<Stretch> all = new ArrayList<>();
        for (FlatGroup group : groups) {
            for (FlatParameter piece : group.pieces()) {
                if (piece.isTrained()) {
                    long part = shard.updated().of(piece.count());
                    long begin = shard.updated().begin(piece.count());
                    long border = Math.clamp(piece.decayed(), begin, begin + part);
                    add(all, piece, shard, begin, border, Decay.DECAYED);
                    add(all, piece, shard, border, begin + part, Decay.KEPT);
                }
            }
        }
        return all;
    }

    private static void add(
            List<Stretch> all, FlatParameter piece, ParameterShard shard, long first, long end, Decay decay) {
        if (end == first) {
            return;
        }
        Part weights = shard.weights();
        Part updated = shard.updated();
        long weight = weights == null
                ? piece.weightOffset() + first
                : weights.of(piece.weightOffset()) + first - weights.begin(piece.count());
        long gradient = updated.of(piece.gradientOffset()) + first - updated.begin(piece.count());
        new Stretch(piece.dtype(), weight, gradient, DType.FLOAT32, gradient, end - first, decay).addTo(all);
    }

    /** Returns the elements of a trained parameter in {@code part} of a group's {@code gradients}, or null. */
    static @Nullable Tensor gradient(Parameter parameter, FlatGroup group, Part part, Tensor gradients, Scope scope) {
        for (FlatParameter piece : group.pieces()) {
            if (piece.isTrained() && piece.holds(parameter)) {
                long begin = part.begin(piece.count());
                long first = Math.max(begin, piece.offset(parameter));
                long end = Math.min(
                        begin + part.of(piece.count()),
                        piece.offset(parameter) + parameter.shape().count());
                return first < end
                        ? scope.view(gradients, part.of(piece.gradientOffset()) + first - begin, end - first)
                        : null;
            }
        }
        return null;
    }

    /** Writes the initial values of {@code parameter} in a shard of the weights. */
    static void write(
            Parameter parameter, FlatParameter piece, Part part, Tensor vector, FirstWeights weights, long seed) {
        long begin = part.begin(piece.count());
        long offset = piece.offset(parameter);
        long first = Math.max(begin - offset, 0);
        long end = Math.min(
                begin + part.of(piece.count()) - offset, parameter.shape().count());
        if (first < end) {
            long target = part.of(piece.weightOffset()) + offset + first - begin;
            weights.write(parameter, seed, vector, target, first, end);
        }
    }

    /** Draws the initial weights on the host, in parallel, and copies them to the device piece by piece. */
    static final class FirstWeights implements AutoCloseable {
        private static final long PIECE = 1L << 22;
        private static final long TASK = 1L << 14;

        private final Scope scope;
        /** As large as the largest piece so far: most models are small beside {@link #PIECE}, and fresh memory is zeroed. */
        private HostBuffer host;

        FirstWeights(Scope scope) {
            this.scope = scope;
            host = HostBuffer.pageable(scope.device(), 0);
        }

        /** Writes the initial weights of {@code parameter}, whose memory is zeroed. */
        void write(Parameter parameter, long seed) {
            write(parameter, seed, parameter.weight());
        }

        /** Writes the initial weights of {@code parameter} into {@code target}, which has as many elements, all 0. */
        void write(Parameter parameter, long seed, Tensor target) {
            write(parameter, seed, target, 0, 0, parameter.shape().count());
        }

        /** Writes elements {@code first} to before {@code end} of {@code parameter} into {@code target} from {@code offset} on. */
        void write(Parameter parameter, long seed, Tensor target, long offset, long first, long end) {
            if (parameter.initializer() instanceof Initializer.Zeros
                    || Inside.state(scope.device()).isCounting()) {
                return;
            }
            long key = CounterRandom.key(seed, parameter.name());
            for (long begin = first; begin < end; begin += PIECE) {
                long count = Math.min(PIECE, end - begin);
                if (host.segment().byteSize() < count * Float.BYTES) {
                    host.close();
                    host = HostBuffer.pageable(scope.device(), count * Float.BYTES);
                }
                draw(parameter, key, target.dtype(), begin, count);
                try (Scope piece = scope.open()) {
                    piece.view(target, offset + begin - first, count).copyFrom(scope.stream(), host);
                }
                scope.stream().synchronize();
            }
        }

        private void draw(Parameter parameter, long key, DType dtype, long begin, long count) {
            MemorySegment target = host.segment();
            Initializer initializer = parameter.initializer();
            ParameterSplit split = parameter.split();
            LongStream.range(0, (count + TASK - 1) / TASK).parallel().forEach(task -> {
                long from = task * TASK;
                int drawn = (int) Math.min(TASK, count - from);
                float[] values = new float[drawn];
                CounterRandom.Normals normals = initializer instanceof Initializer.Normal(float standardDeviation)
                        ? new CounterRandom.Normals(standardDeviation, key)
                        : null;
                for (int i = 0; i < drawn; i++) {
                    long own = begin + from + i;
                    long element = split == null ? own : split.element(own);
                    values[i] = normals == null ? initializer.value(key, element) : normals.value(element);
                }
                dtype.fromFloats(values, 0, target, from, drawn);
            });
        }

        @Override
        public void close() {
            host.close();
        }
    }
}
