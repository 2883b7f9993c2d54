package dev.chagres.trainer.finetune;

import dev.chagres.models.esm.Esm2ClassifierConfig;
import dev.chagres.models.esm.Esm2ClassifierConfig.Problem;
import dev.chagres.models.esm.Esm2ClassifierConfig.Task;
import dev.chagres.trainer.command.EnumOption;
import java.util.Arrays;

/** What {@code --task} says. */
enum Predicted {
    /** One of several classes of a sequence. */
    CLASSIFICATION(Task.SEQUENCES, Problem.SINGLE_LABEL),
    /** Several classes of a sequence, or none. */
    MULTI_LABEL(Task.SEQUENCES, Problem.MULTI_LABEL),
    /** A number of a sequence. */
    REGRESSION(Task.SEQUENCES, Problem.REGRESSION),
    /** One of several classes of each residue. */
    TOKENS(Task.TOKENS, Problem.SINGLE_LABEL);

    private final Task task;
    private final Problem problem;

    Predicted(Task task, Problem problem) {
        this.task = task;
        this.problem = problem;
    }

    /** Reads the option. */
    static final class Words extends EnumOption<Predicted> {
        Words() {
            super(Predicted.class);
        }
    }

    /** Returns what a classifier predicts. */
    static Predicted of(Esm2ClassifierConfig config) {
        return Arrays.stream(values())
                .filter(each -> each.task == config.task() && each.problem == config.problem())
                .findFirst()
                .orElseThrow();
    }

    Task task() {
        return task;
    }

    Problem problem() {
        return problem;
    }
}
