package dev.chagres.trainer;

import dev.chagres.Device;
import dev.chagres.MemoryUse;
import dev.chagres.batch.Batch;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.SequencePacker;
import dev.chagres.batch.StepResult;
import dev.chagres.batch.TokenSequences;
import dev.chagres.estimate.DryRun;
import dev.chagres.estimate.FlopCount;
import dev.chagres.estimate.FlopCount.Flops;
import dev.chagres.estimate.KernelTimes;
import dev.chagres.estimate.KernelTrace;
import dev.chagres.estimate.Lengths;
import dev.chagres.estimate.PassTrace;
import dev.chagres.nccl.Operation;
import dev.chagres.pass.Pass;
import dev.chagres.pass.PassProfile;
import dev.chagres.trainer.ModelSetup.Steps;
import java.io.IOException;
import java.io.OutputStream;
import java.util.Arrays;
import java.util.Comparator;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.BiFunction;

/**
 * What a step takes, before anything is allocated or computed: {@link Trainer#estimate}.
 *
 * <p>Threading: immutable.
 *
 * @param memory which parts of the program hold memory of each rank when it holds most
 * @param flops of products and attention, of the rank that computes most
 * @param productFlops those of products by the bits of their factors: 32, 16 or 8
 * @param attentionFlops those of attention
 * @param collectiveBytes that the collectives of rank 0 move in a step; nothing on one rank
 * @param tokens of a step of all ranks
 * @param hostBytes page-locked memory of the host that a rank's optimizer and passes hold; 0 where state and activations are on the device
 */
public record StepEstimate(
        List<MemoryUse> memory,
        Flops flops,
        Map<Integer, Double> productFlops,
        double attentionFlops,
        Map<Operation, Long> collectiveBytes,
        long tokens,
        long hostBytes) {
    private static final int[] BITS = {32, 16, 8};

    /** Copies what it is given. */
    public StepEstimate {
        memory = List.copyOf(memory);
        productFlops = Map.copyOf(productFlops);
        collectiveBytes = Map.copyOf(collectiveBytes);
    }

    /** Returns the most bytes that one rank holds. */
    public long memoryBytes() {
        return memory.stream().mapToLong(MemoryUse::total).max().orElseThrow();
    }

    /** Runs a full batch on devices that count: the first step asks for memory; where steps are captured the second is, and the third replays. */
    static StepEstimate of(ModelSetup setup) {
        return DryRun.call(() -> training(setup, "estimate", StepEstimate::counted));
    }

    /** Returns what {@code question} says of the model on its ranks. */
    private static <T> T training(ModelSetup setup, String purpose, BiFunction<Training, ModelSetup, T> question) {
        if (setup.layout().count() > 1) {
            try (var training = new RankedTraining(setup, purpose, Wording.CALLS, () -> false)) {
                return question.apply(training, setup);
            }
        }
        try (Device device = Device.open();
                var training = ModelTraining.of(device, setup)) {
            return question.apply(training, setup);
        }
    }

    private static Batch fullBatch(ModelSetup setup) {
        Batch batch = new Batch(setup.shape());
        new SequencePacker(setup.shape(), new FullSequences(setup.shape())).fill(batch);
        return batch;
    }

    private static Lengths lengths(ModelSetup setup) {
        return Lengths.ofTokens(
                setup.shape().tokensPerMicroBatch(), setup.shape().context());
    }

    private static StepEstimate counted(Training training, ModelSetup setup) {
        Batch batch = fullBatch(setup);
        List<FlopCount> counts = training.countedStep(batch, lengths(setup));
        int steps = setup.enqueuing().steps() == Steps.CAPTURED ? 3 : 2;
        for (int step = 1; step < steps; step++) {
            training.upload(batch);
            training.step(0);
            training.result(new StepResult());
        }
        FlopCount most = counts.getFirst();
        for (FlopCount one : counts) {
            most = one.flops().all() > most.flops().all() ? one : most;
        }
        Map<Integer, Double> byBits = new TreeMap<>();
        for (int bits : BITS) {
            byBits.put(bits, most.ofProducts(bits));
        }
        Map<Operation, Long> moved = new EnumMap<>(Operation.class);
        training.rankSteps().stream().limit(1).forEach(step -> moved.putAll(step.bytes()));
        return new StepEstimate(
                training.memoryUse(),
                most.flops(),
                byBits,
                most.ofAttention(),
                moved,
                batch.tokens(),
                training.hostBytes());
    }

    /**
     * Makes steps on full batches with the device of this process, and tells what they took.
     *
     * @param steps how many are timed, behind as many that are not
     */
    static Measured measured(ModelSetup setup, int steps) {
        return training(setup, "measure", (training, _) -> {
            Batch batch = fullBatch(setup);
            millisOf(training, batch, steps);
            double millis = millisOf(training, batch, steps);
            return new Measured(training.memoryUse(), millis / steps, batch.tokens());
        });
    }

    private static double millisOf(Training training, Batch batch, int steps) {
        var result = new StepResult();
        double millis = 0;
        for (int step = 0; step < steps; step++) {
            training.upload(batch);
            training.step(1e-6f);
            training.result(result);
            millis += result.millis();
        }
        return millis;
    }

    /**
     * Makes steps with the device of this process: two that are not measured, then as many whose layers are, then as many whose kernels are.
     *
     * @param trace receives the calls of layers, or of kernels where they are known
     */
    static Profiled profiled(ModelSetup setup, int steps, OutputStream trace) throws IOException {
        Batch batch = fullBatch(setup);
        try (Device device = Device.open();
                ModelTraining training = ModelTraining.of(device, setup)) {
            millisOf(training, batch, 2);
            try (var profile = new PassProfile(device);
                    var calls = new PassTrace(device);
                    var count = FlopCount.of(lengths(setup), training.passes())) {
                for (Pass one : training.passes()) {
                    one.observe(profile);
                    one.observe(calls);
                }
                double millis = millisOf(training, batch, steps);
                for (Pass one : training.passes()) {
                    one.forget(profile);
                    one.forget(calls);
                }
                Flops all = count.flops();
                KernelTimes kernels = kernels(training, batch, steps);
                if (kernels.source() == KernelTrace.Source.CUPTI) {
                    kernels.write(trace);
                } else {
                    calls.write(trace);
                }
                return new Profiled(
                        profile.rows(),
                        count.rates(profile, steps),
                        new Flops(all.forward() / steps, all.backward() / steps, all.recomputation() / steps),
                        millis / steps,
                        steps,
                        PeakRate.measuredTeraflops(
                                device, training.model().parameters().dtype()),
                        device.peakMemoryUse(),
                        kernels);
            }
        }
    }

    private static KernelTimes kernels(Training training, Batch batch, int steps) {
        try (KernelTrace kernels = KernelTrace.begin()) {
            training.beginRecording(kernels);
            try {
                millisOf(training, batch, steps);
            } finally {
                training.endRecording();
            }
            return kernels.end();
        }
    }

    /**
     * What takes the time of a step.
     *
     * @param rows of layers, as means of calls
     * @param rates a table of layers with TFLOP/s
     * @param flops of a step
     * @param stepMillis the mean of a step, enqueued kernel by kernel between events
     * @param steps how many were measured
     * @param bestTeraflops what a large product in the model's type reached on this device
     * @param memory which parts of the program held memory when it held most
     * @param kernels of as many other steps, by name
     */
    public record Profiled(
            List<PassProfile.Row> rows,
            String rates,
            Flops flops,
            double stepMillis,
            int steps,
            double bestTeraflops,
            MemoryUse memory,
            KernelTimes kernels) {
        /** Copies the list. */
        public Profiled {
            rows = List.copyOf(rows);
        }

        /**
         * Layers of one kind: those whose names differ in numbers alone.
         *
         * @param name with {@code *} for numbers
         * @param millis of a step, forward and backward
         */
        public record Kind(String name, double millis) {}

        /** Returns the kinds of layers with no layer inside that take most of a step, the slowest first. */
        public List<Kind> slowest(int count) {
            Map<String, Double> millis = new TreeMap<>();
            for (int i = 0; i < rows.size(); i++) {
                PassProfile.Row row = rows.get(i);
                if (i + 1 == rows.size() || rows.get(i + 1).depth() <= row.depth()) {
                    double each = row.forwards() * row.forwardMillis() + row.backwards() * row.backwardMillis();
                    millis.merge(row.layer().replaceAll("[0-9]+", "*"), each / steps, Double::sum);
                }
            }
            return millis.entrySet().stream()
                    .map(one -> new Kind(one.getKey(), one.getValue()))
                    .sorted(Comparator.comparingDouble(Kind::millis).reversed())
                    .limit(count)
                    .toList();
        }
    }

    /**
     * What steps took.
     *
     * @param memory which parts of the program held memory of each rank when it held most
     * @param stepMillis the mean of a step
     * @param tokens of a step of all ranks
     */
    public record Measured(List<MemoryUse> memory, double stepMillis, long tokens) {
        /** Copies the list. */
        public Measured {
            memory = List.copyOf(memory);
        }

        /** Returns the most bytes that one rank held. */
        public long memoryBytes() {
            return memory.stream().mapToLong(MemoryUse::total).max().orElseThrow();
        }
    }

    /**
     * Sequences that fill each micro-batch: as long as they may be, and what is left behind them.
     *
     * <p>Threading: one thread at a time.
     */
    static final class FullSequences implements TokenSequences {
        private final BatchShape shape;
        private int used;
        private int length;

        FullSequences(BatchShape shape) {
            this.shape = shape;
        }

        @Override
        public boolean advance() {
            int left = shape.tokensPerMicroBatch() - used;
            length = Math.min(shape.context(), left);
            used = left == length ? 0 : used + length;
            return true;
        }

        @Override
        public int length() {
            return length;
        }

        @Override
        public int write(int[] ids, int[] labels, int start, int count) {
            Arrays.fill(ids, start, start + count, 1);
            Arrays.fill(labels, start, start + count, 1);
            return count;
        }

        @Override
        public int padding() {
            return 0;
        }

        @Override
        public void close() {}
    }
}
