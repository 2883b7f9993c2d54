package dev.chagres.optim;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Inside;
import dev.chagres.internal.Numbers;
import dev.chagres.internal.memory.StepWork;
import dev.chagres.parameter.State;
import dev.chagres.te.HostToDevice;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * The numbers that change from step to step, in one block on the device, where kernels read them: learning rate by group and
 * number of the step. The host counts steps, unless a loss scaler decides on the device which ones are taken.
 *
 * <p>Threading: the device's thread.
 */
final class StepScalars implements AutoCloseable {
    /** Of the optimizer's class. */
    private final String name;

    private final Scope scope;
    private final Arena arena = Arena.ofShared();
    /** The learning rates of all groups, then the number of the step. */
    private final MemorySegment host;

    private final MemorySegment hostRates;
    private final MemorySegment hostStep;
    private final Tensor block;
    final List<ParameterGroup> groups;
    /** The factor of each group on the rate, after the 1 for parameters without a group. */
    private final float[] factors;

    /** The learning rates of all groups, FLOAT32 [groups + 1]; the first is that of parameters without a group. */
    final Tensor rates;
    /** The number of the step, from 1 on, INT32 [1]. */
    final Tensor step;

    private int taken;
    /** The rate of the next step, or of a graph's next launch. */
    private float rate;
    /** Whether the rate was set since the last step. */
    private boolean rateIsSet;
    /** Whether it was set apart from a step since the last one. */
    private boolean chosen;

    /** Whether the device counts: {@link #step} then holds the number of steps taken. */
    private boolean deviceCounts;

    private final StepWork countOnHost = new CountOnHost();
    private final StepWork countOnDevice = new CountOnDevice();
    private boolean closed;
    /** Whether the weights are those of an evaluation. */
    private boolean evaluating;
    /** FLOAT32 [groups, 2]: the sum of weights and the highest rate, which an average of steps needs; else null. */
    private @Nullable Tensor averages;

    StepScalars(String name, Scope scope, List<ParameterGroup> groups) {
        this.name = name;
        this.scope = scope;
        this.groups = groups;
        factors = new float[groups.size() + 1];
        factors[0] = 1;
        for (int i = 0; i < groups.size(); i++) {
            factors[i + 1] = groups.get(i).rateFactor();
        }
        host = arena.allocate(ValueLayout.JAVA_INT, factors.length + 1L);
        hostRates = host.asSlice(0, Float.BYTES * (long) factors.length);
        hostStep = host.asSlice(hostRates.byteSize());
        block = scope.tensor(DType.FLOAT32, factors.length + 1L);
        rates = scope.view(block, 0, factors.length);
        step = scope.reinterpret(block, DType.INT32, factors.length, 1);
    }

    boolean isClosed() {
        return closed;
    }

    /** Throws an {@link IllegalArgumentException} for an invalid rate, by itself or times the factor of a group. */
    void checkRate(float newRate) {
        Numbers.notNegative("rate", newRate);
        for (int i = 1; i < factors.length; i++) {
            if (Float.isInfinite(newRate * factors[i])) {
                throw new IllegalArgumentException(
                        "rate: expected a number that stays finite times the factor of each group,"
                                + " got " + newRate + ", and " + factors[i] + " of group "
                                + groups.get(i - 1).name());
            }
        }
    }

    /** Sets the rate of the steps that graphs take from now on, and of the next one however it is made. */
    void choose(float newRate) {
        rate(newRate);
        chosen = true;
    }

    private void rate(float newRate) {
        rate = newRate;
        rateIsSet = true;
    }

    /** Checks that a step has the rate that was chosen for it: enqueued and replayed steps would have different ones otherwise. */
    void ensureChosen(float newRate) {
        if (chosen && newRate != rate) {
            throw new IllegalStateException("rate: expected " + rate + ", which " + name
                    + ".rate(rate) has set for this step, got " + newRate + "; give both the same");
        }
    }

    /** Enqueues rate and number of the next step, which is never skipped; in a capture, before each launch. */
    void next(float newRate) {
        rate(newRate);
        Inside.eachStep(scope.stream(), countOnHost);
    }

    /** Enqueues the rate of the next step, which {@code scaler} may skip on the device. */
    void next(float newRate, LossScaler scaler, Tensor skip) {
        rate(newRate);
        Inside.eachStep(scope.stream(), countOnDevice);
        scaler.update(skip, step);
    }

    /** Allocates and zeroes what an average of steps needs, and saves it with the number of steps. */
    Tensor keepAverages() {
        Tensor made = scope.tensor(DType.FLOAT32, factors.length, 2);
        made.zero(scope.stream());
        averages = made;
        return made;
    }

    /** Adds what is saved beside the number of steps. */
    void addTo(State.Builder state) {
        if (averages != null) {
            state.tensor("optimizer.averages", averages, State.Values.NOT_NEGATIVE);
        }
    }

    /** Says whether the weights are those of an evaluation, at which no step can begin. */
    void evaluate(boolean isEvaluating) {
        evaluating = isEvaluating;
    }

    boolean isEvaluating() {
        return evaluating;
    }

    void ensureTraining() {
        if (evaluating) {
            throw new IllegalStateException(
                    name + ": expected the weights of training, got those of an evaluation; call " + name
                            + ".endEvaluation() first");
        }
    }

    private void ensureOpen() {
        ensureTraining();
        if (closed) {
            throw new IllegalStateException(
                    name + ": closed since the capture, so that nothing writes the learning rate and step number;"
                            + " launch the graph before " + name + ".close(), or capture a step of another optimizer");
        }
    }

    private void ensureRateIsSet() {
        if (!rateIsSet) {
            throw new IllegalStateException(
                    "rate: expected " + name + ".rate(rate) before each step that is replayed, got none"
                            + " since the last step; a replay does not run the code that calls " + name
                            + ".step(rate, …), so call"
                            + " optimizer.rate(rate) before StepGraph.step(), also if the rate is constant");
        }
    }

    /** A step that the host counts. */
    private final class CountOnHost implements StepWork {
        @Override
        public void check() {
            ensureOpen();
        }

        @Override
        public void write() {
            taken = taken();
            deviceCounts = false;
            if (taken == Integer.MAX_VALUE) {
                throw new IllegalStateException(name + ": expected at most " + taken
                        + " steps, as many as an INT32 counts," + " got another; make a new one");
            }
        }

        @Override
        public long byteSize() {
            return host.byteSize();
        }

        @Override
        public long address() {
            return block.address();
        }

        @Override
        public MemorySegment numbers() {
            setRates();
            hostStep.set(ValueLayout.JAVA_INT, 0, taken + 1);
            return host;
        }

        @Override
        public void checkSet() {
            ensureRateIsSet();
        }

        @Override
        public void count() {
            taken++;
            rateIsSet = false;
            chosen = false;
        }
    }

    /** A step that the device counts unless it is skipped; before the first one it gets the number of steps so far. */
    private final class CountOnDevice implements StepWork {
        @Override
        public void check() {
            ensureOpen();
        }

        @Override
        public void write() {
            if (!deviceCounts) {
                hostStep.set(ValueLayout.JAVA_INT, 0, taken);
                HostToDevice.copyHostToDeviceViaKernel(hostStep, step, scope.stream());
            }
        }

        @Override
        public long byteSize() {
            return hostRates.byteSize();
        }

        @Override
        public long address() {
            return rates.address();
        }

        @Override
        public MemorySegment numbers() {
            setRates();
            return hostRates;
        }

        @Override
        public void checkSet() {
            ensureRateIsSet();
        }

        @Override
        public void count() {
            deviceCounts = true;
            rateIsSet = false;
            chosen = false;
        }
    }

    private void setRates() {
        for (int i = 0; i < factors.length; i++) {
            host.setAtIndex(ValueLayout.JAVA_FLOAT, i, rate * factors[i]);
        }
    }

    /** Returns the number of steps taken; where the device counts, this waits for it. */
    int taken() {
        return deviceCounts ? step.toInts(scope.stream())[0] : taken;
    }

    /** Sets the number of steps taken. */
    void restore(long steps) {
        taken = Math.toIntExact(steps);
        deviceCounts = false;
    }

    /** Returns the learning rate of a group, FLOAT32 [1]. */
    Tensor rate(int group) {
        return scope.view(rates, group, 1);
    }

    @Override
    public void close() {
        if (!closed) {
            closed = true;
            arena.close();
        }
    }
}
