package dev.chagres.optim;

import dev.chagres.Scope;
import dev.chagres.Tensor;

/**
 * The kernels of a step of Adam.
 *
 * <p>Threading: the device's thread.
 */
sealed interface AdamUpdate extends AutoCloseable permits MultiTensorAdam, OneKernelAdam {
    /**
     * What the kernels work on.
     *
     * @param gradients FLOAT32 vector
     * @param mean like the gradients, of the moments' type
     * @param square like the mean
     * @param numbers rates and number of the step
     * @param scope hands out views, and its stream runs the kernels
     */
    record Memory(Tensor gradients, Tensor mean, Tensor square, StepNumbers numbers, Scope scope) {}

    /** Enqueues the step. */
    void run(Tensor gradientScale, Tensor skip);

    /** Says which kernels run. */
    String explain();

    @Override
    void close();
}
