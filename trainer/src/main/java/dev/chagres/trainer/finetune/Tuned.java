package dev.chagres.trainer.finetune;

import dev.chagres.batch.BatchShape;
import dev.chagres.batch.TokenSequences;
import dev.chagres.batch.TrainedModel;
import dev.chagres.checkpoint.RunState;
import java.nio.file.Path;
import java.util.Optional;
import java.util.function.Supplier;

/**
 * A model in a folder, and what it learns.
 *
 * <p>Threading: immutable.
 */
interface Tuned {
    /** Returns a line about the data. */
    String told();

    /** Returns what makes the model, with adapters or in part frozen. */
    TrainedModel.Factory factory();

    /** Returns the same model with the longest context that the folder says, which the saved folder shall say, too. */
    TrainedModel.Factory saved();

    /** Returns the most that a step has. */
    BatchShape shape();

    /** Returns the highest learning rate where no option says it. */
    float rate();

    /** Returns what opens all epochs of the data, the same each time. */
    Supplier<TokenSequences> training();

    /** Returns what opens the data to evaluate on; empty for none. */
    Optional<Supplier<TokenSequences>> held();

    /** Returns new predictions for metrics beside the loss; empty where there are none. */
    Optional<Predictions> predictions();

    /** Loads the folder's weights. */
    void begin(RunState weights);

    /** Writes a new folder. */
    void save(TrainedModel trained, Path folder);
}
