package dev.chagres.trainer;

import dev.chagres.models.data.ShuffledSequences;
import java.util.Map;
import java.util.function.BooleanSupplier;

/**
 * Where a run computes, and how a model is made there.
 *
 * <p>Threading: confined to the thread that opened it.
 */
interface Platform extends AutoCloseable {
    /** Opens a platform. */
    @FunctionalInterface
    interface Opener {
        /**
         * Opens the platform of this process's provider.
         *
         * @throws TrainingException when there is none
         */
        Platform open();

        /**
         * Opens it on one of several devices.
         *
         * @throws TrainingException when there is none
         */
        default Platform open(int device) {
            return open();
        }
    }

    /** Returns {@code cuda} or {@code reference}. */
    String provider();

    /** Whether a GPU computes: its defaults are larger. */
    boolean isGpu();

    /** Returns how many devices there are, each of which a rank can have. */
    int devices();

    /** Returns how many multiprocessors, or cores, the device has. */
    int multiprocessors();

    /** Returns how many residues of the data are held at a time. */
    default int windowResidues() {
        return ShuffledSequences.WINDOW_RESIDUES;
    }

    /** Returns the device's name. */
    String device();

    /** Returns each library's version by its name. */
    Map<String, String> libraries();

    /** Makes the model of a plan with its first weights. */
    Training open(TrainingPlan plan);

    /**
     * Makes the model of a plan with its first weights, unless the run is stopped while it waits for other ranks.
     *
     * @throws TrainingException when it is
     */
    default Training open(TrainingPlan plan, BooleanSupplier stopped) {
        return open(plan);
    }

    @Override
    void close();
}
