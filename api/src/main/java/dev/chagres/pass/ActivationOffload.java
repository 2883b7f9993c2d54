package dev.chagres.pass;

import dev.chagres.internal.Numbers;

/**
 * Of how many layers the inputs lie in page-locked memory of the host between forward and backward: {@code [T, columns]} of each layer less on
 * the device.
 *
 * <p>In each {@link Sequential} of a pass that saves, the output of a layer is copied to the host while the next layer runs. Its memory is one of
 * three buffers, which the layers use in turn. Backward copies it back while the layer behind its own runs. So the inputs of the last three layers
 * stay where they are, and the first one is the caller's. What else a layer saves stays on the device: {@link Recomputed} layers save nothing else,
 * so their memory does not depend on how many there are. Losses and gradients have the bits that they have without this.
 *
 * <p>The copies are enqueued beside the layers, on two streams of the pass, and cannot be captured in graphs. A {@code Sequential} inside a
 * recomputed layer copies nothing.
 *
 * {@snippet file="dev/chagres/pass/ActivationOffloadTest.java" region="offload"}
 *
 * <p>Threading: immutable.
 *
 * <p>Source: TE's {@code get_cpu_offload_context}.
 *
 * @param layers of each {@link Sequential}, from its first one on; 0 for none
 */
public record ActivationOffload(int layers) {
    private static final ActivationOffload NONE = new ActivationOffload(0);
    private static final ActivationOffload ALL = new ActivationOffload(Integer.MAX_VALUE);

    /**
     * Checks the number.
     *
     * @throws IllegalArgumentException when it is negative
     */
    public ActivationOffload {
        Numbers.atLeastZero("layers", layers);
    }

    /** Returns that of no layer: all inputs stay on the device. */
    public static ActivationOffload none() {
        return NONE;
    }

    /** Returns that of every layer. */
    public static ActivationOffload all() {
        return ALL;
    }

    /** Returns whether there is none. */
    public boolean isNone() {
        return layers == 0;
    }

    /**
     * Returns how many inputs are copied of so many layers one after another: of those that are offloaded, all but the first and the last three.
     *
     * @throws IllegalArgumentException when {@code of} is negative
     */
    public int copied(int of) {
        Numbers.atLeastZero("of", of);
        return Math.max(0, Math.min(layers, of) - 1 - OffloadedInputs.BUFFERS);
    }

    /** Returns {@code none}, {@code all}, or the number of layers. */
    @Override
    public String toString() {
        return layers == 0 ? "none" : layers == Integer.MAX_VALUE ? "all" : Integer.toString(layers);
    }
}
