package dev.chagres.optim;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Checks;
import dev.chagres.internal.TensorLists;
import dev.chagres.layer.Parameters;

/**
 * The global norm of all gradients, {@code sqrt(sum g^2)}, and the factor that clips it:
 * {@code min(1, maxNorm / (norm + 1e-6))}.
 *
 * <p>Both stay on the device: an optimizer reads the factor there, and the host need not wait. A norm that is not finite
 * gives the factor 0, and an optimizer that is given this object skips the step.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: Pascanu et al., On the difficulty of training recurrent neural networks (2013);
 * {@code nvte_multi_tensor_l2norm_cuda} in TE's {@code multi_tensor.h}.
 */
public final class GradientNorm {
    private static final int CHUNK = 2048 * 32;

    /** Partial sums that the kernel keeps, one a block of a launch. */
    private static final long PARTIALS = 320;

    private final Parameters parameters;
    private final float maxNorm;
    private final TensorLists lists;
    private final Tensor partials;
    private final Tensor partialsPerTensor;
    private final Tensor norm;
    private final Tensor normPerTensor;
    private final Tensor skip;
    private final Tensor scale;
    /** Whether the factor is that of gradients which no optimizer has used yet. */
    private boolean fresh;

    /**
     * Prepares the norm over the gradients of {@code parameters}, in whose scope it takes a little memory.
     *
     * @param maxNorm what the norm is clipped to; {@link Float#POSITIVE_INFINITY} never clips
     * @throws IllegalArgumentException when it is not positive
     */
    public GradientNorm(Parameters parameters, float maxNorm) {
        if (!(maxNorm > 0)) {
            throw new IllegalArgumentException("maxNorm: expected a positive number, got " + maxNorm);
        }
        this.parameters = parameters;
        this.maxNorm = maxNorm;
        Scope scope = parameters.scope();
        lists = new TensorLists(
                scope, scope.device().state().arena(), 0, parameters.gradients().count(), parameters.gradients());
        partials = scope.tensor(DType.FLOAT32, PARTIALS);
        partialsPerTensor = scope.tensor(DType.FLOAT32, 1);
        norm = scope.tensor(DType.FLOAT32, 1);
        normPerTensor = scope.tensor(DType.FLOAT32, 1);
        skip = scope.tensor(DType.INT32, 1);
        scale = scope.tensor(DType.FLOAT32, 1);
        skip.zero(scope.stream());
    }

    /**
     * Enqueues norm and factor.
     *
     * @throws IllegalArgumentException when the stream belongs to another device
     */
    public void compute(Stream stream) {
        Checks.stream(parameters.scope(), stream);
        partials.zero(stream);
        skip.zero(stream);
        Status.te(
                TransformerEngine.te_multi_tensor_l2norm_cuda(
                        CHUNK,
                        skip.cell().handle(),
                        lists.lists(),
                        lists.listCount(),
                        lists.tensorCount(),
                        partials.cell().handle(),
                        partialsPerTensor.cell().handle(),
                        norm.cell().handle(),
                        normPerTensor.cell().handle(),
                        0,
                        0,
                        stream.handle()),
                "nvte_multi_tensor_l2norm_cuda");
        Status.ops(Ops.ops_clip_scale(norm.pointer(), maxNorm, scale.pointer(), stream.handle()), "ops_clip_scale");
        fresh = true;
    }

    /**
     * Takes factor and {@link #skip} for one step of an optimizer.
     *
     * @throws IllegalStateException when they were not computed since the last step
     */
    void use() {
        if (!fresh) {
            throw new IllegalStateException("norm: compute(stream) was not called since the last step, so that it knows"
                    + " nothing of these gradients; call it after the backward pass");
        }
        fresh = false;
    }

    /** Returns the norm: FLOAT32 [1]; undefined before the first {@link #compute}. */
    public Tensor norm() {
        return norm;
    }

    /** Returns the parameters whose gradients are measured. */
    Parameters parameters() {
        return parameters;
    }

    /** Returns INT32 [1]: 1 when a gradient is not finite. Zero times NaN is NaN, so that a factor alone saves nothing. */
    Tensor skip() {
        return skip;
    }

    /** Returns the factor on the gradients: FLOAT32 [1]; undefined before the first {@link #compute}. */
    public Tensor scale() {
        return scale;
    }
}
