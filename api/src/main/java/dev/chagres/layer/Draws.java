package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.model.CounterRandom;
import dev.chagres.te.FusedAttention;
import dev.chagres.te.HostToDevice;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import org.jspecify.annotations.Nullable;

/**
 * The random numbers of one pass. Seed, step and micro-batch make one word, which lies on the device; each draw has an offset of
 * its own, by its number in the pass, from a table that lies there, too. A replayed graph so draws by the word of its step.
 *
 * <p>Threading: the device's thread.
 */
final class Draws implements AutoCloseable {
    /** Draws that a pass may make; a layer with dropout makes three. */
    private static final int SITES = 1 << 14;

    /** Bits of an offset below the draw's number: no draw reaches into the next one's. */
    private static final int SITE_SHIFT = 40;

    private final Scope scope;
    private final Stream stream;
    private final Arena arena = Arena.ofShared();
    private final MemorySegment host = arena.allocate(ValueLayout.JAVA_LONG);
    private @Nullable Tensor word;
    private @Nullable Tensor offsets;
    private long seed;
    private long step;
    private long microBatch = -1;
    private boolean stale = true;
    private long site;
    private boolean closed;

    Draws(Stream stream) {
        this.stream = stream;
        scope = stream.device().openScope(stream);
    }

    /** Begins the next micro-batch. */
    void begin() {
        seed(seed, step, microBatch + 1);
        site = 0;
    }

    void seed(long newSeed, long newStep, long newMicroBatch) {
        seed = newSeed;
        step = newStep;
        microBatch = newMicroBatch;
        stale = true;
        if (word != null) {
            write(word);
        }
    }

    long site() {
        return site;
    }

    void restoreSite(long before) {
        site = before;
    }

    /** Returns seed and offset of the next draw, INT64 [2], in {@code target}. */
    Tensor next(Scope target) {
        Tensor present = word;
        Tensor table = offsets;
        if (present == null || table == null) {
            present = scope.tensor(DType.INT64, 1);
            table = table();
            word = present;
            offsets = table;
        }
        if (stale) {
            write(present);
        }
        if (site == SITES) {
            throw new IllegalStateException("the pass has made " + SITES + " draws, the most that one may make");
        }
        Tensor state = target.tensor(DType.INT64, 2);
        FusedAttention.extractSeedAndOffset(state, present, target.view(table, site, 1), 0, stream);
        site++;
        return state;
    }

    private Tensor table() {
        long[] values = new long[SITES];
        for (int i = 0; i < SITES; i++) {
            values[i] = (long) i << SITE_SHIFT;
        }
        Tensor table = scope.tensor(DType.INT64, SITES);
        table.set(stream, values);
        return table;
    }

    private void write(Tensor target) {
        host.set(ValueLayout.JAVA_LONG, 0, CounterRandom.bits(CounterRandom.bits(seed, step), microBatch));
        HostToDevice.copyHostToDeviceViaKernel(host, target, stream);
        stale = false;
    }

    @Override
    public void close() {
        if (!closed) {
            closed = true;
            scope.close();
            arena.close();
        }
    }
}
