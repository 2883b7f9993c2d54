package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.Capture;
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

    /** Micro-batches that a graph may have. */
    private static final int WORDS = 64;

    private final Scope scope;
    private final Stream stream;
    private final Arena arena = Arena.ofShared();
    private final MemorySegment host = arena.allocate(ValueLayout.JAVA_LONG);
    /** One for the micro-batch under way, or for each of a graph: INT64 [1] each; made at the first draw. */
    private Tensor @Nullable [] words;

    /** The word of the micro-batch under way. */
    private @Nullable Tensor word;

    /** The graph under way, and its micro-batches so far. */
    private @Nullable Capture captured;

    private int begun;
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
        site = 0;
        Capture capture = Inside.capture(stream);
        if (capture == null) {
            seed(seed, step, microBatch + 1);
        } else {
            begin(capture);
        }
    }

    /** Each launch of the graph is a micro-batch of its own, whose word is written before. */
    private void begin(Capture capture) {
        if (captured != capture) {
            captured = capture;
            begun = 0;
        }
        if (begun == WORDS) {
            throw new IllegalStateException("begin: expected at most " + WORDS
                    + " micro-batches in a graph, got another;" + " capture fewer and launch the graph more often");
        }
        Tensor own = words == null ? null : words[begun];
        begun++;
        word = own;
        stale = false;
        capture.beforeLaunch(() -> {
            microBatch++;
            if (own != null) {
                write(own);
            }
        });
    }

    void seed(long newSeed, long newStep, long newMicroBatch) {
        if (Inside.capture(stream) != null) {
            throw new IllegalStateException(
                    "seed: a graph would draw by the same numbers at each launch; call it before"
                            + " Stream.capture: each begin then counts on");
        }
        word = words == null ? null : words[0];
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
            if (Inside.capture(stream) != null) {
                throw new IllegalStateException(
                        "draw: the pass has drawn no random numbers before the capture, so that it"
                                + " has no memory for them; run the same work once before Stream.capture");
            }
            Tensor all = scope.tensor(DType.INT64, WORDS);
            table = table();
            words = new Tensor[WORDS];
            for (int i = 0; i < WORDS; i++) {
                words[i] = scope.view(all, i, 1);
            }
            present = words[0];
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
