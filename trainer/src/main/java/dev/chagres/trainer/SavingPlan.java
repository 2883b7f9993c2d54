package dev.chagres.trainer;

import java.nio.file.Path;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * Where the state of a run goes, and which one it begins with.
 *
 * <p>Threading: immutable.
 *
 * @param file where it goes when the run ends, null for nowhere
 * @param every it goes there after each step whose number divides by this, too; 0 for none
 * @param resumed the file that the run begins with, null for first weights
 * @param recipes which recipes its run may have had
 * @param data which data its run may have had
 * @param defaults options of the learning rate that were not given, by their names: where their values come from
 */
record SavingPlan(
        @Nullable Path file,
        int every,
        @Nullable Path resumed,
        Recipes recipes,
        Data data,
        Map<String, String> defaults) {
    /** Nothing is saved, and first weights begin. */
    static final SavingPlan NONE = new SavingPlan(null, 0, null, Recipes.SAME, Data.SAME, Map.of());

    /** Which recipes the run of a file may have had that a run begins with. */
    enum Recipes {
        /** That of this run. */
        SAME,
        /** Each with weights of the same type: the options name that of this run. */
        SAME_WEIGHTS
    }

    /** Which data, and which length of sequences, the run of a file may have had that a run begins with. */
    enum Data {
        /** Those of this run. */
        SAME,
        /** Any. */
        OTHER
    }
}
