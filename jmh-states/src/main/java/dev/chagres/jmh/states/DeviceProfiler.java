package dev.chagres.jmh.states;

import java.util.Collection;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.DoubleAdder;
import java.util.concurrent.atomic.LongAdder;
import org.openjdk.jmh.infra.BenchmarkParams;
import org.openjdk.jmh.infra.IterationParams;
import org.openjdk.jmh.profile.InternalProfiler;
import org.openjdk.jmh.results.AggregationPolicy;
import org.openjdk.jmh.results.IterationResult;
import org.openjdk.jmh.results.Result;
import org.openjdk.jmh.results.ScalarResult;

/**
 * JMH's {@code -prof dev.chagres.jmh.states.DeviceProfiler}: of the work that a benchmark gives to {@link BenchmarkDevice#deviceMillis},
 * the device's time of a call ({@code device.time}), how many calls there were in an iteration, and the most bytes of device memory held.
 *
 * <p>Threading: thread-safe; benchmarks of several threads add to the same sums.
 */
public final class DeviceProfiler implements InternalProfiler {
    private static final DoubleAdder MILLIS = new DoubleAdder();
    private static final LongAdder CALLS = new LongAdder();
    private static final AtomicLong PEAK = new AtomicLong();

    /** For JMH. */
    public DeviceProfiler() {}

    static void add(float millis, long peakBytes) {
        MILLIS.add(millis);
        CALLS.increment();
        PEAK.accumulateAndGet(peakBytes, Math::max);
    }

    @Override
    public String getDescription() {
        return "The device's time by CUDA's events, and its memory, of work given to BenchmarkDevice.deviceMillis";
    }

    @Override
    public void beforeIteration(BenchmarkParams benchmark, IterationParams iteration) {
        MILLIS.reset();
        CALLS.reset();
    }

    @Override
    public Collection<? extends Result<?>> afterIteration(
            BenchmarkParams benchmark, IterationParams iteration, IterationResult result) {
        long calls = CALLS.sum();
        if (calls == 0) {
            return List.of();
        }
        double micros = MILLIS.sum() / calls * 1000;
        return List.of(
                new ScalarResult("device.time", micros, "us/call", AggregationPolicy.AVG),
                new ScalarResult("device.calls", calls, "calls", AggregationPolicy.SUM),
                new ScalarResult("device.memory", PEAK.get(), "bytes", AggregationPolicy.MAX));
    }
}
