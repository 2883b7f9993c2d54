package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.ops.AdafactorMatrices;
import dev.chagres.ops.AdafactorMatrix;
import dev.chagres.ops.AdafactorRange;
import dev.chagres.ops.AdafactorRanges;
import dev.chagres.ops.AdafactorStep;
import dev.chagres.ops.OptimizerStep;
import dev.chagres.ops.OptimizerStep.Method;
import dev.chagres.ops.StepRange;
import dev.chagres.ops.StepRanges;
import dev.chagres.ops.StepState;
import dev.chagres.te.MultiTensor.BiasCorrection;
import dev.chagres.te.MultiTensor.WeightDecay;
import java.util.List;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.OperationsPerInvocation;

/** What do steps of optimizers beside Adam cost over a layer's parameters of BFLOAT16 with FP32 masters, and those with states of eight bits? */
@NullUnmarked
public class OptimizerStepBenchmark extends OperationBenchmark {
    private static final float RATE = 1e-3f;
    private static final float GRADIENT = 1;

    /** A method with states of its own; gradient, weights and masters are shared. */
    private record Steps(OptimizerStep method, StepRanges ranges) {}

    private Tensor gradient;
    private Tensor weight;
    private Tensor master;
    private Tensor rate;
    private Tensor rates;
    private Tensor one;
    private Tensor step;
    private Tensor skip;
    private Tensor sums;
    private Tensor shares;
    private Steps sgd;
    private Steps lion;
    private Steps lionOfEightBits;
    private Steps adamOfEightBits;
    private Steps scheduleFree;
    private Steps average;
    private StepState averages;
    private AdafactorStep adafactor;
    private AdafactorMatrices matrices;
    private AdafactorRanges parts;

    /** For JMH. */
    public OptimizerStepBenchmark() {}

    @Override
    void prepare() {
        long count = 4 * shape.hidden() * shape.hidden() + 2 * shape.hidden() * shape.inner();
        gradient = filled(DType.FLOAT32, GRADIENT, count);
        weight = zeros(DType.BFLOAT16, count);
        master = zeros(DType.FLOAT32, count);
        rate = number(RATE);
        rates = number(RATE);
        one = number(1);
        step = ints(1);
        skip = zeros(DType.INT32, 1);
        sums = scope.tensor(DType.FLOAT32, 1, 2);
        sums.zero(stream);
        shares = zeros(DType.FLOAT32, 1);
        sgd = of(Method.SGD, numbers(count), null);
        lion = of(Method.LION, numbers(count), null);
        lionOfEightBits = of(Method.LION, codes(count), null);
        adamOfEightBits = of(Method.ADAM, codes(count), codes(count));
        scheduleFree = of(Method.SCHEDULE_FREE, numbers(count), numbers(count));
        // Each moves a weight of 0 by the rate: the gradient is 1, the state 0, and this the first step.
        for (Steps each : List.of(sgd, lion, lionOfEightBits, adamOfEightBits)) {
            master.zero(stream);
            run(each);
            near(each.method.method().toString(), -RATE, at(master, count / 2), RATE / 50);
        }
        share();
        near("share", 1, at(shares, 0), 1e-6);
        master.zero(stream);
        run(scheduleFree);
        near("average", -RATE, at(master, count / 2), RATE / 50);
        averages = numbers(count);
        average = of(Method.AVERAGE, averages, null);
        run(average);
        near("average of weights", -RATE / 10, at(averages.values(), count / 2), RATE / 500);
        prepareAdafactor(count);
        master.zero(stream);
        stepOfAdafactor();
        near("adafactor", -RATE, at(master, count / 2), RATE / 50);
    }

    /** All weights as one matrix: where each gradient is 1, updates are 1. */
    private void prepareAdafactor(long count) {
        long columns = shape.hidden();
        long rows = count / columns;
        AdafactorMatrix matrix = new AdafactorMatrix(
                scope.tensor(DType.FLOAT32, 2, rows),
                zeros(DType.FLOAT32, columns),
                zeros(DType.FLOAT32, rows),
                zeros(DType.FLOAT32, rows),
                zeros(DType.FLOAT32, columns),
                zeros(DType.FLOAT32, 3),
                rate);
        AdafactorRange.Place place = new AdafactorRange.Place(0, columns, null, null);
        AdafactorRange range = new AdafactorRange(matrix, place, gradient, weight, master, null, 0);
        adafactor = new AdafactorStep(0.8f, 1e-30f, 1e-3f, 1, 0, AdafactorStep.Rate.GIVEN, AdafactorStep.Scale.NONE);
        matrices = AdafactorMatrices.of(List.of(matrix), scope);
        parts = AdafactorRanges.of(List.of(range), scope);
    }

    private void stepOfAdafactor() {
        adafactor.sums(parts, step, one, skip, stream);
        adafactor.factors(matrices, step, one, skip, stream);
        adafactor.updates(parts, step, one, skip, stream);
        adafactor.clip(matrices, step, one, skip, stream);
        adafactor.step(parts, step, one, skip, stream);
    }

    private StepState numbers(long count) {
        return StepState.of(zeros(DType.FLOAT32, count));
    }

    private StepState codes(long count) {
        return new StepState(
                zeros(DType.BYTE, count), zeros(DType.FLOAT32, Math.ceilDiv(count, (long) StepState.BLOCK)));
    }

    private Steps of(Method method, StepState first, StepState second) {
        Tensor share = method == Method.SCHEDULE_FREE ? shares : null;
        StepRange range = new StepRange(gradient, weight, master, first, second, rate, share, 0);
        return new Steps(
                new OptimizerStep(method, 0.9f, 0.99f, 1e-8f, WeightDecay.DECOUPLED, BiasCorrection.YES),
                StepRanges.of(List.of(range), scope));
    }

    private Tensor number(float value) {
        Tensor tensor = empty(DType.FLOAT32, 1);
        tensor.set(stream, value);
        return tensor;
    }

    private void run(Steps steps) {
        steps.method.step(steps.ranges, step, one, skip, stream);
    }

    private void share() {
        OptimizerStep.averageShare(rates, step, skip, sums, shares, 0, 2, stream);
    }

    /** SGD with momentum. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void sgd() {
        repeat(() -> run(sgd));
    }

    /** Lion with a mean of FP32. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void lion() {
        repeat(() -> run(lion));
    }

    /** Lion with a mean of eight bits. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void lionOfEightBits() {
        repeat(() -> run(lionOfEightBits));
    }

    /** Adam with moments of eight bits. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void adamOfEightBits() {
        repeat(() -> run(adamOfEightBits));
    }

    /** Schedule-free AdamW. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void scheduleFree() {
        repeat(() -> run(scheduleFree));
    }

    /** A moving average of the masters. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void averageOfWeights() {
        repeat(() -> run(average));
    }

    /** Adafactor without a mean of updates. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void adafactor() {
        repeat(this::stepOfAdafactor);
    }

    /** The share of a step in its averages. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void averageShare() {
        repeat(this::share);
    }
}
