package dev.chagres.jmh.states;

import java.util.ArrayList;
import java.util.List;
import java.util.function.Supplier;
import java.util.function.ToIntFunction;
import org.jspecify.annotations.Nullable;
import org.openjdk.jmh.results.AggregationPolicy;
import org.openjdk.jmh.results.Result;
import org.openjdk.jmh.results.ScalarResult;

/**
 * A thread that reads a GPU's clocks during an iteration.
 *
 * <p>Threading: begun and ended by one thread.
 */
final class ClockSampler {
    private static final long PERIOD_MILLIS = 20;

    private final Supplier<@Nullable Nvml> opener;
    private final List<Nvml.Sample> samples = new ArrayList<>();
    private @Nullable Thread thread;
    /** Why there are no samples; empty where nothing is wrong. */
    private String missing = "";

    /** {@code opener} gives null as long as no GPU is open. */
    ClockSampler(Supplier<@Nullable Nvml> opener) {
        this.opener = opener;
    }

    /** Begins to read. */
    void begin() {
        samples.clear();
        thread = Thread.ofPlatform().daemon().name("chagres-clocks").start(this::run);
    }

    private void run() {
        try {
            while (!Thread.currentThread().isInterrupted()) {
                sample();
                Thread.sleep(PERIOD_MILLIS);
            }
        } catch (InterruptedException _) {
            // The iteration has ended.
        }
    }

    /** Reads once; where that fails, never again. */
    void sample() {
        if (!missing.isEmpty()) {
            return;
        }
        try {
            Nvml nvml = opener.get();
            if (nvml != null) {
                samples.add(nvml.sample());
            }
        } catch (IllegalArgumentException | IllegalStateException absent) {
            missing = String.valueOf(absent.getMessage());
            System.out.println("device.clock and device.throttled are missing: " + missing);
        }
    }

    /** Ends the thread; returns what was read, nothing where nothing could be. */
    List<Result<?>> end() {
        Thread running = thread;
        thread = null;
        if (running != null) {
            running.interrupt();
            join(running);
        }
        if (samples.isEmpty()) {
            return List.of();
        }
        return List.of(
                new ScalarResult("device.clock", mean(Nvml.Sample::smMegahertz), "MHz", AggregationPolicy.AVG),
                new ScalarResult(
                        "device.clock.memory", mean(Nvml.Sample::memoryMegahertz), "MHz", AggregationPolicy.AVG),
                share("device.throttled", Nvml.THROTTLED),
                share("device.throttled.power", Nvml.POWER),
                share("device.throttled.heat", Nvml.HEAT));
    }

    private static void join(Thread running) {
        boolean interrupted = false;
        while (running.isAlive()) {
            try {
                running.join();
            } catch (InterruptedException _) {
                interrupted = true;
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    private double mean(ToIntFunction<Nvml.Sample> number) {
        return samples.stream().mapToInt(number).average().orElseThrow();
    }

    private ScalarResult share(String label, long reasons) {
        double with = samples.stream()
                .filter(sample -> (sample.reasons() & reasons) != 0)
                .count();
        return new ScalarResult(label, 100 * with / samples.size(), "%", AggregationPolicy.AVG);
    }
}
