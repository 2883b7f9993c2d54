package dev.chagres.train;

import dev.chagres.DType;
import dev.chagres.Graph;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.CaptureException;
import dev.chagres.bindings.NativeException;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.layer.Pass;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Training steps that are captured once and then replayed: the host enqueues one graph instead of hundreds of kernels.
 *
 * <p>Each batch is padded to a bucket: tokens, sequences and longest length rounded up, with sequences of padding without labels
 * behind the others. It is copied to fixed addresses, from which a graph of its bucket reads it. The first step of a bucket is
 * enqueued one by one, which builds kernels and takes memory; the second is captured; from then on it is replayed. A replayed
 * step computes what the same step would enqueued one by one, bit for bit where the kernels are deterministic. Where a step cannot
 * be captured it is enqueued one by one, and {@link #explain()} says why.
 *
 * <p>Numbers that change from step to step are written before each replay: the rate that {@link dev.chagres.optim.AdamW#rate} was
 * told, the number of the step, and the word of the random numbers. Other numbers that the step takes from the host stay as they
 * were when it was captured. A replay makes no Java object.
 *
 * <p>Threading: the device's thread.
 */
public final class StepGraph implements AutoCloseable {
    /** What a step enqueues: forward, backward, clipping and update. */
    @FunctionalInterface
    public interface Step {
        /**
         * Enqueues the step, beginning with {@link Pass#begin()}. Loss and norm it copies to tensors that live longer than the pass.
         *
         * @param input of the only micro-batch, at the same addresses each time
         */
        void enqueue(ModelInput input);
    }

    private final UploadRing uploads;
    private final BatchShape shape;
    private final Pass pass;
    private final int most;
    private final Step step;
    private final Scope scope;
    private final Tensor tokens;
    /** The bucket used last comes last. */
    private final List<Bucketed> buckets = new ArrayList<>();

    private long replayed;
    private long enqueued;
    private long evicted;
    private boolean inside;
    private boolean closed;

    /** What is kept for a bucket. */
    private static final class Bucketed {
        private final StepBucket bucket;
        private final FixedInput input;
        private @Nullable Graph graph;
        private @Nullable String refusal;
        private boolean ran;

        Bucketed(StepBucket bucket, FixedInput input) {
            this.bucket = bucket;
            this.input = input;
        }

        void close() {
            if (graph != null) {
                graph.close();
            }
            input.close();
        }
    }

    /**
     * Takes memory for one batch of {@code shape}.
     *
     * @param uploads from {@link UploadRing#padded}: brings the batches
     * @param shape of the ring's batches: packed, one micro-batch a step
     * @param pass the training pass that {@code step} begins
     * @param most buckets that are kept at a time; beyond, the one that was not used for longest is closed
     * @throws IllegalArgumentException when the ring does not pad, has another shape or lies on another device, the layout is padded, a step has several
     *     micro-batches, or {@code most} is below 1
     */
    public StepGraph(UploadRing uploads, BatchShape shape, Pass pass, int most, Step step) {
        this.uploads = Checks.given("uploads", uploads);
        this.shape = Checks.given("shape", shape);
        this.pass = Checks.given("pass", pass);
        this.step = Checks.given("step", step);
        String refusal = refusal(shape);
        if (refusal != null) {
            throw new IllegalArgumentException("shape: " + refusal + ", got " + shape);
        }
        if (!uploads.isPadded() || !uploads.shape().equals(shape)) {
            throw new IllegalArgumentException("uploads: expected one from UploadRing.padded for " + shape
                    + ", got one " + (uploads.isPadded() ? "for " + uploads.shape() : "that does not pad"));
        }
        if (uploads.device() != pass.device()) {
            throw new IllegalArgumentException(
                    "uploads: expected one on " + pass.device() + ", where the pass computes, got"
                            + " one on " + uploads.device()
                            + (uploads.device().index() == pass.device().index() ? ", opened another time" : ""));
        }
        if (most < 1) {
            throw new IllegalArgumentException("most: expected at least 1, got " + most);
        }
        this.most = most;
        Stream stream = pass.stream();
        scope = stream.device().openScope(stream);
        int capacity = shape.tokensPerMicroBatch();
        tokens = scope.tensor(DType.INT32, 2, capacity);
    }

    /** Returns why steps of this shape cannot be captured, or null when they can. */
    public static @Nullable String refusal(BatchShape shape) {
        if (Checks.given("shape", shape).layout() != BatchLayout.PACKED) {
            return "expected packed batches, for only they are padded to buckets";
        }
        return shape.microBatches() == 1
                ? null
                : "expected one micro-batch a step, for the shares of several are numbers of the host";
    }

    /**
     * Enqueues one step over the batch that was uploaded first of those that wait. What the step throws passes
     * through; the batch then still waits, and the pass forgets the gradients.
     *
     * @throws IllegalStateException when no batch was uploaded, this or what the captured steps use is closed, a stream of the device
     *     captures, or it is called inside a step
     */
    public void step() {
        if (closed) {
            throw new IllegalStateException("the step graph of " + pass.stream() + " is closed");
        }
        ensureOutside("step");
        Inside.state(pass.stream()).ensureNotCapturing("step");
        Bucketed present = present();
        inside = true;
        boolean done = false;
        try {
            enqueue(present);
            done = true;
        } finally {
            inside = false;
            if (!done) {
                pass.abandon();
            }
        }
        uploads.advance();
    }

    private void ensureOutside(String call) {
        if (inside) {
            throw new IllegalStateException(call + ": called inside a step of the step graph of " + pass.stream()
                    + "; call it when step() has returned");
        }
    }

    private void enqueue(Bucketed present) {
        uploads.bring(present.input);
        if (present.graph == null && present.ran && present.refusal == null) {
            capture(present);
        }
        Graph graph = present.graph;
        if (graph != null) {
            graph.launch();
            replayed++;
        } else {
            step.enqueue(present.input.modelInput());
            present.ran = true;
            enqueued++;
        }
    }

    private void capture(Bucketed present) {
        if (pass.isObserved()) {
            return; // Observers read clocks of the host: for as long as they listen, one by one.
        }
        pass.end();
        try {
            present.graph = pass.stream().capture(() -> step.enqueue(present.input.modelInput()));
        } catch (CaptureException | NativeException refused) {
            present.refusal = String.valueOf(refused.getMessage());
        }
    }

    /** Returns what is kept for the next batch's bucket. */
    private Bucketed present() {
        int count = StepBucket.tokens(uploads.nextTokens(), shape);
        int longest = StepBucket.longest(uploads.nextLongest(), shape);
        int sequences = StepBucket.sequences(uploads.nextSequences(), uploads.nextTokens(), count, longest);
        for (int i = buckets.size() - 1; i >= 0; i--) {
            Bucketed one = buckets.get(i);
            StepBucket bucket = one.bucket;
            if (bucket.tokens() == count && bucket.longest() == longest && bucket.sequences() == sequences) {
                if (i != buckets.size() - 1) {
                    buckets.remove(i);
                    buckets.add(one);
                }
                return one;
            }
        }
        if (buckets.size() == most) {
            buckets.removeFirst().close();
            evicted++;
        }
        StepBucket bucket = new StepBucket(count, sequences, longest);
        Bucketed made = new Bucketed(bucket, new FixedInput(pass.stream(), bucket, tokens));
        buckets.add(made);
        return made;
    }

    /** Returns the number of steps that were replayed. */
    public long replayed() {
        return replayed;
    }

    /** Returns the number of steps that were enqueued one by one. */
    public long enqueued() {
        return enqueued;
    }

    /** Returns how often a bucket was closed to make room for another. */
    public long evicted() {
        return evicted;
    }

    /** Returns for each bucket whether its steps are replayed, and why not. */
    public String explain() {
        StringBuilder text = new StringBuilder(replayed + " steps replayed, " + enqueued + " enqueued one by one, "
                + evicted + " buckets closed for room");
        for (Bucketed one : buckets) {
            Graph graph = one.graph;
            text.append("\n  ").append(one.bucket).append(": ");
            if (graph != null) {
                text.append("replayed, ").append(graph.nodes()).append(" nodes");
            } else if (one.refusal != null) {
                text.append("enqueued one by one: ").append(one.refusal);
            } else if (pass.isObserved()) {
                text.append("enqueued one by one: an observer listens to the pass, and reads the host's clock");
            } else {
                text.append(
                        "enqueued one by one so far: the first step builds kernels and takes memory, the second is captured");
            }
        }
        return text.toString();
    }

    /**
     * Waits for the stream and frees graphs and memory. A second call does nothing.
     *
     * @throws IllegalStateException inside a step
     */
    @Override
    public void close() {
        if (closed) {
            return;
        }
        ensureOutside("close");
        Inside.state(pass.stream()).ensureCloses();
        closed = true;
        buckets.forEach(Bucketed::close);
        buckets.clear();
        scope.close();
    }
}
