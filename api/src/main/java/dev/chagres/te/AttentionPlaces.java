package dev.chagres.te;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.Zeros;
import dev.chagres.te.AttentionTensors.AttentionMemory;

/**
 * Checks where query, key and value lie in a shared buffer: kernels take the stride between tokens from the layout, so each tensor must lie
 * where the layout says, and the buffer must hold all of them.
 *
 * <p>Threading: the device's thread.
 */
final class AttentionPlaces {
    private AttentionPlaces() {}

    /** Checks the places of three tensors, or of their gradients. */
    static void check(
            QkvLayout layout,
            String queryArgument,
            Tensor query,
            String keyArgument,
            Tensor key,
            String valueArgument,
            Tensor value) {
        Checks.aligned(queryArgument, query);
        Checks.aligned(keyArgument, key);
        Checks.aligned(valueArgument, value);
        switch (layout.packing()) {
            case NONE -> {
                // Separate buffers may lie anywhere.
            }
            case KEY_VALUE -> {
                beside(layout, keyArgument, key, valueArgument, value);
                within(layout, keyArgument, key, 2);
            }
            case ALL -> {
                beside(layout, queryArgument, query, keyArgument, key);
                beside(layout, keyArgument, key, valueArgument, value);
                within(layout, queryArgument, query, 3);
            }
        }
    }

    /** Returns the bytes of the buffer of the query. */
    static long queryBytes(QkvLayout layout, Tensor query) {
        return query.byteSize() * layout.packing().queryParts();
    }

    /** Records that a call reads key and value, unless they lie in the query's buffer. */
    static void readKeyAndValue(
            QkvLayout layout,
            AttentionMemory memory,
            String keyArgument,
            Tensor key,
            String valueArgument,
            Tensor value) {
        switch (layout.packing()) {
            case NONE -> {
                memory.read(keyArgument, key, key.byteSize());
                memory.read(valueArgument, value, value.byteSize());
            }
            case KEY_VALUE -> memory.read(keyArgument, key, 2 * key.byteSize());
            case ALL -> {
                // Recorded with the query.
            }
        }
    }

    /** Records that a call writes key and value, unless they lie in the query's buffer. */
    static void writeKeyAndValue(
            QkvLayout layout,
            AttentionMemory memory,
            String keyArgument,
            Tensor key,
            String valueArgument,
            Tensor value) {
        switch (layout.packing()) {
            case NONE -> {
                memory.written(keyArgument, key, key.byteSize());
                memory.written(valueArgument, value, value.byteSize());
            }
            case KEY_VALUE -> memory.written(keyArgument, key, 2 * key.byteSize());
            case ALL -> {
                // Recorded with the query.
            }
        }
    }

    /** Enqueues gradients of 0. */
    static void zeroGradients(QkvLayout layout, AttentionTensors tensors, Stream stream) {
        zero(tensors.queryGradient(), queryBytes(layout, tensors.queryGradient()), stream);
        switch (layout.packing()) {
            case NONE -> {
                zero(tensors.keyGradient(), tensors.keyGradient().byteSize(), stream);
                zero(tensors.valueGradient(), tensors.valueGradient().byteSize(), stream);
            }
            case KEY_VALUE ->
                zero(tensors.keyGradient(), 2 * tensors.keyGradient().byteSize(), stream);
            case ALL -> {
                // Zeroed with the query's.
            }
        }
    }

    private static void zero(Tensor first, long byteSize, Stream stream) {
        if (byteSize > 0) {
            Zeros.enqueue(Inside.state(first), first.address(), byteSize, stream.handle());
        }
    }

    /** Checks that {@code second} begins behind the heads of the first token of {@code first}. */
    private static void beside(
            QkvLayout layout, String firstArgument, Tensor first, String secondArgument, Tensor second) {
        int rank = first.rank();
        long elements = first.size(rank - 2) * first.size(rank - 1);
        long expected = first.address() + elements * first.dtype().byteSize();
        if (first.count() != 0 && second.address() != expected) {
            throw new IllegalArgumentException(secondArgument + ": expected a view that begins " + elements
                    + " elements behind " + firstArgument + ", for " + layout + " is one buffer, got one that begins "
                    + (second.address() - first.address()) + " bytes behind it");
        }
    }

    /** Checks that {@code first} is a view of a tensor that holds {@code parts} times as many elements. */
    private static void within(QkvLayout layout, String argument, Tensor first, int parts) {
        Tensor root = Inside.root(first);
        long end = root.address() + root.byteSize();
        if (first.address() + parts * first.byteSize() > end) {
            throw new IllegalArgumentException(argument + ": expected a view of a buffer that holds "
                    + parts * first.count()
                    + " elements from there on, as " + layout + " has them, got " + Checks.describe(first) + " of "
                    + Checks.describe(root));
        }
    }
}
