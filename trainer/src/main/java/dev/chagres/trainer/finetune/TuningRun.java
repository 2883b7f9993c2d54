package dev.chagres.trainer.finetune;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.TrainedModel;
import dev.chagres.bindings.ForeignText;
import dev.chagres.bindings.Provider;
import dev.chagres.checkpoint.RunState;
import dev.chagres.io.SafetensorsFile;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.LearningRateSchedule;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.trainer.Callback;
import dev.chagres.trainer.StepMetrics;
import dev.chagres.trainer.Trainer;
import dev.chagres.trainer.TrainingRun;
import dev.chagres.trainer.callback.Checkpoints;
import dev.chagres.trainer.callback.Evaluation;
import dev.chagres.trainer.command.EnumOption;
import dev.chagres.trainer.command.Interruption;
import dev.chagres.trainer.command.ProgressLine;
import java.io.IOException;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Locale;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * Trains, keeps the best evaluated state in a file, and writes a folder of it, however the run ends.
 *
 * <p>Threading: one thread at a time.
 */
final class TuningRun {
    private static final String DATA = "finetune.data";

    /** What becomes of the state of an earlier run, which was killed. */
    enum Earlier {
        REFUSED,
        RESUMED
    }

    private final Tuned tuned;
    private final TuningOptions options;
    private final Path folder;
    private final Path state;
    private final Interruption interruption;
    private final PrintStream out;
    private final PrintStream err;

    /**
     * Prepares a run.
     *
     * @param folder that it writes; the state lies beside it until then
     */
    TuningRun(
            Tuned tuned,
            TuningOptions options,
            Path folder,
            Interruption interruption,
            PrintStream out,
            PrintStream err) {
        this.tuned = tuned;
        this.options = options;
        this.folder = folder;
        this.interruption = interruption;
        this.out = out;
        this.err = err;
        state = folder.resolveSibling(folder.getFileName() + ".best.safetensors");
    }

    private static DType dtype() {
        return Provider.current() == Provider.CUDA ? DType.BFLOAT16 : DType.FLOAT32;
    }

    /** Keeps a state in the file, the best or the last one. */
    interface Keeper extends Callback {
        /** Returns what is told of it; null before the first. */
        @Nullable
        String told();
    }

    /**
     * Trains on all ranks, and writes the folder.
     *
     * @throws DataException when no evaluation has given a number, or the state of an earlier run is refused
     * @throws IOException when the folder that it lies in cannot be made
     * @throws UncheckedIOException when nothing can be written there, or another run does
     */
    void train(Earlier earlier) throws IOException, InterruptedException {
        try (Checkpoints claimed = Checkpoints.file(state)) {
            Files.createDirectories(state.toAbsolutePath().getParent());
            claimed.claim();
            trainAlone(earlier);
        }
    }

    private void trainAlone(Earlier earlier) throws InterruptedException {
        BatchShape shape = tuned.shape();
        TuningOptions.Packed packed = TuningOptions.packed(tuned.training().get(), shape);
        int steps = packed.steps();
        String data = "--metric " + EnumOption.word(options.metric) + ", " + packed;
        Map<String, String> before = earlier(earlier, data);
        out.println(tuned.told() + "; " + steps + " steps");
        Float given = options.learningRate;
        float rate = given == null ? tuned.rate() : given;
        int warmUp = Math.max(1, steps / 20);
        int between = options.every == 0 ? Math.max(1, steps / options.epochs) : options.every;
        Predictions predictions = tuned.predictions().orElse(null);
        Trainer trainer = Trainer.of(
                        predictions == null ? tuned.factory() : predictions.counting(tuned.factory()), shape)
                .withDtype(dtype())
                .withSeed(options.seed)
                .withRanks(options.ranks)
                .withOptimizer(new AdamW.Config(0.9f, 0.999f, 1e-8f, 0.01f), 1)
                .withSchedule(new LearningRateSchedule(
                        rate, warmUp, Math.max(warmUp, steps), LearningRateSchedule.Decay.LINEAR, 0))
                .withText(DATA, data)
                .withStart(tuned::begin);
        trainer = options.graph == TuningOptions.Graph.ON ? trainer.withCapturedSteps() : trainer;
        var held = tuned.held().orElse(null);
        Keeper kept;
        if (held == null) {
            kept = new LastState(state, between, steps, out);
        } else {
            kept = new BestModel(state, options.metric, options.patience, predictions, out);
            trainer = trainer.withEvaluation(
                    Evaluation.of(held, TuningOptions.evaluated(shape)).withEvery(between));
        }
        if (!before.isEmpty()) {
            kept.onResume(before);
            trainer = trainer.withResume(state);
        }
        try (var progress = new ProgressLine(err)) {
            trainer.withCallback(new Told(progress, err, steps))
                    .withCallback(kept)
                    .withCallback(new Stop(interruption))
                    .train(tuned.training(), steps);
        } catch (RuntimeException failure) {
            try {
                end(kept.told(), earlier == Earlier.RESUMED);
            } catch (RuntimeException second) {
                failure.addSuppressed(second);
            }
            throw failure;
        }
        String told = kept.told();
        if (told == null) {
            throw new DataException(
                    interruption.isInterrupted()
                            ? "was interrupted before the first evaluation; nothing is saved"
                            : "no evaluation has given a number; lower --learning-rate");
        }
        end(told, earlier == Earlier.RESUMED && interruption.isInterrupted());
    }

    /** Ends the run when Ctrl-C comes. */
    private record Stop(Interruption interruption) implements Callback {
        @Override
        public void onStart(TrainingRun run) {
            interruption.onInterrupt(run::stop);
        }
    }

    /**
     * Says how far the run is, the first step at once.
     *
     * <p>Threading: confined to the thread that trains.
     */
    private static final class Told implements Callback {
        private final ProgressLine line;
        private final PrintStream err;
        private final int steps;
        private boolean begun;

        Told(ProgressLine line, PrintStream err, int steps) {
            this.line = line;
            this.err = err;
            this.steps = steps;
        }

        @Override
        public void onStep(TrainingRun run, StepMetrics step) {
            if (begun) {
                line.at(() -> text(step));
            } else {
                begun = true;
                err.println(text(step));
            }
        }

        private String text(StepMetrics step) {
            return String.format(
                    Locale.ROOT,
                    "step %d/%d  loss %.4f  %,.0f tokens/s",
                    step.step(),
                    steps,
                    step.loss(),
                    step.tokensPerSecond());
        }

        @Override
        public void onEvaluation(TrainingRun run, Evaluation.Result result) {
            line.close();
        }
    }

    /** Returns what an earlier run has written into its state; nothing where there is none. */
    private Map<String, String> earlier(Earlier earlier, String data) {
        if (!Files.exists(state)) {
            return Map.of();
        }
        if (earlier == Earlier.REFUSED) {
            throw new DataException("--save: expected no state of an earlier run, got " + state
                    + "; go on from it by --resume-saved, or remove it");
        }
        Map<String, String> texts;
        try (SafetensorsFile file = SafetensorsFile.open(state)) {
            texts = file.metadata();
        }
        String theirs = texts.getOrDefault(DATA, "none");
        if (!theirs.equals(data)) {
            throw new DataException("--resume-saved: expected " + state + " of the same data and options, " + data
                    + ", got that of " + ForeignText.plain(theirs) + "; remove it to begin anew");
        }
        out.println("goes on from " + state);
        return texts;
    }

    /** Writes the folder of the state that was kept, unless a later run shall go on from that. */
    private void end(@Nullable String told, boolean goesOn) {
        if (told == null) {
            return;
        }
        if (goesOn) {
            out.println("kept: " + told + ", in " + state);
            return;
        }
        write();
        try {
            Files.delete(state);
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
        out.println("saved: " + told);
    }

    /** Writes the folder on one device. */
    private void write() {
        try (Device device = Device.open();
                TrainedModel made = tuned.saved()
                        .make(
                                device,
                                new ModelPlan(),
                                plan -> Parameters.allocate(device, plan, dtype(), options.seed))) {
            RunState.of(made.parameters()).load(state);
            tuned.save(made, folder);
        }
    }

    /**
     * Saves the last state, of a run without evaluations.
     *
     * <p>Threading: confined to the thread that trains.
     */
    private static final class LastState implements Keeper {
        private static final String LAST = "finetune.last";

        private final Path file;
        private final int between;
        private final int steps;
        private final PrintStream out;
        private @Nullable String told;

        LastState(Path file, int between, int steps, PrintStream out) {
            this.file = file;
            this.between = between;
            this.steps = steps;
            this.out = out;
        }

        @Override
        public void onStep(TrainingRun run, StepMetrics step) {
            if (step.step() % between == 0 || step.step() == steps) {
                out.printf(Locale.ROOT, "step %d: loss %.4f%n", step.step(), step.loss());
            }
        }

        @Override
        public boolean isDue(int made) {
            return made % between == 0;
        }

        @Override
        public boolean isDueAtEnd() {
            return true;
        }

        @Override
        public void onCheckpoint(TrainingRun run) {
            told = "step " + run.steps();
            run.save(file, Map.of());
        }

        @Override
        public Map<String, String> texts() {
            return told == null ? Map.of() : Map.of(LAST, told);
        }

        @Override
        public void onResume(Map<String, String> texts) {
            told = texts.getOrDefault(LAST, told);
        }

        @Override
        public @Nullable String told() {
            return told;
        }
    }
}
