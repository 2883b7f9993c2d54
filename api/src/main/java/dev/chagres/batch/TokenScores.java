package dev.chagres.batch;

import dev.chagres.Tensor;
import dev.chagres.internal.Checks;

/**
 * A model's score of each class for each token. The class of the largest score is the predicted one.
 *
 * <p>Threading: immutable.
 *
 * @param logits [T, columns]: column j has the scores of class {@code first + j}. Tensor-parallel ranks have some columns each
 * @param first the class of the first column
 * @param classes of all ranks together; columns of classes from this number on are padding
 */
public record TokenScores(Tensor logits, long first, long classes) {
    /**
     * Checks the numbers.
     *
     * @throws IllegalArgumentException when the logits do not have two dimensions, the first class is negative, or there is no class
     */
    public TokenScores {
        if (Checks.given("logits", logits).rank() != 2) {
            throw new IllegalArgumentException("logits: expected [T, columns], got " + Checks.describe(logits));
        }
        if (first < 0) {
            throw new IllegalArgumentException("first: expected a class from 0 on, got " + first);
        }
        Checks.atLeastOne("classes", classes);
    }
}
