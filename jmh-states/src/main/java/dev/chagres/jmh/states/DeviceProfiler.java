package dev.chagres.jmh.states;

import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.atomic.DoubleAdder;
import java.util.concurrent.atomic.LongAdder;
import org.jspecify.annotations.Nullable;
import org.openjdk.jmh.infra.BenchmarkParams;
import org.openjdk.jmh.infra.IterationParams;
import org.openjdk.jmh.profile.InternalProfiler;
import org.openjdk.jmh.results.AggregationPolicy;
import org.openjdk.jmh.results.IterationResult;
import org.openjdk.jmh.results.Result;
import org.openjdk.jmh.results.ScalarResult;

/**
 * JMH's {@code -prof dev.chagres.jmh.states.DeviceProfiler}: of the work that a benchmark gives to {@link BenchmarkDevice#deviceMillis},
 * the device's time of a call ({@code device.time}), how many calls there were in an iteration, and the most bytes of device memory held; the
 * kernels and copies that {@link BenchmarkDevice#countNodes} has counted; and on a GPU, read from NVML every 20 ms, the mean clocks and the share of
 * readings in which power or heat held them down.
 *
 * <p>Threading: thread-safe; benchmarks of several threads add to the same sums.
 */
public final class DeviceProfiler implements InternalProfiler {
    private static final DoubleAdder MILLIS = new DoubleAdder();
    private static final LongAdder CALLS = new LongAdder();
    private static final AtomicLong PEAK = new AtomicLong();
    private static final AtomicLong NODES = new AtomicLong();
    private static final AtomicReference<@Nullable String> BUS_ID = new AtomicReference<>();

    private final ClockSampler clocks = new ClockSampler(this::nvml);
    private @Nullable Nvml nvml;

    /** For JMH. */
    public DeviceProfiler() {}

    /** Says where the GPU is that a benchmark has opened. */
    static void opened(String pciBusId) {
        BUS_ID.set(pciBusId);
    }

    static void counted(long nodes) {
        NODES.set(nodes);
    }

    /** Opens NVML when a benchmark has opened a GPU; it stays open until the process ends. */
    private @Nullable Nvml nvml() {
        String busId = BUS_ID.get();
        if (nvml == null && busId != null) {
            nvml = Nvml.open(busId);
        }
        return nvml;
    }

    static void add(float millis, long peakBytes) {
        MILLIS.add(millis);
        CALLS.increment();
        PEAK.accumulateAndGet(peakBytes, Math::max);
    }

    @Override
    public String getDescription() {
        return "The device's time by CUDA's events, and its memory, of work given to BenchmarkDevice.deviceMillis; clocks and"
                + " throttling by NVML";
    }

    @Override
    public void beforeIteration(BenchmarkParams benchmark, IterationParams iteration) {
        MILLIS.reset();
        CALLS.reset();
        clocks.begin();
    }

    @Override
    public Collection<? extends Result<?>> afterIteration(
            BenchmarkParams benchmark, IterationParams iteration, IterationResult result) {
        List<Result<?>> results = new ArrayList<>(clocks.end());
        long calls = CALLS.sum();
        if (calls != 0) {
            double micros = MILLIS.sum() / calls * 1000;
            results.add(new ScalarResult("device.time", micros, "us/call", AggregationPolicy.AVG));
            results.add(new ScalarResult("device.calls", calls, "calls", AggregationPolicy.SUM));
            results.add(new ScalarResult("device.memory", PEAK.get(), "bytes", AggregationPolicy.MAX));
        }
        if (NODES.get() != 0) {
            results.add(new ScalarResult("device.nodes", NODES.get(), "nodes/call", AggregationPolicy.AVG));
        }
        return results;
    }
}
