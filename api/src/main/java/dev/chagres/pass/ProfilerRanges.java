package dev.chagres.pass;

import dev.chagres.internal.Checks;
import dev.chagres.ops.Range;
import java.util.IdentityHashMap;

/**
 * Names the calls of layers for profilers that listen to NVTX, such as Nsight Systems: {@code layers.3} forward, {@code
 * layers.3 backward} backward, nested as the calls are.
 *
 * <p>The name of a layer is made at its first call; later calls make no garbage.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@link Range}.
 */
public final class ProfilerRanges implements PassObserver, AutoCloseable {
    private record Names(Range forward, Range backward) {}

    private final IdentityHashMap<Layer, Names> names = new IdentityHashMap<>();
    /** The number of open ranges: calls that have not ended and whose beginning was observed. */
    private int open;

    private boolean closed;

    /** Makes an observer for {@link Pass#observe}. */
    public ProfilerRanges() {}

    /**
     * {@inheritDoc}
     *
     * @throws IllegalStateException when these ranges are closed
     */
    @Override
    public void entering(Layer layer, Direction direction, Pass pass) {
        if (closed) {
            throw new IllegalStateException("the profiler ranges are closed; call pass.forget(ranges) before close()");
        }
        Checks.given("direction", direction);
        Names both = names.get(Checks.given("layer", layer));
        if (both == null) {
            both = new Names(new Range(layer.name()), new Range(layer.name() + " backward"));
            names.put(layer, both);
        }
        switch (direction) {
            case FORWARD -> both.forward.push();
            case BACKWARD -> both.backward.push();
        }
        open++;
    }

    @Override
    public void left(Layer layer, Direction direction, Pass pass, long keptBytes) {
        pop();
    }

    @Override
    public void failed(Layer layer, Direction direction, Pass pass) {
        pop();
    }

    private void pop() {
        // No range is open if observing began inside a call.
        if (open > 0) {
            open--;
            Range.pop();
        }
    }

    /** Returns how many layers have ranges so far. */
    @Override
    public String toString() {
        return "ProfilerRanges(layers=" + names.size() + ")";
    }

    /** Frees the names. A second call does nothing. */
    @Override
    public void close() {
        closed = true;
        for (Names both : names.values()) {
            both.forward.close();
            both.backward.close();
        }
        names.clear();
    }
}
