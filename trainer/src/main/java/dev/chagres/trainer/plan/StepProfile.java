package dev.chagres.trainer.plan;

import dev.chagres.estimate.KernelTimes;
import dev.chagres.estimate.KernelTrace;
import dev.chagres.trainer.Callback;
import dev.chagres.trainer.TrainingRun;
import java.io.IOException;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.Collectors;
import org.jspecify.annotations.Nullable;

/**
 * Records some steps of a run: which kernels its GPUs run, the layers that enqueue them, collectives that nothing hides, and the memory of passes. The
 * folder gets {@code kernels.txt}, {@code kernels.png}, {@code memory.png}, and {@code trace.json}, which https://ui.perfetto.dev opens.
 *
 * <p>Steps that a graph replays have kernels but no layers. The run waits before the first recorded step and behind the last one; its numbers stay the
 * same.
 *
 * <p>Threading: the thread that trains.
 */
public final class StepProfile implements Callback {
    /** Steps that are not recorded: the first ones build kernels and capture. */
    private static final int SKIPPED = 3;

    private final int steps;
    private final @Nullable Path folder;
    private final PrintStream out;
    /** After so many steps recording begins; 0 before that is known. */
    private int from;

    private int begun;
    private @Nullable KernelTrace trace;

    /**
     * Makes one.
     *
     * @param steps how many are recorded, behind three that are not
     * @param folder where the files go; is made if need be. Null where another process writes: this one comes to the same checkpoints
     * @param out is told the slowest kernels
     * @throws IllegalArgumentException when {@code steps} is below 1
     */
    public StepProfile(int steps, @Nullable Path folder, PrintStream out) {
        if (steps < 1) {
            throw new IllegalArgumentException("steps: expected at least 1, got " + steps);
        }
        this.steps = steps;
        this.folder = folder;
        this.out = out;
    }

    @Override
    public boolean isDue(int after) {
        if (from == 0) {
            from = after + SKIPPED - 1;
        }
        return after == from || after == from + steps;
    }

    /** A run that ends earlier tells of the steps until then. */
    @Override
    public boolean isDueAtEnd() {
        return trace != null;
    }

    /**
     * {@inheritDoc}
     *
     * @throws UncheckedIOException when the files cannot be written
     */
    @Override
    public void onCheckpoint(TrainingRun run) {
        if (folder == null) {
            return;
        }
        KernelTrace present = trace;
        if (present == null) {
            if (run.steps() == from) {
                begun = run.steps();
                trace = run.beginRecording();
            }
            return;
        }
        trace = null;
        KernelTimes times = run.endRecording(present);
        if (run.steps() > begun) {
            write(times, run.steps() - begun, folder);
        }
    }

    private void write(KernelTimes times, int recorded, Path to) {
        var report = new ProfileReport(times, recorded, to, out);
        try {
            List<Path> written = report.write();
            written.add(report.writeTrace());
            out.print(report.text());
            out.println("profile of " + recorded + (recorded == 1 ? " step" : " steps") + ": "
                    + written.stream().map(Path::toString).collect(Collectors.joining(", ")));
        } catch (IOException e) {
            throw new UncheckedIOException("profile: " + e, e);
        }
    }

    /** A run that has failed leaves no recording behind. */
    @Override
    public void onEnd(TrainingRun run) {
        if (trace != null) {
            trace.close();
            trace = null;
        }
    }
}
