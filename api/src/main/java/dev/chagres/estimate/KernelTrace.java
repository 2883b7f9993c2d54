package dev.chagres.estimate;

import dev.chagres.bindings.Cupti;
import dev.chagres.bindings.NativeLibraries;
import dev.chagres.bindings.OpsException;
import dev.chagres.bindings.Provider;
import dev.chagres.internal.Checks;
import dev.chagres.ops.ActivityRecord;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.PassObserver;
import dev.chagres.pass.ProfilerRanges;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.jspecify.annotations.Nullable;

/**
 * Records which kernels the GPUs of this process run, by name, and the layers that enqueued them: NVIDIA's CUPTI tells it. Where CUPTI is absent,
 * and on the reference, ranges of host time are recorded alone; the reference computes within them.
 *
 * {@snippet file="dev/chagres/estimate/KernelTraceTest.java" region="kernels"}
 *
 * <p>One recording at a time. It makes garbage, and calls into CUPTI take time: steps are a few per cent slower meanwhile.
 *
 * <p>Threading: one thread at a time; {@link #observer} is for the thread of the pass.
 *
 * <p>Source: {@link ActivityRecord}; CUPTI's activity API.
 */
public final class KernelTrace implements AutoCloseable {
    /** Who tells the times. */
    public enum Source {
        /** CUPTI: kernels by name. */
        CUPTI,
        /** The host's clock: ranges alone. */
        HOST
    }

    private final Source source;
    private final String reason;
    private final ActivityRecord.Recorder recorder;
    /** What is added to {@link System#nanoTime} for the clock of the records. */
    private final long toRecords;

    private final List<Observer> observers = new ArrayList<>();
    private volatile @Nullable KernelTimes times;

    private KernelTrace(Source source, String reason, ActivityRecord.Recorder recorder) {
        this.source = source;
        this.reason = reason;
        this.recorder = recorder;
        toRecords = recorder.began() - System.nanoTime();
    }

    /**
     * Begins to record.
     *
     * @throws IllegalStateException when another recording runs; where another profiler listens, ranges are recorded alone
     * @throws dev.chagres.bindings.MissingLibraryException when the provider's libraries cannot be opened
     */
    public static KernelTrace begin() {
        NativeLibraries.ensureLoaded();
        if (Provider.current() == Provider.REFERENCE) {
            return begin(Source.HOST, "", "the reference computes on the host, whose times these are");
        }
        Optional<Path> cupti = Cupti.find();
        if (cupti.isEmpty()) {
            return begin(Source.HOST, "", "no kernels by name, since CUPTI was not found: " + Cupti.remedy());
        }
        try {
            return begin(Source.CUPTI, cupti.get().toString(), "kernels as CUPTI tells them");
        } catch (OpsException refused) { // such as another profiler that listens already
            return begin(Source.HOST, "", "no kernels by name, since CUPTI refused: " + refused.getMessage());
        }
    }

    private static KernelTrace begin(Source source, String library, String reason) {
        return new KernelTrace(source, reason, ActivityRecord.Recorder.begin(library));
    }

    /** Returns an observer for passes of one thread, whose layers become ranges; {@code pass.forget} it before it is closed. */
    public Observer observer() {
        Observer made = new Observer(this);
        synchronized (observers) {
            if (isRecording()) {
                observers.add(made);
            }
        }
        return made;
    }

    /** Returns whether this records still. */
    public boolean isRecording() {
        return times == null;
    }

    /**
     * Ends the recording, and returns what was recorded. Work that devices have not done by now is not: wait for them before. A second call
     * returns the same.
     */
    public KernelTimes end() {
        KernelTimes present = times;
        if (present != null) {
            return present;
        }
        ActivityRecord.Recording recorded = recorder.end();
        synchronized (observers) {
            KernelTimes made = new KernelTimes(
                    source,
                    reason,
                    recorded,
                    observers.stream().flatMap(each -> each.memory.stream()).toList());
            times = made;
            observers.forEach(each -> each.memory.clear());
            observers.clear();
            return made;
        }
    }

    /** Ends the recording. A second call does nothing. */
    @Override
    public void close() {
        end();
    }

    @Override
    public String toString() {
        return "KernelTrace(" + source + ", " + (isRecording() ? "recording" : String.valueOf(times)) + ")";
    }

    /**
     * Makes the calls of layers ranges, and looks how much memory their pass holds.
     *
     * <p>Threading: the device's thread.
     */
    public static final class Observer implements PassObserver, AutoCloseable {
        private final KernelTrace trace;
        private final ProfilerRanges ranges = new ProfilerRanges();
        private final List<KernelTimes.Memory> memory = new ArrayList<>();

        private Observer(KernelTrace trace) {
            this.trace = trace;
        }

        /**
         * {@inheritDoc}
         *
         * @throws IllegalStateException when this is closed
         */
        @Override
        public void entering(Layer layer, Direction direction, Pass pass) {
            ranges.entering(layer, direction, pass);
            look(pass);
        }

        @Override
        public void left(Layer layer, Direction direction, Pass pass, long keptBytes) {
            look(pass);
            ranges.left(layer, direction, pass, keptBytes);
        }

        @Override
        public void failed(Layer layer, Direction direction, Pass pass) {
            ranges.failed(layer, direction, pass);
        }

        private void look(Pass pass) {
            Checks.given("pass", pass);
            synchronized (trace.observers) {
                if (trace.isRecording()) {
                    memory.add(new KernelTimes.Memory(
                            pass.device().index(),
                            System.nanoTime() + trace.toRecords,
                            pass.scope().usedBytes()));
                }
            }
        }

        /** Returns how often it has looked while the trace recorded; 0 once that has ended. */
        int looks() {
            return memory.size();
        }

        /** Frees the names of layers. A second call does nothing. */
        @Override
        public void close() {
            ranges.close();
        }

        @Override
        public String toString() {
            return "KernelTrace.Observer(" + ranges + ")";
        }
    }
}
