package dev.chagres.trainer;

import dev.chagres.Stream;
import dev.chagres.batch.DataPosition;
import dev.chagres.io.RecipeDifferences;
import dev.chagres.io.Safetensors;
import dev.chagres.optim.Optimizer;
import dev.chagres.parameter.State;
import dev.chagres.sharding.ShardedState;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;

/**
 * What a run must save to go on with the same bits: weights, what the optimizer, the recipe and the loss scaler keep, and which
 * sequences were taken from the data. Of several ranks each calls the same method, and rank 0 has the file.
 *
 * <p>Threading: the device's thread.
 */
final class TrainingState {
    private final Optimizer optimizer;
    private final State others;
    private final @Nullable Function<State, ShardedState> shared;
    private final Stream stream;
    private DataPosition position = DataPosition.START;

    /**
     * Names what is to be saved.
     *
     * @param others beside weights and optimizer
     * @param shared makes, of the others, the state that several ranks save together; null of one rank
     */
    TrainingState(
            Optimizer optimizer, List<State> others, @Nullable Function<State, ShardedState> shared, Stream stream) {
        this.optimizer = optimizer;
        State data = new State.Builder()
                .number(
                        SavedRun.SEQUENCES,
                        () -> position.next(),
                        value -> position = new DataPosition(value, position.takenAhead()),
                        Long.MAX_VALUE)
                .number(
                        SavedRun.TAKEN_AHEAD,
                        () -> position.takenAhead(),
                        value -> position = new DataPosition(position.next(), value),
                        SavedRun.MOST_TAKEN_AHEAD)
                .build();
        this.others = State.of(State.of(others.toArray(State[]::new)), data);
        this.shared = shared;
        this.stream = stream;
    }

    /**
     * Replaces {@code file}, or leaves it.
     *
     * @throws dev.chagres.io.SafetensorsException when it cannot be written
     */
    void save(Path file, DataPosition newPosition, Map<String, String> description) {
        position = newPosition;
        if (shared == null) {
            Safetensors.save(file, ofOneRank(), stream, description);
        } else {
            shared.apply(others).save(file, description);
        }
    }

    /**
     * Loads all of {@code file}, or nothing.
     *
     * @throws dev.chagres.io.SafetensorsException when it cannot be read, or does not hold exactly this
     */
    void load(Path file) {
        if (shared == null) {
            Safetensors.load(file, ofOneRank(), stream);
        } else {
            shared.apply(others).load(file);
        }
    }

    /**
     * Loads all of {@code file} but the scales and histories of another recipe, or nothing.
     *
     * @return what was not loaded
     * @throws dev.chagres.io.SafetensorsException when it cannot be read, or does not hold exactly this beside
     */
    RecipeDifferences loadUnderOtherRecipe(Path file) {
        return shared == null
                ? Safetensors.loadUnderOtherRecipe(file, ofOneRank(), stream)
                : shared.apply(others).loadUnderOtherRecipe(file);
    }

    private State ofOneRank() {
        return State.of(optimizer.parameters().state(), optimizer.state(), others);
    }
}
