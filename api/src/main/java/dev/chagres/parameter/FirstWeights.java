package dev.chagres.parameter;

import dev.chagres.DType;
import dev.chagres.HostBuffer;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Inside;
import dev.chagres.parallel.ParameterSplit;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.stream.LongStream;

/**
 * Draws the initial weights on the host, in parallel, and copies them to the device piece by piece.
 *
 * <p>Threading: the device's thread; the drawing uses the common pool.
 */
final class FirstWeights implements AutoCloseable {
    private static final long PIECE = 1L << 22;
    private static final long TASK = 1L << 14;

    private final Scope scope;
    private final HostBuffer host;

    FirstWeights(Scope scope) {
        this.scope = scope;
        host = HostBuffer.pageable(scope.device(), PIECE * Float.BYTES);
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
            long end = Math.min(count, (task + 1) * TASK);
            for (long i = task * TASK; i < end; i++) {
                float value = initializer.value(key, split == null ? begin + i : split.element(begin + i));
                switch (dtype) {
                    case FLOAT32 -> target.setAtIndex(ValueLayout.JAVA_FLOAT, i, value);
                    case BFLOAT16 -> target.setAtIndex(ValueLayout.JAVA_SHORT, i, DType.toBfloat16(value));
                    default -> target.setAtIndex(ValueLayout.JAVA_SHORT, i, Float.floatToFloat16(value));
                }
            }
        });
    }

    @Override
    public void close() {
        host.close();
    }
}
