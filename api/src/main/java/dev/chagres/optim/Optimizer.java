package dev.chagres.optim;

import dev.chagres.Tensor;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import dev.chagres.parameter.StateOwner;
import java.util.List;

/**
 * Updates the trained weights of {@link Parameters} by their gradients, on the parameters' stream. The kernels read learning rate and gradient
 * scale on the device, and the host does not wait.
 *
 * <p>A strategy of several ranks takes any optimizer: it asks for {@link #vectors} and {@link #stepState}.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: PyTorch's {@code torch.optim.Optimizer}.
 */
public interface Optimizer extends StateOwner, AutoCloseable {
    /** Returns the parameters that this updates. */
    Parameters parameters();

    /**
     * Enqueues one step with the gradients of the parameters, clipped as {@code norm} has computed. When a gradient is not finite, weights
     * and state stay unchanged, but the step counts; under a {@link LossScaler} it does not count.
     *
     * @param rate learning rate, not negative
     * @param norm computed after the last backward pass; usable for one step only
     * @throws IllegalArgumentException when the rate is negative, infinite with a group's factor, or no number, or the norm is that of other parameters
     * @throws IllegalStateException when this or the parameters are closed, the norm was not computed since the last step, gradients were
     *     written or forgotten since, {@link #rate} has set another rate for this step, or inside {@code Communicator.group}
     */
    void step(float rate, GradientNorm norm);

    /**
     * Enqueues one step with the gradients of the parameters as they are.
     *
     * @param rate learning rate, not negative
     * @throws IllegalArgumentException when the rate is negative, infinite with a group's factor, or no number
     * @throws IllegalStateException when this or the parameters are closed, {@link #rate} has set another rate for this step, or inside {@code
     *     Communicator.group}
     */
    void step(float rate);

    /**
     * Enqueues one step with the gradients of the parameters, each multiplied by {@code gradientScale}.
     *
     * @param rate learning rate, not negative
     * @param gradientScale FLOAT32 [1]
     * @throws IllegalArgumentException when the rate is negative, infinite with a group's factor, or no number, or shape, type or device do not fit
     * @throws IllegalStateException when this or the parameters are closed, {@link #rate} has set another rate for this step, or inside {@code
     *     Communicator.group}
     */
    void step(float rate, Tensor gradientScale);

    /**
     * Sets the learning rate of steps in a {@link dev.chagres.Graph}, from its next launch on; {@link #step(float, GradientNorm)} sets it
     * as well. A step that {@code StepGraph} replays needs this call before it, also if the rate is constant: a replay does not run the code
     * that calls {@link #step(float, GradientNorm)}. The next call of {@code step} must be given the same rate: {@code StepGraph} runs the code of
     * some steps and replays others.
     *
     * @param rate learning rate, not negative
     * @throws IllegalArgumentException when the rate is negative or no number, or a group's factor makes it infinite
     * @throws IllegalStateException when this is closed
     */
    void rate(float rate);

    /**
     * Returns the number of steps taken. After a step under a {@link LossScaler} this waits, since the device counts such steps.
     *
     * @throws IllegalStateException when this is closed
     */
    long step();

    /**
     * Makes the weights those that evaluations and programs which use the model read: of {@link ScheduleFreeAdamW}, and of an {@link AveragedConfig}, averages. Optimizers whose
     * weights are these already do nothing.
     *
     * @throws IllegalStateException when this is closed
     */
    void beginEvaluation();

    /**
     * Makes the weights again those that training goes on with.
     *
     * @throws IllegalStateException when this is closed
     */
    void endEvaluation();

    /** Returns the bytes of the state on the device. */
    long byteSize();

    /** Returns the bytes of the state in the host's memory: 0 but of an {@link OffloadedConfig}. */
    long hostBytes();

    /** Returns which kernels run a step, and why others do not. */
    String explain();

    /**
     * Lists the state that is needed to go on exactly.
     *
     * @throws IllegalStateException when this is closed, or the weights are sharded
     */
    @Override
    State state();

    /**
     * For sharding: returns {@link #state()} without {@link #vectors()}: the number of steps, and the actions after loading.
     *
     * @throws IllegalStateException when this is closed
     */
    State stepState();

    /**
     * For sharding: returns the vectors that hold state for each element of {@link Parameters#gradients}, in the order of {@link #state()}.
     *
     * @throws IllegalStateException when this is closed
     */
    List<StateVector> vectors();

    /** Frees the state. A second call does nothing. */
    @Override
    void close();
}
