package dev.chagres.trainer;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.bindings.Provider;

/**
 * For which longest sequences attention has a plan each, that is built when it is first used.
 *
 * <p>Threading: immutable.
 */
final class PlannedLengths {
    /** cuDNN's plans are made for a longest sequence rounded up to a multiple of this. */
    private static final int MULTIPLE = 128;

    private PlannedLengths() {}

    /** Returns the length of the longest sequences that share a plan with those of {@code longest} tokens. */
    static int roundUp(int longest) {
        return (longest + MULTIPLE - 1) / MULTIPLE * MULTIPLE;
    }

    /** Returns the lengths for each of which cuDNN builds a plan: of packed batches each multiple of 128 up to the context. */
    static int[] of(Device device, DType dtype, BatchShape shape) {
        boolean planned = device.provider() == Provider.CUDA && dtype != DType.FLOAT32;
        if (!planned || shape.layout() == BatchLayout.PADDED) {
            return new int[] {shape.context()};
        }
        int[] lengths = new int[(shape.context() + MULTIPLE - 1) / MULTIPLE];
        for (int i = 0; i < lengths.length; i++) {
            lengths[i] = Math.min(shape.context(), (i + 1) * MULTIPLE);
        }
        return lengths;
    }
}
