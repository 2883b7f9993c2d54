package dev.chagres.trainer;

import dev.chagres.io.RecipeDifferences;
import dev.chagres.recipe.CastStatistics;
import dev.chagres.trainer.callback.Evaluation;
import java.nio.file.Path;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * The files that a run writes: report and picture, each only where it was asked for. Both are opened before the training, so
 * that a place that cannot be written is told at once, and appear under their names only when they are whole. Where no step
 * was made, nothing appears, and older files of those names stay.
 *
 * <p>Threading: one thread at a time.
 */
final class RunFiles implements AutoCloseable {
    private final @Nullable LossPlot plot;
    private final @Nullable ReportWriter report;
    private int steps;

    /**
     * Opens what was asked for.
     *
     * @throws TrainingException when no picture can be drawn on this machine
     * @throws java.io.UncheckedIOException when a file cannot be written, or another run writes it
     */
    RunFiles(@Nullable Path reportFile, @Nullable Path plotFile) {
        plot = plotFile == null ? null : new LossPlot("--plot", plotFile);
        try {
            report = reportFile == null ? null : new ReportWriter(reportFile);
        } catch (RuntimeException e) {
            if (plot != null) {
                plot.close();
            }
            throw e;
        }
    }

    /** Writes what is known before the first step, with what was not loaded. */
    void begin(RunText.RunDescription run, RecipeDifferences differences) {
        if (report != null) {
            report.begin(run, differences);
        }
    }

    /** Writes a step. */
    void add(StepMetrics step, List<CastStatistics> casts) {
        if (report != null) {
            report.step(step, casts);
        }
        steps++;
    }

    /** Writes an evaluation. */
    void add(Evaluation.Result result) {
        if (report != null) {
            report.evaluation(result);
        }
    }

    /** Writes what was counted while the data were read. */
    void addCounted(TrainingData data) {
        if (report != null) {
            report.counted(data);
        }
    }

    /** Gives the report its name. */
    void publishReport() {
        if (report != null && steps > 0) {
            report.finish();
        }
    }

    /** Draws the picture. */
    void draw(String title, LossCurve losses) {
        if (plot != null && steps > 0) {
            plot.write(title, losses);
        }
    }

    /** Says in the text of a failure where the steps before it are. */
    RuntimeException named(RuntimeException e) {
        return report == null || steps == 0
                ? e
                : new TrainingException(
                        e.getMessage() + " (the " + steps + " steps before are in " + report.written() + ")", e);
    }

    /** Closes both: a report that was not published keeps its {@code .part} name where it holds a step. */
    @Override
    public void close() {
        if (report != null) {
            if (steps == 0) {
                report.discard();
            }
            report.close();
        }
        if (plot != null) {
            plot.close();
        }
    }
}
