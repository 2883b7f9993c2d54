package dev.chagres.trainer;

import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.models.data.FastaSource;
import dev.chagres.models.data.HeldOut;
import dev.chagres.models.text.TextSource;
import dev.chagres.trainer.callback.EarlyStopping;
import dev.chagres.trainer.callback.Evaluation;
import dev.chagres.trainer.command.FastaOptions;
import dev.chagres.trainer.command.FileChecks;
import dev.chagres.trainer.command.HeldOutOption;
import java.nio.file.Path;
import java.util.List;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Option;

/**
 * On what a run is evaluated, and what follows from that.
 *
 * <p>Threading: immutable.
 *
 * @param data the held-out sequences, null where nothing is evaluated
 * @param every after each step whose number divides by this, besides the end; 0 for the end alone
 * @param patience the run ends after so many evaluations without a smaller loss; 0 for never
 * @param minDelta by how much a loss must be smaller
 * @param tensorBoard the folder of TensorBoard's files, null for none
 */
record EvaluationPlan(
        @Nullable TrainingData data,
        int every,
        int patience,
        double minDelta,
        @Nullable Path tensorBoard) {
    /** Nothing is evaluated. */
    static final EvaluationPlan NONE = new EvaluationPlan(null, 0, 0, 0, null);

    /** Sequences of the full context that a micro-batch has room for: forward alone needs less memory for them than a step for one. */
    private static final int SEQUENCES = 4;

    /**
     * Returns what evaluates, null where nothing is evaluated. The shape of its micro-batches follows from the context alone, so that they are
     * the same for every number of ranks.
     *
     * @param training the shape of a step
     */
    @Nullable
    Evaluation evaluation(BatchShape training) {
        TrainingData from = data;
        return from == null
                ? null
                : of(from, training.layout(), training.context()).withEvery(every);
    }

    /** Returns what evaluates {@code data}. */
    static Evaluation of(TrainingData data, BatchLayout layout, int context) {
        int multiple = BatchShape.TOKEN_MULTIPLE;
        long rounded = (context + multiple - 1L) / multiple * multiple;
        int tokens = (int) Math.min(SEQUENCES * rounded, Integer.MAX_VALUE / multiple * multiple);
        return Evaluation.of(data::once, new BatchShape(layout, tokens, context));
    }

    /** Returns what ends the run early, null where nothing does. */
    @Nullable
    EarlyStopping earlyStopping() {
        return patience == 0 ? null : new EarlyStopping(patience, minDelta);
    }

    /** Returns the same without what one of several processes writes. */
    EvaluationPlan silent() {
        return new EvaluationPlan(data, every, patience, minDelta, null);
    }

    /** What must be the same in all processes. */
    String purpose() {
        TrainingData from = data;
        return "evaluation of " + (from == null ? "nothing" : from.name() + ", " + from.content()) + ", every " + every
                + ", --early-stopping " + patience + ", --min-delta " + minDelta;
    }

    /** Options of {@code train} about held-out data. */
    static final class Options {
        private static final int DEFAULT_EVERY = 100;

        @Option(
                names = "--eval-fasta",
                converter = FileChecks.FileOption.class,
                paramLabel = "FILE",
                description =
                        "evaluate these sequences, which are not trained on: a file, a folder or a quoted pattern (default: none)")
        private @Nullable Path fasta;

        @Option(
                names = "--eval-fraction",
                converter = HeldOutOption.class,
                paramLabel = "R",
                description =
                        "hold out about this part of the sequences of --fasta, or of the texts of --text, between 0 and 1, and"
                                + " evaluate them; which ones follows from their content alone (default: none)")
        private @Nullable HeldOut heldOut;

        @Option(
                names = "--eval-every",
                paramLabel = "N",
                description = "evaluate after every Nth step and at the end; 0 for the end alone (default: 100)")
        private @Nullable Integer every;

        @Option(
                names = "--early-stopping",
                paramLabel = "PATIENCE",
                description =
                        "end the run after so many evaluations in a row whose loss is not below the smallest one before, or one"
                                + " whose loss is no number (default: never)")
        private @Nullable Integer patience;

        @Option(
                names = "--min-delta",
                paramLabel = "D",
                description = "with --early-stopping, by how much a loss must be below the smallest one (default: 0)")
        private @Nullable Double minDelta;

        @Option(
                names = "--tensorboard",
                converter = FileChecks.FileOption.class,
                paramLabel = "DIR",
                description = "write losses, rates and evaluations into a file of this folder that TensorBoard shows")
        private @Nullable Path tensorBoard;

        @Option(
                names = "--eval-text",
                arity = "1..*",
                converter = FileChecks.FileOption.class,
                paramLabel = "FILE",
                description = "with --text, evaluate these texts, which are not trained on (default: none)")
        private List<Path> texts = List.of();

        /** Returns whether proteins are evaluated. */
        boolean isOfProteins() {
            return fasta != null;
        }

        /** Returns the files of held-out texts, none where there are none. */
        List<Path> texts() {
            return texts;
        }

        /** Returns the file of held-out sequences, null for none. */
        @Nullable
        Path fasta() {
            return fasta;
        }

        /**
         * Checks what depends on no other options.
         *
         * @throws IllegalArgumentException when an option has no usable value; the text names it
         */
        void check() {
            FileChecks.requireName("--eval-fasta", fasta);
            texts.forEach(file -> FileChecks.requireName("--eval-text", file));
            FileChecks.requireName("--tensorboard", tensorBoard);
            if (fasta != null && heldOut != null) {
                throw new IllegalArgumentException("--eval-fraction: expected this or --eval-fasta, got both: "
                        + heldOut.fraction() + " and " + fasta);
            }
            if (!texts.isEmpty() && heldOut != null) {
                throw new IllegalArgumentException("--eval-fraction: expected this or --eval-text, got both: "
                        + heldOut.fraction() + " and " + texts);
            }
            if (every != null) {
                TrainOptions.requireAtLeast("--eval-every", every, 0);
                requireData("--eval-every");
            }
            checkStopping();
        }

        private void checkStopping() {
            if (patience != null) {
                TrainOptions.requireAtLeast("--early-stopping", patience, 1);
                requireData("--early-stopping");
                if (every != null && every == 0) {
                    throw new IllegalArgumentException(
                            "--early-stopping: expected --eval-every of at least 1 beside it, got 0");
                }
            }
            if (minDelta == null) {
                return;
            }
            if (patience == null) {
                throw new IllegalArgumentException("--min-delta: expected --early-stopping beside it, got none");
            }
            if (!(minDelta >= 0 && minDelta < Double.POSITIVE_INFINITY)) {
                throw new IllegalArgumentException("--min-delta: expected a finite number from 0 on, got " + minDelta);
            }
        }

        private void requireData(String option) {
            if (fasta == null && heldOut == null && texts.isEmpty()) {
                throw new IllegalArgumentException(
                        option + ": expected --eval-fasta, --eval-fraction or --eval-text beside it, got none");
            }
        }

        /** Returns the sequences to train on. */
        FastaSource training(FastaSource all) {
            return heldOut == null ? all : all.without(heldOut);
        }

        /**
         * Returns the plan, of a run whose sequences are {@code all}, held-out ones included.
         *
         * @param options as which the others are read
         */
        EvaluationPlan plan(FastaSource all, FastaOptions options) {
            FastaSource source = fasta != null
                    ? options.as(FastaSource.matching(fasta.toString()))
                    : heldOut != null ? all.only(heldOut) : null;
            return plan(source == null ? null : new TrainingData.Proteins(source));
        }

        /** Returns the texts to train on. */
        TextSource training(TextSource all) {
            return heldOut == null
                    ? all
                    : new TextSource(all.files(), all.tokenizer(), all.config().without(heldOut));
        }

        /** Returns the plan of a run on texts, held-out ones included. */
        EvaluationPlan plan(TextSource all) {
            TextSource source = !texts.isEmpty()
                    ? new TextSource(texts, all.tokenizer(), all.config())
                    : heldOut != null
                            ? new TextSource(
                                    all.files(), all.tokenizer(), all.config().only(heldOut))
                            : null;
            return plan(source == null ? null : new TrainingData.Texts(source));
        }

        private EvaluationPlan plan(@Nullable TrainingData data) {
            return new EvaluationPlan(
                    data,
                    data == null ? 0 : every == null ? DEFAULT_EVERY : every,
                    patience == null ? 0 : patience,
                    minDelta == null ? 0 : minDelta,
                    tensorBoard);
        }
    }
}
