package dev.chagres.models.transformer;

import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.batch.TokenScores;
import dev.chagres.pass.Pass;
import org.jspecify.annotations.Nullable;

/**
 * What makes a loss of the hidden states of a {@link TransformerBody}.
 *
 * <p>Threading: the device's thread.
 */
public interface TransformerHead {
    /**
     * Allocates what the head keeps besides parameters; here nothing. It is called once, before parameters have memory.
     *
     * @param scope closed with the model
     */
    default void allocate(Scope scope) {}

    /**
     * Enqueues the mean loss of the labelled tokens.
     *
     * @param hidden [T, H]
     * @param labels one of each token
     * @return FLOAT32 [1]
     */
    Tensor loss(Tensor hidden, Tensor labels, Pass pass);

    /**
     * Enqueues the gradients of the head's parameters for the latest {@link #loss}.
     *
     * @param factor on the loss
     * @param lossScale another factor, FLOAT32 [1]; null for none
     * @return the gradient of the hidden states, [T, H]
     */
    Tensor backward(float factor, @Nullable Tensor lossScale, Pass pass);

    /** Returns the scores from which the latest loss was computed; null, as here, if there are none. */
    default @Nullable TokenScores scores() {
        return null;
    }
}
