package dev.chagres.recipe;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.Capture;
import dev.chagres.parameter.QuantizerSite;
import dev.chagres.parameter.QuantizerSite.Role;
import dev.chagres.parameter.State;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * The state that the quantizers of one model share: the recipe, the scales of {@link DelayedScaling} with their histories, forward and
 * backward, and the measurements of casts. It makes the quantizers.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: TE's {@code RecipeState}.
 */
final class RecipeState {
    final Recipe recipe;
    private final Scope scope;
    final CastMeasurements measurements;
    private final @Nullable DelayedScales forward;
    private final @Nullable DelayedScales backward;
    /** The amaxes of a step, forward and backward. */
    private final List<Tensor> newest = new ArrayList<>();

    private @Nullable AmaxReduction reduction;
    /** Whether the last step's amaxes were given to a reduction that is not known to have succeeded. */
    private boolean reducing;

    private boolean closed;
    /** The version of the scales. */
    private int version;

    /** Which of this step's micro-batches have recorded something. */
    final StepRecord record;

    /**
     * Allocates the scales.
     *
     * @param covered the places that will have a quantizer
     */
    RecipeState(Recipe recipe, List<QuantizerSite> covered, CastMeasurements measurements, Scope scope) {
        this.recipe = recipe;
        this.scope = scope;
        this.measurements = measurements;
        record = new StepRecord(this, scope.stream());
        if (recipe instanceof DelayedScaling delayed) {
            int gradients = Math.toIntExact(
                    covered.stream().filter(site -> site.role().isGradient()).count());
            forward = new DelayedScales(delayed, recipe.format().forward(), covered.size() - gradients, scope);
            try {
                backward = new DelayedScales(delayed, recipe.format().backward(), gradients, scope);
            } catch (RuntimeException | Error failure) {
                forward.close();
                throw failure;
            }
            forward.addNewest(newest);
            backward.addNewest(newest);
        } else {
            forward = null;
            backward = null;
        }
    }

    /** Makes the quantizer of a site; called once for each. */
    Quantizer make(QuantizerSite site) {
        Role role = site.role();
        return switch (recipe) {
            case DelayedScaling delayed ->
                Checks.given("scales", role.isGradient() ? backward : forward).next(site, this);
            case Float8CurrentScaling current ->
                new CurrentQuantizer(site, this, current.quantizations().of(role));
            case Float8BlockScaling blocks ->
                new BlockQuantizer(
                        site, blocks.scaling(role), this, blocks.quantizations().of(role));
            case MXFP8BlockScaling refused -> throw new IllegalStateException(refused + " was refused before");
            case NVFP4BlockScaling refused -> throw new IllegalStateException(refused + " was refused before");
        };
    }

    /** Returns the type of the copies of a tensor. */
    DType dtype(Role role) {
        return role.isGradient() ? recipe.format().backward() : recipe.format().forward();
    }

    /** From now on reduces the amaxes of each step over ranks; null ends that. */
    void reduceAmax(@Nullable AmaxReduction newReduction) {
        reduction = newReduction;
    }

    @Nullable
    AmaxReduction reduction() {
        return reduction;
    }

    /**
     * Enqueues the end of a step: updates the scales from the recorded amaxes.
     *
     * @param skip INT32 [1]: 1 where scales and histories stay as they were; null where they always follow
     */
    void update(@Nullable Tensor skip) {
        Stream stream = scope.stream();
        if (forward != null) { // Scales of earlier steps follow.
            countScales();
            Capture capture = Inside.capture(stream);
            if (capture != null) {
                capture.eachLaunch(this, RecipeState::countScales);
            }
        }
        record.endStep();
        measurements.restart();
        AmaxReduction present = reduction;
        if (present != null && !newest.isEmpty()) {
            keepUnreduced(skip);
            present.max(newest);
        }
        if (forward != null) {
            forward.update(skip, stream);
        }
        if (backward != null) {
            backward.update(skip, stream);
        }
    }

    private void countScales() {
        version++;
        reducing = reduction != null;
    }

    private void keepUnreduced(@Nullable Tensor skip) {
        Stream stream = scope.stream();
        if (forward != null) {
            forward.keepUnreduced(skip, stream);
        }
        if (backward != null) {
            backward.keepUnreduced(skip, stream);
        }
    }

    /** The reduction of the last step's amaxes has succeeded. */
    void confirmReduction() {
        reducing = false;
    }

    /** Enqueues the end of the last step once more with the amaxes of this rank alone, if their reduction may have failed. */
    void discardReduction() {
        if (!reducing) {
            return;
        }
        reducing = false;
        version++;
        Stream stream = scope.stream();
        if (forward != null) {
            forward.repeatUnreduced(stream);
        }
        if (backward != null) {
            backward.repeatUnreduced(stream);
        }
    }

    /** Enqueues a copy of the amaxes that this step has recorded so far, if the recipe records any. */
    void keepStep() {
        Stream stream = scope.stream();
        if (forward != null) {
            forward.keepStep(stream);
        }
        if (backward != null) {
            backward.keepStep(stream);
        }
    }

    /** Enqueues discarding the amaxes that were recorded since {@link #keepStep}. */
    void restoreStep() {
        Stream stream = scope.stream();
        if (forward != null) {
            forward.restoreStep(stream);
        }
        if (backward != null) {
            backward.restoreStep(stream);
        }
    }

    /** Enqueues discarding the amaxes that this step has recorded so far. */
    void forgetStep() {
        record.forget();
        measurements.restart();
        Stream stream = scope.stream();
        if (forward != null) {
            forward.forgetStep(stream);
        }
        if (backward != null) {
            backward.forgetStep(stream);
        }
    }

    /** Enqueues the update of values that are derived from loaded scales. */
    void afterLoading() {
        version++;
        reducing = false;
        record.mix();
        Stream stream = scope.stream();
        if (forward != null) {
            forward.invert(stream);
        }
        if (backward != null) {
            backward.invert(stream);
        }
    }

    /** Lists scales and histories, where the recipe has them. */
    void list(State.Builder state) {
        if (forward != null) {
            forward.list("forward", state);
        }
        if (backward != null) {
            backward.list("backward", state);
        }
    }

    int version() {
        return version;
    }

    boolean isClosed() {
        return closed;
    }

    void ensureOpen() {
        if (closed) {
            throw new IllegalStateException(
                    "the quantizers of the pass are closed, by themselves or with their parameters;"
                            + " call pass.noAutocast, or pass.autocast with others");
        }
    }

    /** Makes the quantizers unusable. The scope owns the memory. */
    void close() {
        closed = true;
        if (forward != null) {
            forward.close();
        }
        if (backward != null) {
            backward.close();
        }
    }
}
