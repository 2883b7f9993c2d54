package dev.chagres.trainer.finetune;

import dev.chagres.batch.TrainedModel;
import dev.chagres.models.esm.Esm2ClassifierConfig;
import dev.chagres.trainer.command.TargetScale;
import dev.chagres.trainer.finetune.LabelledProteins.Row;
import java.util.List;

/**
 * The labels of a task: as files have them, as the model reads them, and how predictions are compared with them.
 *
 * <p>Threading: the methods on the thread of the command; what they return is thread-safe.
 */
interface TaskLabels {
    /** Returns names of the classes for the saved folder; none of numbers. */
    List<String> names();

    /** Returns how many classes or numbers the head has. */
    int count();

    /**
     * Returns a sequence's labels in a batch: one, or one for each residue.
     *
     * @throws DataException when the text is no label of the task
     */
    int[] of(String option, Row row);

    /** Returns what makes the model. */
    TrainedModel.Factory factory(Esm2ClassifierConfig config);

    /** Returns new ones, without a prediction. */
    Predictions predictions();

    /** Returns how numbers that the model predicts are scaled. */
    default TargetScale scale() {
        return TargetScale.PLAIN;
    }
}
