package dev.chagres.train;

import dev.chagres.Graph;
import dev.chagres.bindings.CaptureException;
import dev.chagres.bindings.NativeException;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.layer.Pass;
import dev.chagres.recipe.Quantizers;
import dev.chagres.recipe.Recording;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * Training steps that are captured once and then replayed: the host enqueues one graph instead of hundreds of kernels.
 *
 * {@snippet file="dev/chagres/train/StepGraphExampleTest.java" region="stepGraph"}
 *
 * <p>Each batch is padded to a bucket: its micro-batches have the same number of tokens, of sequences and longest length, rounded up,
 * with sequences of padding without labels behind the others; padded layouts have rows of the context's length, and rows of padding. It is copied to fixed addresses, from which a graph of its bucket reads it. The first step of a bucket is
 * enqueued one by one, which builds kernels and takes memory; the second is captured; from then on it is replayed. A replayed
 * step computes what the same step would enqueued one by one, bit for bit where the kernels are deterministic. Where a step cannot
 * be captured it is enqueued one by one, and {@link #explain()} says why. So is a step whose casts are measured, for {@link
 * Quantizers#measureEvery} measures nothing that a graph replays; the steps between are replayed. Such a step is not counted as a
 * bucket's first, since it casts by other kernels.
 *
 * <p>Numbers that change from step to step are written before each replay: the rate that {@link dev.chagres.optim.AdamW#rate} was
 * told, the number of the step, and the word of the random numbers. Where the pass was told to compute by another recipe, or to
 * calibrate, the bucket begins anew. Other numbers that the step takes from the host, and what layers were told, such as another
 * rotation, stay as they were when it was captured. A replay makes no Java object.
 *
 * <p>Of ranks whose steps have collectives each has a step graph, and uploads the same batches, of which it computes its own
 * micro-batches: so all capture and replay in the same steps. What a {@code Strategy} refuses to be captured, such as one that shares
 * weights out, is enqueued one by one on all of them.
 *
 * <p>Threading: the device's thread.
 */
public final class StepGraph implements AutoCloseable {
    /** What a step enqueues: forward and backward of its micro-batches, sums over ranks, clipping and update. */
    @FunctionalInterface
    public interface Step {
        /**
         * Enqueues the step, each micro-batch beginning with {@link Pass#begin()}. Losses and norm it copies to tensors that live longer
         * than the pass. The factor on a loss is {@link ModelInput#deviceShare()}, or in FP16 that with a {@link
         * dev.chagres.optim.LossScaler}, for that of the host is another one at each launch.
         *
         * @param microBatches at the same addresses each time
         */
        void enqueue(List<ModelInput> microBatches);
    }

    private final UploadRing uploads;
    private final BatchShape shape;
    private final Pass pass;
    private final int most;
    private final Step step;
    private final FixedInputs.FixedMemory memory;
    /** The bucket used last comes last. */
    private final List<Bucketed> buckets = new ArrayList<>();

    private long replayed;
    private long enqueued;
    private long measured;
    private long evicted;
    private boolean inside;
    private boolean closed;

    /** What is kept for a bucket. */
    private static final class Bucketed {
        private final StepBucket bucket;
        private final FixedInputs inputs;
        private @Nullable Graph graph;
        private @Nullable String refusal;
        /** Whether a step was enqueued of which nothing was measured. */
        private boolean ran;
        /** By what the pass computed when the bucket ran last. */
        private @Nullable Quantizers quantizers;

        private boolean calibrates;

        Bucketed(StepBucket bucket, FixedInputs inputs) {
            this.bucket = bucket;
            this.inputs = inputs;
        }

        /** Begins anew where the pass computes by another recipe than before. */
        void follow(Pass pass) {
            if (ran && (quantizers != pass.quantizers() || calibrates != pass.isCalibrating())) {
                closeGraph();
                refusal = null;
                ran = false;
            }
            quantizers = pass.quantizers();
            calibrates = pass.isCalibrating();
        }

        private void closeGraph() {
            if (graph != null) {
                graph.close();
                graph = null;
            }
        }

        void close() {
            closeGraph();
            inputs.close();
        }
    }

    /**
     * Takes memory for one batch of {@code shape}.
     *
     * @param uploads from {@link UploadRing#padded}: brings the batches
     * @param shape of the ring's batches
     * @param pass the training pass that {@code step} begins
     * @param most buckets that are kept at a time; beyond, the one that was not used for longest is closed
     * @throws IllegalArgumentException when the ring does not pad, has another shape or lies on another device, or {@code most} is below
     *     1
     */
    public StepGraph(UploadRing uploads, BatchShape shape, Pass pass, int most, Step step) {
        this.uploads = Checks.given("uploads", uploads);
        this.shape = Checks.given("shape", shape);
        this.pass = Checks.given("pass", pass);
        this.step = Checks.given("step", step);
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
        memory = new FixedInputs.FixedMemory(pass.stream(), shape);
    }

    /**
     * Enqueues one step over the batch that was uploaded first of those that wait. What the step throws passes
     * through; the batch then still waits, and the pass forgets the gradients.
     *
     * @return the micro-batches that the step was given, whose {@link ModelInput#share} are those of this step until the next one
     * @throws IllegalStateException when no batch was uploaded, this or what the captured steps use is closed, a stream of the device
     *     captures, or it is called inside a step
     */
    public List<ModelInput> step() {
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
        return present.inputs.microBatches();
    }

    private void ensureOutside(String call) {
        if (inside) {
            throw new IllegalStateException(call + ": called inside a step of the step graph of " + pass.stream()
                    + "; call it when step() has returned");
        }
    }

    private void enqueue(Bucketed present) {
        present.follow(pass);
        uploads.bring(present.inputs);
        boolean measures = measures();
        if (present.graph == null && present.ran && present.refusal == null && !measures) {
            capture(present);
        }
        Graph graph = present.graph;
        if (graph != null && !measures) {
            graph.launch();
            replayed++;
        } else {
            step.enqueue(present.inputs.microBatches());
            // A measured step casts by other kernels: those of a capture may not be built yet.
            present.ran |= !measures;
            enqueued++;
            measured += measures ? 1 : 0;
        }
    }

    /** Returns whether casts of the coming step are measured. */
    private boolean measures() {
        Quantizers quantizers = pass.quantizers();
        return quantizers != null && quantizers.measures(Recording.ON);
    }

    private void capture(Bucketed present) {
        if (pass.isObserved()) {
            return; // Observers read clocks of the host: for as long as they listen, one by one.
        }
        pass.end();
        try {
            present.graph = pass.stream().capture(() -> step.enqueue(present.inputs.microBatches()));
        } catch (CaptureException | NativeException refused) {
            present.refusal = String.valueOf(refused.getMessage());
        }
    }

    /** Returns what is kept for the next batch's bucket. */
    private Bucketed present() {
        UploadSlot batch = uploads.waiting();
        int microBatches = batch.microBatches();
        if (shape.layout() == BatchLayout.PADDED) {
            int rows = 0;
            for (int i = 0; i < microBatches; i++) {
                rows = Math.max(rows, StepBucket.rows(batch.sequences(i), shape));
            }
            return present(microBatches, rows * shape.context(), rows, shape.context());
        }
        int count = 0;
        int longest = 0;
        for (int i = 0; i < microBatches; i++) {
            count = Math.max(count, StepBucket.tokens(batch.tokens(i), shape));
            longest = Math.max(longest, StepBucket.longest(batch.longest(i), shape));
        }
        int needed = 0;
        for (int i = 0; i < microBatches; i++) {
            needed = Math.max(needed, StepBucket.needed(batch.sequences(i), batch.tokens(i), count, longest));
        }
        return present(microBatches, count, StepBucket.sequences(needed), longest);
    }

    private Bucketed present(int microBatches, int count, int sequences, int longest) {
        for (int i = buckets.size() - 1; i >= 0; i--) {
            Bucketed one = buckets.get(i);
            StepBucket bucket = one.bucket;
            if (bucket.microBatches() == microBatches
                    && bucket.tokens() == count
                    && bucket.longest() == longest
                    && bucket.sequences() == sequences) {
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
        StepBucket bucket = new StepBucket(shape.layout(), microBatches, count, sequences, longest);
        Bucketed made = new Bucketed(bucket, new FixedInputs(bucket, memory));
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

    /** Returns which buckets' steps are replayed, and below each reason those whose are not. */
    public String explain() {
        StringBuilder text = new StringBuilder("steps replayed: " + replayed + ", enqueued one by one: " + enqueued
                + (measured == 0 ? "" : ", " + measured + " of them because their casts were measured")
                + "; buckets closed for room: " + evicted);
        Map<String, List<StepBucket>> reasons = new LinkedHashMap<>();
        for (Bucketed one : buckets) {
            Graph graph = one.graph;
            if (graph != null) {
                text.append("\n  ")
                        .append(one.bucket)
                        .append(": replayed, ")
                        .append(graph.nodes())
                        .append(" nodes")
                        .append(graph.fills() == 0 ? "" : ", " + graph.fills() + " of which fill memory");
            } else {
                reasons.computeIfAbsent(reason(one), _ -> new ArrayList<>()).add(one.bucket);
            }
        }
        reasons.forEach((reason, enqueuedBuckets) -> {
            text.append("\n  ").append(reason);
            enqueuedBuckets.forEach(bucket -> text.append("\n    ").append(bucket));
        });
        return text.toString();
    }

    private String reason(Bucketed one) {
        if (one.refusal != null) {
            return "enqueued one by one: " + one.refusal;
        }
        return pass.isObserved()
                ? "enqueued one by one: an observer listens to the pass, and reads the host's clock"
                : "enqueued one by one so far: the first step builds kernels and takes memory, the second is captured";
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
        memory.close();
    }
}
