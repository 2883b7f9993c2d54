package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.ops.Adam;
import dev.chagres.ops.AdamRange;
import dev.chagres.ops.AdamRanges;
import dev.chagres.ops.LossScale;
import dev.chagres.te.MultiTensor.BiasCorrection;
import dev.chagres.te.MultiTensor.WeightDecay;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.OperationsPerInvocation;

/** What do our own step of Adam over a layer's parameters, with BFLOAT16 weights and moments, and loss scaling cost? */
@NullUnmarked
public class OptimizerOpsBenchmark extends OperationBenchmark {
    private static final float RATE = 1e-3f;
    private static final Adam ADAM = new Adam(0.9f, 0.999f, 1e-8f, WeightDecay.DECOUPLED, BiasCorrection.YES);
    /** As many as two of each of 33 sharded groups. */
    private static final int RANGES = 66;
    /** Histories of 400 quantizers over 1024 steps. */
    private static final int SCALES = 400 * 1024;

    private Tensor gradient;
    private Tensor weight;
    private Tensor mean;
    private Tensor square;
    private Tensor master;
    private Tensor rate;
    private Tensor step;
    private Tensor gradientScale;
    private Tensor skip;
    private Tensor norm;
    private Tensor lossScale;
    private Tensor counts;
    private Tensor taken;
    private Tensor skipped;
    private Tensor saved;
    private Tensor scales;
    private AdamRange range;
    private AdamRanges ranges;

    /** For JMH. */
    public OptimizerOpsBenchmark() {}

    @Override
    void prepare() {
        long count = 4 * shape.hidden() * shape.hidden() + 2 * shape.hidden() * shape.inner();
        gradient = filled(DType.FLOAT32, 1, count);
        weight = zeros(DType.BFLOAT16, count);
        mean = zeros(DType.BFLOAT16, count);
        square = zeros(DType.BFLOAT16, count);
        master = zeros(DType.FLOAT32, count);
        rate = number(RATE);
        range = new AdamRange(gradient, weight, mean, square, master, rate, 0);
        step = ints(1);
        gradientScale = number(1);
        skip = zeros(DType.INT32, 1);
        norm = number(6);
        lossScale = number(2);
        counts = zeros(DType.INT32, 2);
        taken = ints(4);
        // Equal gradients and no decay: the first step is one rate downwards, whatever their size.
        stepOnce();
        near("adam", -RATE, at(master, 0), RATE / 50);
        makeRanges(count);
        stepRanges();
        // The same step again: moments of 0.19 and 0.001999, divided as those of a first step are.
        double second = RATE * 1.9 / Math.sqrt(1.999);
        near("adam over ranges", -RATE - second, at(master, count / RANGES / 16 * 16), RATE / 25);
        clip();
        near("norm", 3, at(norm, 0), 1e-6);
        near("factor", 1.0 / 3 / 2, at(gradientScale, 0), 1e-5);
        update();
        near("steps", 5, taken.toInts(stream)[0], 0);
        // So that the norm does not sink at each call.
        lossScale.set(stream, 1f);
        skipped = ints(1);
        saved = filled(DType.FLOAT32, 3, SCALES);
        scales = zeros(DType.FLOAT32, SCALES);
        restore();
        near("scales", 3, at(scales, SCALES - 1), 0);
    }

    private void makeRanges(long count) {
        long each = count / RANGES / 16 * 16;
        List<AdamRange> all = new ArrayList<>();
        for (int i = 0; i < RANGES; i++) {
            long first = i * each;
            long length = i + 1 == RANGES ? count - first : each;
            all.add(new AdamRange(
                    scope.view(gradient, first, length),
                    scope.view(weight, first, length),
                    scope.view(mean, first, length),
                    scope.view(square, first, length),
                    scope.view(master, first, length),
                    rate,
                    0));
        }
        ranges = AdamRanges.of(all, scope);
    }

    private void stepRanges() {
        ADAM.step(ranges, step, gradientScale, skip, stream);
    }

    private Tensor number(float value) {
        Tensor tensor = empty(DType.FLOAT32, 1);
        tensor.set(stream, value);
        return tensor;
    }

    private void stepOnce() {
        ADAM.step(range, step, gradientScale, skip, stream);
    }

    private void clip() {
        LossScale.clip(norm, lossScale, 1, gradientScale, skip, stream);
    }

    private void update() {
        LossScale.update(skip, lossScale, counts, taken, 2, 0.5f, Integer.MAX_VALUE, stream);
    }

    private void restore() {
        LossScale.restore(skipped, saved, scales, stream);
    }

    /** A step over BFLOAT16 weights and moments, and FP32 master weights. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void adam() {
        repeat(this::stepOnce);
    }

    /** The same elements as 66 ranges, in one call. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void adamRanges() {
        repeat(this::stepRanges);
    }

    /** A norm divided by the loss scale. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void lossScaleClip() {
        repeat(this::clip);
    }

    /** The end of a step under loss scaling. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void lossScaleUpdate() {
        repeat(this::update);
    }

    /** Histories of 400 quantizers, restored after a skipped step. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void lossScaleRestore() {
        repeat(this::restore);
    }
}
