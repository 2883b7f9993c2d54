package dev.chagres.optim;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.Capture;
import dev.chagres.internal.memory.StepWork;
import dev.chagres.ops.Clip;
import dev.chagres.parameter.Parameters;
import dev.chagres.te.MultiTensor;
import dev.chagres.te.TensorLists;
import java.util.ArrayList;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * The global norm of all gradients, {@code sqrt(sum g^2)}, and the factor that clips it:
 * {@code min(1, maxNorm / (norm + 1e-6))}.
 *
 * <p>Both stay on the device: an optimizer reads the factor there, and the host need not wait. If the norm is not finite, the factor is 0,
 * and an optimizer that is given this object skips the step. With a {@link LossScaler} the norm is that of the unscaled gradients, the
 * factor also divides by the loss scale, and the scaler is updated.
 *
 * <p>Each tensor-parallel rank computes the norm over all ranks, in which gradients that every rank has count once.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: Pascanu et al., On the difficulty of training recurrent neural networks (2013);
 * {@code nvte_multi_tensor_l2norm_cuda} in TE's {@code multi_tensor.h}.
 */
public final class GradientNorm {
    private final Parameters parameters;
    private final float maxNorm;
    private final @Nullable LossScaler scaler;
    /** The gradients of each type that this rank counts. */
    private final List<TensorLists> lists = new ArrayList<>();
    /** The norm of each, where there are several, and a list of these. */
    private final List<Tensor> norms = new ArrayList<>();

    private final @Nullable TensorLists listOfNorms;
    private final Tensor partials;
    private final Tensor norm;
    private final Tensor skip;
    private final Tensor scale;
    /** Whether the factor was computed and no optimizer has used it yet. */
    private boolean fresh;
    /** The number of changes of the gradients when the factor was computed. */
    private long computedAt;

    private final StepWork computeFactor = new ComputeFactor();
    private final StepWork useFactor = new UseFactor();
    private final StepWork useComputedFactor = new UseComputedFactor();
    /** The capture that has computed or used the factor, and whether the factor is fresh in it. */
    private @Nullable Capture captured;

    private boolean freshInCapture;
    /** The number of changes of the gradients when {@link #compute} was called last, also in a capture. */
    private long calledAt;

    /**
     * Prepares the norm over the gradients of {@code parameters}. A little memory is allocated from their scope.
     *
     * @param maxNorm what the norm is clipped to; {@link Float#POSITIVE_INFINITY} never clips
     * @throws IllegalArgumentException when it is not positive
     * @throws IllegalStateException when the parameters are closed
     */
    public GradientNorm(Parameters parameters, float maxNorm) {
        this(parameters, maxNorm, null);
    }

    /**
     * Prepares the norm over gradients that {@code scaler} scales. A little memory is allocated from the scope of its parameters.
     *
     * @param maxNorm what the norm is clipped to; {@link Float#POSITIVE_INFINITY} never clips
     * @throws IllegalArgumentException when it is not positive
     * @throws IllegalStateException when the parameters are closed
     */
    public GradientNorm(LossScaler scaler, float maxNorm) {
        this(Checks.given("scaler", scaler).parameters(), maxNorm, scaler);
    }

    private GradientNorm(Parameters parameters, float maxNorm, @Nullable LossScaler scaler) {
        Checks.given("parameters", parameters);
        if (!(maxNorm > 0)) {
            throw new IllegalArgumentException("maxNorm: expected a positive number, got " + maxNorm);
        }
        this.parameters = parameters;
        this.maxNorm = maxNorm;
        this.scaler = scaler;
        Scope scope = parameters.scope();
        Map<DType, List<Tensor>> counted = new EnumMap<>(Map.of(DType.FLOAT32, new ArrayList<>()));
        for (Tensor gradient : parameters.access().counted(scope)) {
            counted.computeIfAbsent(gradient.dtype(), _ -> new ArrayList<>()).add(gradient);
        }
        partials = scope.tensor(DType.FLOAT32, MultiTensor.NORM_PARTIALS);
        norm = scope.tensor(DType.FLOAT32, 1);
        skip = scope.tensor(DType.INT32, 1);
        scale = scope.tensor(DType.FLOAT32, 1);
        skip.zero(scope.stream());
        for (List<Tensor> ofType : counted.values()) {
            lists.add(adopted(ofType));
            norms.add(counted.size() == 1 ? norm : scope.tensor(DType.FLOAT32, 1));
        }
        listOfNorms = counted.size() == 1 ? null : adopted(norms);
    }

    private TensorLists adopted(List<Tensor> tensors) {
        TensorLists made = TensorLists.of(tensors.toArray(Tensor[]::new));
        parameters.adopt(made);
        return made;
    }

    /**
     * Enqueues norm and factor on the parameters' stream, after the work enqueued there. Gradients that no backward pass of this step has
     * written count as 0.
     *
     * @throws IllegalStateException when the parameters are closed, or inside {@code Communicator.group}
     */
    public void compute() {
        Stream stream = parameters.scope().stream();
        Inside.state(stream).ensureNotGrouping("compute");
        Checks.on(stream, "parameters", parameters.gradients());
        parameters.completeGradients();
        skip.zero(stream);
        for (int i = 0; i < lists.size(); i++) {
            MultiTensor.l2norm(skip, lists.get(i), partials, norms.get(i), stream);
        }
        if (listOfNorms != null) {
            MultiTensor.l2norm(skip, listOfNorms, partials, norm, stream);
        }
        parameters.access().normOverRanks(norm, skip);
        if (scaler == null) {
            Clip.clipScale(norm, maxNorm, scale, stream);
        } else {
            scaler.clip(norm, maxNorm, scale, skip);
        }
        captured = Inside.capture(stream);
        freshInCapture = true;
        calledAt = parameters.gradientChanges();
        Inside.eachStep(stream, computeFactor);
    }

    /**
     * Uses factor and {@link #skip} for one step of an optimizer.
     *
     * @throws IllegalStateException when they were not computed since the last step, or gradients have changed since
     */
    void use() {
        Stream stream = parameters.scope().stream();
        Capture capture = Inside.capture(stream);
        boolean inCapture = capture != null && capture == captured;
        if (inCapture) {
            ensureFresh(freshInCapture, calledAt);
        } else {
            ensureFreshNow();
        }
        captured = capture;
        freshInCapture = false;
        Inside.eachStep(stream, inCapture ? useComputedFactor : useFactor);
    }

    private void ensureFresh(boolean isFresh, long takenAt) {
        if (!isFresh) {
            throw new IllegalStateException(
                    "norm: compute() was not called since the last step; call it after the backward pass");
        }
        if (takenAt != parameters.gradientChanges()) {
            throw new IllegalStateException("norm: expected the gradients of which compute() has taken the norm, got"
                    + " others: a backward call, forgetGradients(), a loaded state or nextStep() came after it; call compute() after the"
                    + " step's last backward call");
        }
    }

    private void ensureFreshNow() {
        ensureFresh(fresh, computedAt);
    }

    /** In a capture: each launch computes the factor. */
    private final class ComputeFactor implements StepWork {
        @Override
        public void count() {
            fresh = true;
            computedAt = parameters.gradientChanges();
        }
    }

    /** A step with a factor that was computed before, in a capture before each launch. */
    private final class UseFactor implements StepWork {
        @Override
        public void check() {
            ensureFreshNow();
        }

        @Override
        public void count() {
            fresh = false;
        }
    }

    /** A step with a factor that the same graph computes. */
    private final class UseComputedFactor implements StepWork {
        @Override
        public void count() {
            fresh = false;
        }
    }

    /** Returns the norm of the gradients, without a loss scale: FLOAT32 [1]; undefined before the first {@link #compute}. */
    public Tensor norm() {
        return norm;
    }

    /** Returns the scaler of the gradients, null if there is none. */
    @Nullable
    LossScaler scaler() {
        return scaler;
    }

    /** Returns the parameters whose gradients are measured. */
    Parameters parameters() {
        return parameters;
    }

    /** Returns INT32 [1]: 1 when a gradient is not finite. The factor 0 is not enough, since zero times NaN is NaN. */
    Tensor skip() {
        return skip;
    }

    /** Returns the factor on the gradients: FLOAT32 [1]; undefined before the first {@link #compute}. */
    public Tensor scale() {
        return scale;
    }

    /** Returns the maximum norm, and the scaler of the gradients if there is one. */
    @Override
    public String toString() {
        return "GradientNorm(maxNorm=" + maxNorm + (scaler == null ? "" : ", scaler=" + scaler) + ")";
    }
}
