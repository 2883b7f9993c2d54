package dev.chagres.te;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.Zeros;
import dev.chagres.te.QkvLayout.Packing;

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

    /** Returns the bytes of the buffer of the key; 0 if that is the query's. */
    static long keyBytes(QkvLayout layout, Tensor key) {
        return layout.packing() == Packing.ALL
                ? 0
                : key.byteSize() * layout.packing().keyParts();
    }

    /** Returns the bytes of the buffer of the value; 0 if that is another's. */
    static long valueBytes(QkvLayout layout, Tensor value) {
        return layout.packing() == Packing.NONE ? value.byteSize() : 0;
    }

    /** Enqueues gradients of 0. */
    static void zeroGradients(QkvLayout layout, AttentionTensors tensors, Stream stream) {
        zero(tensors.queryGradient(), queryBytes(layout, tensors.queryGradient()), stream);
        zero(tensors.keyGradient(), keyBytes(layout, tensors.keyGradient()), stream);
        zero(tensors.valueGradient(), valueBytes(layout, tensors.valueGradient()), stream);
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
