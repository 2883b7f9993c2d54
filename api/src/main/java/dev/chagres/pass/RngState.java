package dev.chagres.pass;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.CaptureException;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.Capture;
import dev.chagres.internal.memory.StepWork;
import dev.chagres.parameter.CounterRandom;
import dev.chagres.te.FusedAttention;
import dev.chagres.te.HostToDevice;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import org.jspecify.annotations.Nullable;

/**
 * The random numbers of one pass. Seed, step and micro-batch form one word on the device; each draw has its own offset, by its number in
 * the pass, from a table on the device. So each replay of a graph draws by the word of its step.
 *
 * <p>Threading: the device's thread.
 */
final class RngState implements AutoCloseable {
    /** Draws that a pass may make; a layer with dropout makes three. */
    private static final int SITES = 1 << 14;

    /** Bits of an offset below the draw's number, so that draws do not overlap. */
    private static final int SITE_SHIFT = 40;

    /** Micro-batches that a graph may have. */
    private static final int WORDS = 64;

    private final Scope scope;
    private final Stream stream;
    private final Arena arena = Arena.ofShared();
    private final MemorySegment host = arena.allocate(ValueLayout.JAVA_LONG);
    /** The micro-batches of a graph; outside of captures there is one. */
    private final MicroBatch[] microBatches = new MicroBatch[WORDS];

    /** The current micro-batch. */
    private MicroBatch present;

    /** The graph that is captured, and its micro-batches so far. */
    private @Nullable Capture captured;

    private int begun;
    private @Nullable Tensor offsets;
    /** The offset of the current draw. */
    private @Nullable Tensor drawn;

    private long seed;
    private long step;
    private long microBatch = -1;
    private long site;
    private boolean closed;

    RngState(Stream stream) {
        this.stream = stream;
        scope = stream.device().openScope(stream);
        for (int i = 0; i < WORDS; i++) {
            microBatches[i] = new MicroBatch(i);
        }
        present = microBatches[0];
    }

    /** A micro-batch and the word on the device by which it draws. */
    private final class MicroBatch implements StepWork {
        /** Micro-batches before this one in the same graph. */
        private final int index;
        /** INT64 [1]; made at the first draw. */
        private @Nullable Tensor word;

        MicroBatch(int index) {
            this.index = index;
        }

        @Override
        public void check() {
            if (closed) {
                throw new IllegalStateException(
                        "launch: the pass was closed since the capture; launch the graph before Pass.close(), or capture"
                                + " again with another pass");
            }
        }

        @Override
        public long byteSize() {
            return word == null ? 0 : Long.BYTES;
        }

        @Override
        public long address() {
            return Checks.given("word", word).address();
        }

        @Override
        public MemorySegment numbers() {
            return word(microBatch + 1 + index);
        }

        @Override
        public void count() {
            microBatch++;
        }
    }

    /** Begins the next micro-batch; each launch of a graph begins its own anew. */
    void begin() {
        site = 0;
        Capture capture = Inside.capture(stream);
        if (capture == null) {
            present = microBatches[0];
        } else {
            if (captured != capture) {
                captured = capture;
                begun = 0;
            }
            if (begun == WORDS) {
                throw new CaptureException("begin: expected at most " + WORDS
                        + " micro-batches in a graph, got another; capture fewer and launch the graph more often");
            }
            present = microBatches[begun++];
        }
        Inside.eachStep(stream, present);
    }

    void seed(long newSeed, long newStep, long newMicroBatch) {
        if (Inside.capture(stream) != null) {
            throw new CaptureException("seed: a graph would draw the same numbers at each launch; call it before"
                    + " Stream.capture: each begin then advances the offset");
        }
        present = microBatches[0];
        seed = newSeed;
        step = newStep;
        microBatch = newMicroBatch;
        if (present.word != null) {
            writeWord(present.word);
        }
    }

    /** Enqueues the word of the current micro-batch. */
    private void writeWord(Tensor target) {
        HostToDevice.copyHostToDeviceViaKernel(word(microBatch), target, stream);
    }

    /** Returns the word of a micro-batch. */
    private MemorySegment word(long number) {
        host.set(ValueLayout.JAVA_LONG, 0, CounterRandom.bits(CounterRandom.bits(seed, step), number));
        return host;
    }

    /** Checks that {@code pass}, whose draws these are, was not closed. */
    void ensureOpen(Pass pass) {
        if (closed) {
            throw new IllegalStateException("the " + pass + " is closed; make another with Pass."
                    + (pass.isTraining() ? "training" : "evaluation") + "(stream)");
        }
    }

    long site() {
        return site;
    }

    void restoreSite(long before) {
        site = before;
    }

    /** Returns seed and offset of the next draw, INT64 [2], in {@code target}, with the counter advanced by {@code skipped}. */
    Tensor next(Scope target, int skipped) {
        begin(target);
        Tensor state = target.tensor(DType.INT64, 2);
        write(state, skipped);
        return state;
    }

    /**
     * Begins the next draw, of which {@link #write} writes several states.
     *
     * @param target hands out views
     */
    void begin(Scope target) {
        if (offsets == null) {
            offsets = take();
        }
        if (site == SITES) {
            throw new IllegalStateException("the pass has made " + SITES + " draws, the most that one may make");
        }
        drawn = target.view(offsets, site, 1);
        site++;
    }

    /** Enqueues into {@code state} the seed and offset of the draw that was begun last, with the counter advanced by {@code skipped}. */
    void write(Tensor state, int skipped) {
        FusedAttention.extractSeedAndOffset(
                state, Checks.given("word", present.word), Checks.given("drawn", drawn), skipped, stream);
    }

    /** Allocates words and offsets, and returns the offsets. */
    private Tensor take() {
        if (Inside.capture(stream) != null) {
            throw new CaptureException("draw: the pass drew no random numbers before the capture, so it has no memory"
                    + " for their state; run the same work once before Stream.capture");
        }
        Tensor table = table();
        Tensor words = scope.tensor(DType.INT64, WORDS);
        for (int i = 0; i < WORDS; i++) {
            microBatches[i].word = scope.view(words, i, 1);
        }
        writeWord(Checks.given("word", present.word));
        return table;
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

    @Override
    public void close() {
        if (!closed) {
            closed = true;
            scope.close();
            arena.close();
        }
    }
}
