package dev.chagres.trainer.finetune;

import dev.chagres.batch.TrainedModel;
import dev.chagres.bindings.ForeignText;
import dev.chagres.models.esm.Esm2ClassifierConfig;
import dev.chagres.models.esm.Targets;
import dev.chagres.trainer.finetune.LabelledProteins.Row;
import java.util.List;

/**
 * A number of each sequence, whose bits a batch has as its label.
 *
 * <p>Threading: immutable.
 */
record NumberLabels(TargetScale scale) implements TaskLabels {
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
        return new int[] {Float.floatToIntBits((float) scale.scaled(number(option, row)))};
    }

    @Override
    public TrainedModel.Factory factory(Esm2ClassifierConfig config) {
        return config.reading(Targets.floatBits());
    }

    @Override
    public Predictions predictions() {
        return new NumberPredictions(scale);
    }
}
