package dev.chagres.trainer;

import dev.chagres.batch.Batch;
import dev.chagres.batch.DataPosition;
import dev.chagres.batch.StepResult;
import dev.chagres.checkpoint.CheckpointFolder;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.function.BooleanSupplier;
import java.util.function.DoubleSupplier;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;

/** Stands for a model in tests of the loop: its loss is a number made of the batch, and it notes what is called. */
final class FakeModel implements Training {
    final List<String> calls = new ArrayList<>();
    final List<Long> saved = new ArrayList<>();
    final List<Boolean> wishes = new ArrayList<>();
    boolean othersGoOn = true;
    boolean noting = true;
    boolean spoilStep3;
    boolean lossScaling;
    int overflowFrom = Integer.MAX_VALUE;
    Runnable onStep = () -> {};
    Runnable onUpload = () -> {};
    Runnable onSave = () -> {};
    Runnable onEvaluation = () -> {};
    DoubleSupplier evaluatedLoss = () -> 2;
    boolean whole = true;
    SaveProgress begun = SaveProgress.PUBLISHED;
    BooleanSupplier saving = () -> false;
    Supplier<SaveProgress> advanced = () -> SaveProgress.PUBLISHED;
    BooleanSupplier clock = () -> true;
    Runnable onWarmUp = () -> {};
    boolean closed;

    private int uploaded;
    private int stepped;
    private int read;
    private final double[] losses = new double[4];

    @Override
    public void warmUp(Batch example, BooleanSupplier stopped) {
        note("warmUp", example.microBatches());
        onWarmUp.run();
    }

    @Override
    public boolean agree(boolean goOn) {
        wishes.add(goOn);
        return goOn && othersGoOn;
    }

    @Override
    public void upload(Batch batch) {
        onUpload.run();
        note("upload", uploaded++);
        double sum = 0;
        for (int part = 0; part < batch.microBatches(); part++) {
            for (int i = 0; i < batch.microBatch(part).tokens(); i++) {
                sum += batch.microBatch(part).ids()[i];
            }
        }
        losses[uploaded % 4] = sum / batch.tokens();
    }

    @Override
    public void step(float learningRate) {
        note("step", stepped++);
        onStep.run();
    }

    @Override
    public boolean isWhole() {
        return whole;
    }

    /** Half of the labels are predicted. */
    @Override
    public ModelEvaluation.Sums evaluate(Batch batch) {
        onEvaluation.run();
        note("evaluate", stepped);
        double mean = evaluatedLoss.getAsDouble();
        return new ModelEvaluation.Sums(mean * batch.labelled(), batch.labelled() / 2);
    }

    @Override
    public void result(StepResult result) {
        note("result", read++);
        result.set(
                spoilStep3 && read == 3 ? Double.NaN : losses[read % 4],
                read >= overflowFrom ? Double.POSITIVE_INFINITY : 1.5,
                10 * read);
    }

    @Override
    public void save(Path file, DataPosition position, Map<String, String> description) {
        onSave.run();
        note("save", stepped);
        saved.add(position.next());
    }

    @Override
    public void reserveSaves(CheckpointFolder folder) {}

    @Override
    public SaveProgress beginSave(
            CheckpointFolder folder, int step, DataPosition position, Map<String, String> description) {
        save(folder.step(step), position, description);
        return begun;
    }

    @Override
    public boolean isSaving() {
        return saving.getAsBoolean();
    }

    @Override
    public SaveProgress advanceSave() {
        note("advance", stepped);
        return advanced.get();
    }

    @Override
    public boolean ofFirstRank(boolean own) {
        return clock.getAsBoolean() && own;
    }

    @Override
    public void load(Path file) {
        note("load", stepped);
    }

    @Override
    public boolean skipsSteps() {
        return lossScaling;
    }

    @Override
    public long parameterCount() {
        return 1234;
    }

    @Override
    public double flops(Batch batch) {
        return 1e3 * batch.tokens();
    }

    @Override
    public @Nullable String explainSteps() {
        return null;
    }

    @Override
    public long memoryBytes() {
        return 5 << 20;
    }

    @Override
    public void close() {
        closed = true;
    }

    private void note(String call, int number) {
        if (noting) {
            calls.add(call + number);
        }
    }
}
