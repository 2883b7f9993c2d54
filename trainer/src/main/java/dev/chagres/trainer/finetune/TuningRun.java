package dev.chagres.trainer.finetune;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.TrainedModel;
import dev.chagres.bindings.Provider;
import dev.chagres.checkpoint.RunState;
import dev.chagres.models.esm.Esm2Classifier;
import dev.chagres.models.huggingface.Esm2Checkpoint;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.LearningRateSchedule;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.trainer.Trainer;
import dev.chagres.trainer.callback.Evaluation;
import java.io.IOException;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.function.BiConsumer;
import java.util.function.Consumer;

/**
 * Trains, keeps the best evaluated state in a file, and writes a folder of it.
 *
 * <p>Threading: one thread at a time.
 */
final class TuningRun implements AutoCloseable {
    private final Path model;
    private final TrainedModel.Factory factory;
    private final TaskLabels labels;
    private final TuningOptions options;
    private final PrintStream out;
    private final Path state;

    TuningRun(Path model, TrainedModel.Factory factory, TaskLabels labels, TuningOptions options, PrintStream out) {
        this.model = model;
        this.factory = factory;
        this.labels = labels;
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
     * @param usual highest learning rate where no option says it
     * @throws DataException when no evaluation has given a number
     */
    void train(LabelledSequences trained, LabelledSequences evaluated, BatchShape shape, int steps, float usual)
            throws InterruptedException {
        Float given = options.learningRate;
        float rate = given == null ? usual : given;
        int warmUp = Math.max(1, steps / 20);
        int between = options.every == 0 ? Math.max(1, steps / options.epochs) : options.every;
        Predictions predictions = labels.predictions();
        BestModel best = new BestModel(state, options.metric, options.patience, predictions, out);
        Trainer.of(predictions.counting(factory), shape)
                .withDtype(dtype())
                .withSeed(options.seed)
                .withRanks(options.ranks)
                .withOptimizer(new AdamW.Config(0.9f, 0.999f, 1e-8f, 0.01f), 1)
                .withSchedule(new LearningRateSchedule(
                        rate, warmUp, Math.max(warmUp, steps), LearningRateSchedule.Decay.LINEAR, 0))
                .withStart(weights -> Esm2Checkpoint.begin(weights, model))
                .withEvaluation(Evaluation.of(evaluated::once, TuningOptions.evaluated(shape))
                        .withEvery(between))
                .withCallback(best)
                .train(() -> trained.epochs(options.epochs, options.seed), steps);
        String text = best.best();
        if (text == null) {
            throw new DataException("no evaluation has given a number; lower --learning-rate");
        }
        out.println("saved: " + text);
    }

    /** Writes the folder on one device, from the best state; with the scale of the labels where they have one. */
    void write(Path folder, BiConsumer<Esm2Classifier, Path> save) {
        try (Device device = Device.open();
                TrainedModel made = factory.make(
                        device, new ModelPlan(), plan -> Parameters.allocate(device, plan, dtype(), options.seed))) {
            RunState.of(made.parameters()).load(state);
            Esm2Classifier classifier = (Esm2Classifier) made;
            if (labels.scale().equals(TargetScale.PLAIN)) {
                save.accept(classifier, folder);
            } else {
                writeScaled(folder, whole -> save.accept(classifier, whole));
            }
        }
    }

    /** All files appear at once: a model whose numbers have no scale would tell others. */
    private void writeScaled(Path folder, Consumer<Path> save) {
        Path whole = folder.resolveSibling(folder.getFileName() + ".part");
        try {
            save.accept(whole);
            labels.scale().write(whole);
            Files.move(whole, folder, StandardCopyOption.ATOMIC_MOVE);
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
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
