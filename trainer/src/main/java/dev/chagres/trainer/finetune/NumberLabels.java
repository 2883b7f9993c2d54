package dev.chagres.trainer.finetune;

import dev.chagres.batch.TrainedModel;
import dev.chagres.bindings.ForeignText;
import dev.chagres.models.esm.Esm2ClassifierConfig;
import dev.chagres.models.esm.Targets;
import dev.chagres.trainer.command.TargetScale;
import dev.chagres.trainer.finetune.LabelledProteins.Row;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * A number of each sequence: the label in a batch says which of all numbers of the files.
 *
 * <p>Threading: the thread of the command.
 */
final class NumberLabels implements TaskLabels {
    private final TargetScale scale;
    private final Map<Float, Integer> places = new LinkedHashMap<>();

    NumberLabels(TargetScale scale) {
        this.scale = scale;
    }

    @Override
    public TargetScale scale() {
        return scale;
    }

    @Override
    public List<String> names() {
        return List.of();
    }

    @Override
    public int count() {
        return 1;
    }

    /**
     * Returns the number of a row.
     *
     * @throws DataException when it has no finite number
     */
    static double number(String option, Row row) {
        try {
            double number = Double.parseDouble(row.label());
            if (Float.isFinite((float) number)) {
                return number;
            }
        } catch (NumberFormatException notOne) {
            // told below
        }
        throw new DataException(option + ": " + row.place() + ": expected a finite number as the label, got "
                + ForeignText.plain(row.label()));
    }

    @Override
    public int[] of(String option, Row row) {
        return new int[] {places.computeIfAbsent((float) scale.scaled(number(option, row)), _ -> places.size())};
    }

    @Override
    public TrainedModel.Factory factory(Esm2ClassifierConfig config) {
        return config.reading(Targets.table(
                places.keySet().stream().map(number -> new float[] {number}).toArray(float[][]::new)));
    }

    @Override
    public Predictions predictions() {
        return new NumberPredictions(
                scale, places.keySet().stream().mapToDouble(Float::doubleValue).toArray());
    }
}
