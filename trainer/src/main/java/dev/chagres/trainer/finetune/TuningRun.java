package dev.chagres.trainer.finetune;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.TrainedModel;
import dev.chagres.bindings.Provider;
import dev.chagres.checkpoint.RunState;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.LearningRateSchedule;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.trainer.Callback;
import dev.chagres.trainer.StepMetrics;
import dev.chagres.trainer.Trainer;
import dev.chagres.trainer.callback.Evaluation;
import java.io.IOException;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Locale;

/**
 * Trains, keeps the best evaluated state in a file, and writes a folder of it.
 *
 * <p>Threading: one thread at a time.
 */
final class TuningRun implements AutoCloseable {
    private final Tuned tuned;
    private final TuningOptions options;
    private final PrintStream out;
    private final Path state;

    TuningRun(Tuned tuned, TuningOptions options, PrintStream out) {
        this.tuned = tuned;
        this.options = options;
        this.out = out;
        try {
            state = Files.createTempFile("chagres-finetune-", ".safetensors");
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }

    private static DType dtype() {
        return Provider.current() == Provider.CUDA ? DType.BFLOAT16 : DType.FLOAT32;
    }

    /**
     * Trains on all ranks.
     *
     * @throws DataException when no evaluation has given a number
     */
    void train() throws InterruptedException {
        BatchShape shape = tuned.shape();
        int steps = TuningOptions.steps(tuned.training().get(), shape);
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
                .withStart(tuned::begin);
        trainer = options.graph == TuningOptions.Graph.ON ? trainer.withCapturedSteps() : trainer;
        var held = tuned.held().orElse(null);
        if (held == null) {
            trainer.withSave(state, 0)
                    .withCallback(Callback.eachStep(step -> tell(step, between, steps)))
                    .train(tuned.training(), steps);
            out.println("saved: step " + steps);
            return;
        }
        BestModel best = new BestModel(state, options.metric, options.patience, predictions, out);
        trainer.withEvaluation(
                        Evaluation.of(held, TuningOptions.evaluated(shape)).withEvery(between))
                .withCallback(best)
                .train(tuned.training(), steps);
        String text = best.best();
        if (text == null) {
            throw new DataException("no evaluation has given a number; lower --learning-rate");
        }
        out.println("saved: " + text);
    }

    private void tell(StepMetrics step, int between, int steps) {
        if (step.step() % between == 0 || step.step() == steps) {
            out.printf(Locale.ROOT, "step %d: loss %.4f%n", step.step(), step.loss());
        }
    }

    /** Writes the folder on one device, from the best state. */
    void write(Path folder) {
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

    /** Deletes the best state. */
    @Override
    public void close() {
        try {
            Files.deleteIfExists(state);
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }
}
