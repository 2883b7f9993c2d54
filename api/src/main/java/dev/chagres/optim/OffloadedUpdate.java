package dev.chagres.optim;

import dev.chagres.Device;
import dev.chagres.Event;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.CaptureException;
import dev.chagres.internal.Inside;
import dev.chagres.internal.Opened;
import dev.chagres.internal.memory.PinnedMemory;
import dev.chagres.ops.Adam;
import dev.chagres.ops.AdamRange;
import dev.chagres.ops.AdamRanges;
import dev.chagres.ops.StepRanges;
import dev.chagres.parameter.Parameters;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Updates of {@link AdamW} whose vectors lie in the host's memory: chunk by chunk they are copied to the device, updated, and copied back, each on a
 * stream of its own. Behind a step its stream waits for the last copy back, so that whoever reads the vectors later reads whole ones; the first chunks
 * of the next step are copied to the device from then on.
 *
 * <p>Threading: the device's thread.
 */
final class OffloadedUpdate implements AutoCloseable {
    private static final int SLOTS = 2;

    /** Elements that follow each other in the gradients, and the ranges of each type of weights among them. */
    private record Chunk(long first, long count, List<AdamRanges> tables) {}

    /** A vector in the host's memory, and how many of its elements belong to one of the gradients. */
    private record Stored(Tensor elements, int width) {}

    /** Memory of the device for a chunk. */
    private static final class Slot {
        /** In the order of the vectors. */
        private final List<Tensor> parts = new ArrayList<>();

        private final Event filled;
        private final Event updated;
        private final Event emptied;
        /** The chunk that was copied to it ahead; -1 for none. */
        private int ahead = -1;

        private Slot(Device device, Opened opened) {
            filled = opened.add(device.openEvent());
            updated = opened.add(device.openEvent());
            emptied = opened.add(device.openEvent());
        }
    }

    private final Adam adam;
    private final OptimizerState state;
    private final Parameters parameters;
    private final Stream stream;
    private final Stream up;
    private final Stream down;
    /** What was enqueued on the step's stream before its first copy. */
    private final Event begun;

    private final List<Stored> vectors = new ArrayList<>();
    private final List<Slot> slots = new ArrayList<>();
    private final List<Chunk> chunks = new ArrayList<>();
    /** Of each chunk, the tables of an average of weights; none without it. */
    private final List<List<StepRanges>> averages = new ArrayList<>();

    private @Nullable WeightAverage average;
    private final int ranges;
    /** Changes of weights and vectors by others, when chunks were copied ahead. */
    private long changesThen = -1;

    private boolean closed;

    OffloadedUpdate(OffloadedConfig config, Parameters parameters, List<UpdateRange> ranges, OptimizerState state) {
        adam = config.updates().adam();
        this.state = state;
        this.parameters = parameters;
        this.ranges = ranges.size();
        stream = state.scope.stream();
        Device device = stream.device();
        try (Opened opened = new Opened()) {
            up = opened.add(device.openStream());
            down = opened.add(device.openStream());
            begun = opened.add(device.openEvent());
            long count = parameters.gradientCount();
            for (StateVector vector : state.vectors()) {
                if (vector.elements().count() >= count * vector.width()) { // masters of FLOAT32 weights are none
                    vectors.add(new Stored(vector.elements(), vector.width()));
                }
            }
            long size = Math.min(config.chunk(), Math.max(1, count));
            int needed = Math.clamp(Math.ceilDiv(count, size), 1, SLOTS);
            for (int i = 0; i < needed; i++) {
                Slot slot = new Slot(device, opened);
                for (Stored vector : vectors) {
                    slot.parts.add(state.scope.tensor(vector.elements().dtype(), size * vector.width()));
                }
                slots.add(slot);
            }
            for (long first = 0; first < count; first += size) {
                chunks.add(chunk(first, Math.min(size, count - first), ranges));
            }
            opened.keep();
        }
    }

    private boolean hasMasters() {
        return vectors.size() == 3;
    }

    private static List<UpdateRange> inside(List<UpdateRange> all, long first, long count) {
        return all.stream()
                .map(range -> range.within(first, first + count))
                .filter(range -> range.count() > 0)
                .toList();
    }

    /** Returns the masters of a range of a chunk on the device; null for FLOAT32 weights. */
    private @Nullable Tensor masters(Slot slot, long first, UpdateRange range) {
        if (!hasMasters() || range.isFloat32()) {
            return null;
        }
        int width = vectors.getFirst().width();
        long place = width * (range.gradientOffset() - first);
        return state.scope.view(slot.parts.getFirst(), place, width * range.count());
    }

    /** From now on the masters of each chunk also update an average, while they are on the device. */
    void follow(WeightAverage made) {
        for (int i = 0; i < chunks.size(); i++) {
            Chunk chunk = chunks.get(i);
            Slot slot = slots.get(i % slots.size());
            averages.add(made.tables(
                    inside(state.ranges, chunk.first, chunk.count), range -> masters(slot, chunk.first, range)));
        }
        average = made;
    }

    private Chunk chunk(long first, long count, List<UpdateRange> all) {
        Slot slot = slots.get(chunks.size() % slots.size());
        int moments = hasMasters() ? 1 : 0;
        Scope scope = state.scope;
        return new Chunk(
                first,
                count,
                UpdateRange.tables(
                        inside(all, first, count),
                        range -> {
                            long place = range.gradientOffset() - first;
                            return new AdamRange(
                                    state.gradients(range),
                                    range.weights(scope),
                                    scope.view(slot.parts.get(moments), place, range.count()),
                                    scope.view(slot.parts.get(moments + 1), place, range.count()),
                                    masters(slot, first, range),
                                    state.numbers.rate(range.group()),
                                    range.weightDecay());
                        },
                        alike -> AdamRanges.of(alike, scope)));
    }

    /** Enqueues the step. */
    void run(Tensor gradientScale, Tensor skip) {
        if (Inside.capture(stream) != null) {
            throw new CaptureException(
                    "step: expected a step that is not captured, since moments and masters are copied from"
                            + " the host's memory beside it; keep them on the device, or enqueue steps one by one");
        }
        if (changesThen != changes()) {
            slots.forEach(slot -> slot.ahead = -1);
        }
        begun.record(stream);
        up.await(begun);
        for (int i = 0; i < chunks.size(); i++) {
            Slot slot = slots.get(i % slots.size());
            if (slot.ahead != i) {
                fill(i);
            }
            stream.await(slot.filled);
            List<AdamRanges> tables = chunks.get(i).tables();
            for (int table = 0; table < tables.size(); table++) {
                adam.step(tables.get(table), state.numbers.step, gradientScale, skip, stream);
            }
            if (average != null) {
                average.update(averages.get(i), skip);
            }
            slot.updated.record(stream);
            empty(i);
            if (i + slots.size() < chunks.size()) {
                fill(i + slots.size());
            }
        }
        for (int i = 0; i < slots.size(); i++) {
            stream.await(slots.get(i).emptied);
        }
        copyAhead();
    }

    /** The next step's first chunks, while passes run. */
    private void copyAhead() {
        begun.record(stream);
        up.await(begun); // of all copies back
        for (int i = 0; i < Math.min(slots.size(), chunks.size()); i++) {
            fill(i);
        }
        changesThen = changes();
    }

    private void fill(int number) {
        Chunk chunk = chunks.get(number);
        Slot slot = slots.get(number % slots.size());
        up.await(slot.emptied);
        for (int i = 0; i < vectors.size(); i++) {
            Stored vector = vectors.get(i);
            long width = (long) vector.width() * vector.elements().dtype().byteSize();
            PinnedMemory.toDevice(
                    slot.parts.get(i).address(),
                    vector.elements().address() + width * chunk.first(),
                    width * chunk.count(),
                    up.handle());
        }
        slot.filled.record(up);
        slot.ahead = number;
    }

    private void empty(int number) {
        Chunk chunk = chunks.get(number);
        Slot slot = slots.get(number % slots.size());
        down.await(slot.updated);
        for (int i = 0; i < vectors.size(); i++) {
            Stored vector = vectors.get(i);
            long width = (long) vector.width() * vector.elements().dtype().byteSize();
            PinnedMemory.toHost(
                    vector.elements().address() + width * chunk.first(),
                    slot.parts.get(i).address(),
                    width * chunk.count(),
                    down.handle());
        }
        slot.emptied.record(down);
        slot.ahead = -1;
    }

    /** Counts what others have written: weights, of which masters are taken anew, and vectors that were loaded. */
    private long changes() {
        long changes = parameters.version();
        for (int i = 0; i < vectors.size(); i++) {
            changes += (long) Inside.writes(vectors.get(i).elements()) << Integer.SIZE;
        }
        return changes;
    }

    /** Says which kernels run, and where the vectors lie. */
    String explain() {
        return "ops_adam_ranges, " + StepUpdate.counted(ranges, "range") + " in "
                + StepUpdate.counted(chunks.size(), "chunk") + ": moments and masters lie in the host's memory, and are"
                + " copied to the device and back on two streams beside the updates";
    }

    /** Waits for the copies. A second call does nothing. */
    @Override
    public void close() {
        if (closed) {
            return;
        }
        closed = true;
        if (!Inside.state(stream).isClosed()) {
            up.synchronize();
            down.synchronize();
        }
        for (Slot slot : slots) {
            slot.filled.close();
            slot.updated.close();
            slot.emptied.close();
        }
        begun.close();
        up.close();
        down.close();
    }
}
