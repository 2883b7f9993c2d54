package dev.chagres.trainer;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Option;

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

    /** Options of {@code train} that say where the state of a run goes, and which one it begins with. */
    static final class Options {
        @Option(
                names = "--save",
                converter = FileChecks.FileOption.class,
                paramLabel = "FILE",
                description =
                        "when the run ends, also by Ctrl-C or a failure, write the state that --resume needs, as safetensors")
        private @Nullable Path save;

        @Option(
                names = "--save-every",
                paramLabel = "N",
                description = "with --save, also write the file after every Nth step (default: 0, only at the end)")
        private int every;

        @Option(
                names = "--resume",
                converter = FileChecks.FileOption.class,
                paramLabel = "FILE",
                description =
                        "go on from a file of --save until --steps steps are done in all. --ranks, --strategy and --mesh may differ"
                                + " from the saved run's; --recipe too if its weights have the same type, and then the file's"
                                + " scales are ignored")
        private @Nullable Path resume;

        @Option(
                names = "--resume-saved",
                description =
                        "go on from the file of --save if there is one, so that the same command can be started again, as"
                                + " launch --max-restarts does; else begin as without this option")
        private boolean resumeSaved;

        @Option(
                names = "--resume-with-other-data",
                description =
                        "go on, after as many sequences, though the content of --fasta, or --context, is not the saved"
                                + " run's, which is refused otherwise")
        private boolean otherData;

        /** Returns where the state goes, null for nowhere. */
        @Nullable
        Path save() {
            return save;
        }

        /** Returns the file that the run begins with, null for none. */
        @Nullable
        Path resume() {
            Path own = save;
            return resumeSaved && own != null && Files.exists(own) ? own : resume;
        }

        /** Returns the files as the plan has them. */
        SavingPlan plan(Recipes recipes, Map<String, String> defaults) {
            return new SavingPlan(save, every, resume(), recipes, otherData ? Data.OTHER : Data.SAME, defaults);
        }

        /**
         * Checks what does not depend on other options.
         *
         * @throws IllegalArgumentException when an option has no usable value; the text names it
         */
        void check() {
            TrainOptions.requireAtLeast("--save-every", every, 0);
            FileChecks.requireName("--save", save);
            FileChecks.requireName("--resume", resume);
            if (every != 0 && save == null) {
                throw new IllegalArgumentException(
                        "--save-every: expected --save beside it, which is written, got none");
            }
            if (resumeSaved && save == null) {
                throw new IllegalArgumentException(
                        "--resume-saved: expected --save beside it, whose file the run goes on from, got none");
            }
            if (otherData && resume == null && !resumeSaved) {
                throw new IllegalArgumentException(
                        "--resume-with-other-data: expected --resume or --resume-saved beside it, got none");
            }
        }
    }
}
