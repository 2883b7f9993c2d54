package dev.chagres.batch;

import dev.chagres.Graph;
import dev.chagres.batch.FixedInputs.StepBucket;
import dev.chagres.bindings.CaptureException;
import dev.chagres.bindings.NativeException;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.Log;
import dev.chagres.internal.memory.Capture;
import dev.chagres.pass.Pass;
import dev.chagres.recipe.AmaxRecording;
import dev.chagres.recipe.Quantizers;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.jspecify.annotations.Nullable;

/**
 * Training steps that are captured once and then replayed: the host enqueues one graph instead of hundreds of kernels.
 *
 * {@snippet file="dev/chagres/batch/StepGraphExampleTest.java" region="stepGraph"}
 *
 * <p>Each batch is padded to a bucket: its micro-batches have the same number of tokens, number of sequences and longest length, each
 * rounded up, with sequences of padding without labels at the end; padded layouts have rows of the context's length, and rows of padding.
 * Packed batches that fill their tokens with sequences of one length have a bucket of their own, in which attention is dense.
 * The batch is copied to fixed addresses, from which the graph of its bucket reads it. The first step of a bucket is enqueued one by one,
 * which builds kernels and allocates memory; the second is captured; later ones are replayed. A replayed step computes the same as one that
 * is enqueued one by one, bit for bit if the kernels are deterministic. A step that cannot be captured is enqueued one by one; {@link
 * #explain()} says why, and so does a warning of the logger {@code dev.chagres}, once for each reason. A step whose casts are measured
 * ({@link Quantizers#measureEvery}) is also enqueued one by one, and the steps between are replayed; it does not count as a bucket's first
 * step, since it uses other kernels for casts. So is the step after {@code RunState.saveInBackground}: weights are copied during its forward
 * and backward, and only its update waits.
 *
 * <p>Numbers that change from step to step are written before each replay: the rate of {@link dev.chagres.optim.Optimizer#rate}, the number of
 * the step, and the counter of the random numbers. <b>Call {@code optimizer.rate(rate)} before each {@link #step()}, also if the rate is
 * constant</b>: a replay does not run the code of the step, so it never sees the rate that {@code optimizer.step(rate, …)} is given there.
 * Without that call a step that would be replayed throws.
 *
 * <p>When the recipe of the pass changes, or it begins to calibrate, the bucket begins again with a first step. Other numbers that the step
 * takes from the host, and settings of layers such as the rotation, keep their values at the time of the capture. A replay makes no
 * garbage.
 *
 * <p>If steps have collectives, each rank has a step graph, uploads the same batches and computes its own micro-batches of them: so all
 * ranks capture and replay in the same steps. Steps of a {@code Strategy} that refuses a capture, such as one that shards weights, are
 * enqueued one by one on all ranks.
 *
 * <p>Threading: the device's thread.
 */
public final class StepGraph implements AutoCloseable {
    private static final String OBSERVED = "an observer listens to the pass, and reads the host's clock";

    /** The work of a step: forward and backward of its micro-batches, sums over ranks, clipping and update. */
    @FunctionalInterface
    public interface Step {
        /**
         * Enqueues the step; each micro-batch begins with {@link Pass#begin()}. Copy losses and norm to tensors that outlive the
         * micro-batch. Use {@link ModelInput#deviceShare()} as the factor on a loss, in FP16 with a {@link dev.chagres.optim.LossScaler}:
         * the share on the host changes from launch to launch and would be captured as a constant.
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
    /** The buckets, least recently used first. */
    private final List<Bucketed> buckets = new ArrayList<>();

    /** Reasons why steps are not replayed that were logged. */
    private final Set<String> logged = new HashSet<>();

    private long replayed;
    private long enqueued;
    private long measured;
    private long saved;
    private long evicted;
    private boolean inside;
    private boolean closed;

    /** The state of a bucket. */
    private static final class Bucketed {
        private final StepBucket bucket;
        private final FixedInputs inputs;
        private @Nullable Graph graph;
        /** What the graph does on the host. */
        private @Nullable Capture capture;

        private @Nullable String refusal;
        /** Whether a step without measurements was enqueued. */
        private boolean ran;
        /** The recipe of the pass when the bucket ran last. */
        private @Nullable Quantizers quantizers;

        private boolean calibrates;

        Bucketed(StepBucket bucket, FixedInputs inputs) {
            this.bucket = bucket;
            this.inputs = inputs;
        }

        /** Begins again with a first step if the pass has another recipe than before. */
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
                capture = null;
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
     * @param uploads from {@link UploadRing#padded}: uploads the batches
     * @param shape of the ring's batches
     * @param pass the training pass that {@code step} begins
     * @param most buckets that are kept at a time; when there are more, the least recently used one is closed
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
        Checks.atLeastOne("most", most);
        this.most = most;
        memory = new FixedInputs.FixedMemory(pass.stream(), shape);
    }

    /**
     * Enqueues one step over the oldest uploaded batch. An exception of the step is thrown to the caller; the batch is then used by the
     * next call, and the gradients are discarded.
     *
     * @return the micro-batches of the step; their {@link ModelInput#share} is valid until the next step
     * @throws IllegalStateException when no batch was uploaded, or this or an object that the captured steps use is closed. Also inside a
     *     step, while a stream of the device captures, or when a step would be replayed for which {@code Optimizer.rate} was not called
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
        return present.inputs.microBatches;
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
        boolean isRead = Inside.state(pass.stream()).isRead();
        boolean replays = !measures && !isRead;
        if (present.graph == null && present.ran && present.refusal == null && replays) {
            capture(present);
        }
        Graph graph = present.graph;
        Capture captured = present.capture;
        if (graph != null && captured != null && replays) {
            captured.ensureSet();
            graph.launch();
            replayed++;
        } else {
            step.enqueue(present.inputs.microBatches);
            // A measured step uses other kernels for casts: the kernels of a capture may not be built yet.
            present.ran |= !measures;
            enqueued++;
            measured += measures ? 1 : 0;
            saved += isRead && !measures ? 1 : 0;
        }
    }

    /** Returns whether casts of the coming step are measured. */
    private boolean measures() {
        Quantizers quantizers = pass.quantizers();
        return quantizers != null && quantizers.measures(AmaxRecording.ON);
    }

    private void capture(Bucketed present) {
        if (pass.isObserved()) {
            log(OBSERVED);
            return; // Observers read clocks of the host, so steps are enqueued one by one while there are observers.
        }
        pass.end();
        try {
            present.graph = pass.stream().capture(() -> {
                present.capture = Inside.capture(pass.stream());
                step.enqueue(present.inputs.microBatches);
            });
        } catch (CaptureException | NativeException refused) {
            present.capture = null;
            present.refusal = String.valueOf(refused.getMessage());
            log(present.refusal);
        }
    }

    /** Logs why steps are not replayed, each reason once. */
    private void log(String reason) {
        if (logged.add(reason)) {
            Log.logger().log(System.Logger.Level.WARNING, "StepGraph: steps are enqueued one by one: " + reason);
        }
    }

    /** Returns the state of the next batch's bucket. */
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
        boolean equal = longest % StepBucket.LENGTH_MULTIPLE == 0;
        for (int i = 0; i < microBatches; i++) {
            needed = Math.max(needed, StepBucket.needed(batch.sequences(i), batch.tokens(i), count, longest));
            equal &= batch.tokens(i) == count && (long) batch.sequences(i) * longest == count;
        }
        return present(microBatches, count, equal ? count / longest : StepBucket.sequences(needed), longest);
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
            Bucketed former = buckets.removeFirst();
            if (replayed == 0 && former.graph == null && former.refusal == null) {
                log("a bucket was closed for room before its second step, which is the first that can be replayed; keep"
                        + " more buckets than " + most);
            }
            former.close();
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

    /** Returns the buckets whose steps are replayed, and for each reason the buckets whose steps are not. */
    public String explain() {
        StringBuilder text = new StringBuilder("steps replayed: " + replayed + ", enqueued one by one: " + enqueued
                + (measured == 0 ? "" : ", " + measured + " of them because their casts were measured")
                + (saved == 0 ? "" : ", " + saved + " of them because a checkpoint was being read")
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
                ? "enqueued one by one: " + OBSERVED
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
