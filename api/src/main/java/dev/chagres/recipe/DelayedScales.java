package dev.chagres.recipe;

import dev.chagres.DType;
import dev.chagres.Rectangle;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.ops.Elementwise;
import dev.chagres.ops.LossScale;
import dev.chagres.parameter.QuantizerSite;
import dev.chagres.parameter.QuantizerSite.Role;
import dev.chagres.parameter.State;
import dev.chagres.parameter.State.Values;
import dev.chagres.te.AmaxHistories;
import dev.chagres.te.RecipeUpdates;
import dev.chagres.te.TensorScale;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * The scales of one direction, forward or backward, and their amax history: one column per site.
 *
 * <p>Threading: the device's thread.
 */
final class DelayedScales {
    /** Elements from one inverse to the next: cuBLASLt reads scales from multiples of 16 bytes. */
    private static final int APART = 4;
    /** The largest number of E4M3, in which every format has softmax weights. */
    private static final float LARGEST = 448;

    private final DelayedScaling recipe;
    private final DType dtype;
    private final Scope scope;
    private final Tensor scale;
    private final Tensor inverses;
    /** The same, each where cuBLASLt and cuDNN can read it. */
    private final Tensor scaleInverse;

    /** Receives amaxes that are not recorded. */
    private final Tensor unrecorded;

    private final Tensor history;
    private final Tensor newest;
    /** The first row of the history as it was when a micro-batch began. */
    private final Tensor kept;

    private final AmaxHistories updates;
    private final int places;
    private final Rectangle together;
    private final Rectangle apart;
    private final Map<String, Tensor> scales = new LinkedHashMap<>();
    /** Allocated at the first step that may be skipped. */
    private @Nullable SavedScales saved;
    /** Allocated at the first step whose amaxes are reduced over ranks. */
    private @Nullable SavedScales unreduced;
    /** INT32 [1]: 1 where that step was skipped. */
    private @Nullable Tensor skipped;

    private int taken;

    DelayedScales(DelayedScaling recipe, DType dtype, int places, Scope scope) {
        this.recipe = recipe;
        this.dtype = dtype;
        this.scope = scope;
        this.places = places;
        Stream stream = scope.stream();
        scale = scope.tensor(DType.FLOAT32, places);
        float[] ones = new float[places];
        Arrays.fill(ones, 1);
        scale.set(stream, ones);
        inverses = scope.tensor(DType.FLOAT32, places);
        inverses.set(stream, ones);
        scaleInverse = scope.tensor(DType.FLOAT32, APART * places);
        together = new Rectangle(0, places, 1, 1);
        apart = new Rectangle(0, places, 1, APART);
        scaleInverse.zero(stream);
        scaleInverse.copyFrom(stream, apart, inverses, together);
        unrecorded = scope.tensor(DType.FLOAT32, places);
        unrecorded.zero(stream);
        history = scope.tensor(DType.FLOAT32, recipe.amaxHistoryLength(), places);
        history.zero(stream);
        newest = scope.view(history, 0, places);
        kept = scope.tensor(DType.FLOAT32, places);
        updates = AmaxHistories.of(new Tensor[] {history}, new Tensor[] {scale}, stream);
    }

    /** Returns the quantizer of the next place. */
    Quantizer next(QuantizerSite site, RecipeState state) {
        int place = taken++;
        if (site.role() == Role.ATTENTION_WEIGHTS) {
            return new DelayedQuantizer(site, state, scaleOfWeights(place), scope.view(unrecorded, place, 1));
        }
        Tensor one = scope.view(scale, place, 1);
        scales.put(site.name(), one);
        TensorScale recorded =
                new TensorScale(one, scope.view(scaleInverse, (long) APART * place, 1), scope.view(history, place, 1));
        return new DelayedQuantizer(site, state, recorded, scope.view(unrecorded, place, 1));
    }

    /**
     * Returns the scale of softmax weights, which stays. cuDNN scales them in forward before it divides by their sum, when the largest of each row
     * is 1: a scale that followed the largest weight behind the division would cut those off.
     */
    private TensorScale scaleOfWeights(int place) {
        float largest = Math.scalb(LARGEST, -recipe.margin());
        Tensor fixed = scope.tensor(DType.FLOAT32, 1);
        fixed.set(scope.stream(), largest);
        Tensor inverse = scope.tensor(DType.FLOAT32, 1);
        inverse.set(scope.stream(), 1 / largest);
        return new TensorScale(fixed, inverse, scope.view(history, place, 1));
    }

    /** Adds the amaxes of this step, if there are any sites. */
    void addNewest(List<Tensor> amaxes) {
        if (places > 0) {
            amaxes.add(newest);
        }
    }

    /**
     * Enqueues the end of a step: rotates the history, and updates the scales from it.
     *
     * @param skip INT32 [1]: 1 where all stays as it was before the step; null where it always moves on
     */
    void update(@Nullable Tensor skip, Stream stream) {
        if (places == 0) {
            return;
        }
        if (skip == null) {
            follow(stream);
        } else {
            SavedScales before = saved();
            before.save(stream);
            before.discardNewest(stream);
            follow(stream);
            before.restore(skip, stream);
        }
        invert(stream);
    }

    private SavedScales saved() {
        SavedScales present = saved;
        if (present == null) {
            present = new SavedScales(scale, history, places, scope);
            saved = present;
        }
        return present;
    }

    /** Enqueues a copy of all that the end of a step changes, before the step's amaxes are reduced over ranks. */
    void keepUnreduced(@Nullable Tensor skip, Stream stream) {
        if (places == 0) {
            return;
        }
        SavedScales present = unreduced;
        Tensor kept = skipped;
        if (present == null || kept == null) {
            present = new SavedScales(scale, history, places, scope);
            unreduced = present;
            kept = scope.tensor(DType.INT32, 1);
            skipped = kept;
        }
        present.save(stream);
        if (skip == null) {
            kept.zero(stream);
        } else {
            kept.copyFrom(stream, skip);
        }
    }

    /** Enqueues the end of the step that {@link #keepUnreduced} has kept once more, with the amaxes of this rank alone. */
    void repeatUnreduced(Stream stream) {
        SavedScales present = unreduced;
        if (present != null) {
            present.restore(stream);
            update(skipped, stream);
        }
    }

    private void follow(Stream stream) {
        RecipeUpdates.delayedScalingUpdateAfterReduction(
                null, updates, recipe.amaxComputeAlgorithm(), dtype, recipe.margin(), stream);
    }

    /** Enqueues the inverses of the scales, which attention's kernels read but do not write. */
    void invert(Stream stream) {
        if (places > 0 && recipe.attention() != AttentionPrecision.HIGH_PRECISION) {
            Elementwise.reciprocal(scale, inverses, stream);
            scaleInverse.copyFrom(stream, apart, inverses, together);
        }
    }

    /** Enqueues discarding the amaxes that this step has recorded so far. */
    void forgetStep(Stream stream) {
        newest.zero(stream);
    }

    /** Enqueues a copy of the amaxes that this step has recorded so far. */
    void keepStep(Stream stream) {
        kept.copyFrom(stream, newest);
    }

    /** Enqueues discarding the amaxes that were recorded since {@link #keepStep}. */
    void restoreStep(Stream stream) {
        newest.copyFrom(stream, kept);
    }

    void close() {
        updates.close();
    }

    void list(String direction, State.Builder state) {
        if (places > 0) {
            // Names identify sites and type: scales of other ones are not loaded.
            scales.forEach((site, one) -> state.tensor(site + ".scale", one, Values.POSITIVE));
            String type = dtype.name().toLowerCase(Locale.ROOT);
            state.tensor("quantizers." + direction + "." + type + ".amax_history", history, Values.NOT_NEGATIVE);
        }
    }

    /**
     * Scales and histories as they were before the end of a step, which the device may skip, or a rank may repeat with its own amaxes.
     */
    private static final class SavedScales {
        private final Tensor scale;
        private final Tensor history;
        private final Tensor savedScale;
        private final Tensor savedHistory;
        /** The first row: the amaxes of the step. */
        private final Tensor savedNewest;

        /** Allocates a copy of both in {@code scope}. */
        SavedScales(Tensor scale, Tensor history, int places, Scope scope) {
            this.scale = scale;
            this.history = history;
            savedScale = scope.tensor(DType.FLOAT32, places);
            savedHistory = scope.tensor(DType.FLOAT32, history.size(0), places);
            savedNewest = scope.view(savedHistory, 0, places);
        }

        /** Enqueues copies of both before the step updates them, with the step's amaxes. */
        void save(Stream stream) {
            savedScale.copyFrom(stream, scale);
            savedHistory.copyFrom(stream, history);
        }

        /** Enqueues discarding the step's amaxes in the copies. */
        void discardNewest(Stream stream) {
            savedNewest.zero(stream);
        }

        /** Enqueues restoring both. */
        void restore(Stream stream) {
            scale.copyFrom(stream, savedScale);
            history.copyFrom(stream, savedHistory);
        }

        /** Enqueues restoring them if {@code skip} is 1. */
        void restore(Tensor skip, Stream stream) {
            LossScale.restore(skip, savedScale, scale, stream);
            LossScale.restore(skip, savedHistory, history, stream);
        }
    }
}
