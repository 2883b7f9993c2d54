package dev.chagres.trainer;

import dev.chagres.DType;
import dev.chagres.MultiprocessorMargin;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.TrainedModel;
import dev.chagres.io.ModelFiles;
import dev.chagres.mesh.MeshShape;
import dev.chagres.ops.ProductPlan;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.OptimizerConfig;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.pass.ActivationOffload;
import dev.chagres.recipe.Recipe;
import java.util.Locale;
import org.jspecify.annotations.Nullable;

/**
 * How a model is made and what a step of it does, on each rank the same.
 *
 * <p>Threading: immutable.
 *
 * @param factory makes the model
 * @param shape the most that a batch may hold
 * @param seed what the first weights follow from
 * @param precision of weights, activations and products
 * @param layout the ranks, and what each keeps of the model
 * @param updates of the weights
 * @param enqueuing how the work of a step gets to the device
 * @param offload of how many layers the inputs lie in the host's memory
 * @param files under which names weights lie in checkpoints, and what beside them; null for their own
 */
record ModelSetup(
        TrainedModel.Factory factory,
        BatchShape shape,
        long seed,
        Precision precision,
        RankLayout layout,
        Updates updates,
        Enqueuing enqueuing,
        ActivationOffload offload,
        @Nullable ModelFiles files) {
    /**
     * Master weights are FLOAT32, and so are gradients, but for those that products alone write.
     *
     * @param dtype of weights and activations
     * @param recipe of the layers' products in eight bits; null where they are computed in {@code dtype}
     * @param productGradients type of the gradients that products alone write: FLOAT32 or {@code dtype}
     */
    record Precision(DType dtype, @Nullable Recipe recipe, DType productGradients) {
        /** With FLOAT32 gradients. */
        Precision(DType dtype, @Nullable Recipe recipe) {
            this(dtype, recipe, DType.FLOAT32);
        }
    }

    /**
     * Clipping, then the step of an optimizer.
     *
     * @param maxNorm to which the gradients' norm is clipped
     */
    record Updates(OptimizerConfig optimizer, float maxNorm) {}

    /**
     * Kernels, and how they are enqueued.
     *
     * @param productPlan by which of cuBLASLt's kernels products are computed
     * @param margin how many multiprocessors norms and products leave free
     * @param castStatistics casts to eight bits are measured in steps whose number, from 0, divides by it; 0 for none
     */
    record Enqueuing(ProductPlan productPlan, MultiprocessorMargin margin, Steps steps, int castStatistics) {
        /** The first kernel that cuBLASLt names for each product, on all multiprocessors, enqueued one by one. */
        static final Enqueuing STANDARD =
                new Enqueuing(ProductPlan.FIRST, MultiprocessorMargin.NONE, Steps.ENQUEUED, 0);
    }

    /** How the work of a step gets to the device. */
    enum Steps {
        /** Captured once for each bucket of batches, then replayed. */
        CAPTURED,
        /** Kernel by kernel. */
        ENQUEUED;

        @Override
        public String toString() {
            return name().toLowerCase(Locale.ROOT);
        }
    }

    /** What trains unless another optimizer is asked for. */
    static final AdamW.Config ADAM = new AdamW.Config(0.9f, 0.98f, 1e-8f, 0.01f);

    /** Returns FP32 weights on one rank, whose gradients' norm is clipped to 1, and AdamW (0.9, 0.98, 1e-8, decay 0.01 of matrices). */
    static ModelSetup of(TrainedModel.Factory factory, BatchShape shape) {
        return new ModelSetup(
                factory,
                shape,
                0,
                new Precision(DType.FLOAT32, null),
                RankLayout.of(MeshShape.ofOne()),
                new Updates(ADAM, 1),
                Enqueuing.STANDARD,
                ActivationOffload.none(),
                null);
    }

    /** Sets in a plan that has no memory yet how its parameters are laid out. */
    void layOut(ModelPlan plan) {
        plan.alignParameters(updates.optimizer().alignment());
        plan.productGradients(precision.productGradients());
    }

    /** Returns the same with other first weights. */
    ModelSetup with(long newSeed) {
        return new ModelSetup(factory, shape, newSeed, precision, layout, updates, enqueuing, offload, files);
    }

    /** Returns the same in another precision. */
    ModelSetup with(Precision newPrecision) {
        return new ModelSetup(factory, shape, seed, newPrecision, layout, updates, enqueuing, offload, files);
    }

    /** Returns the same on other ranks. */
    ModelSetup with(RankLayout newLayout) {
        return new ModelSetup(factory, shape, seed, precision, newLayout, updates, enqueuing, offload, files);
    }

    /** Returns the same with other updates. */
    ModelSetup with(Updates newUpdates) {
        return new ModelSetup(factory, shape, seed, precision, layout, newUpdates, enqueuing, offload, files);
    }

    /** Returns the same with work that gets to the device in another way. */
    ModelSetup with(Enqueuing newEnqueuing) {
        return new ModelSetup(factory, shape, seed, precision, layout, updates, newEnqueuing, offload, files);
    }

    /** Returns the same with inputs of other layers in the host's memory. */
    ModelSetup with(ActivationOffload newOffload) {
        return new ModelSetup(factory, shape, seed, precision, layout, updates, enqueuing, newOffload, files);
    }

    /** Returns the same whose checkpoints are also such of another form. */
    ModelSetup with(@Nullable ModelFiles newFiles) {
        return new ModelSetup(factory, shape, seed, precision, layout, updates, enqueuing, offload, newFiles);
    }
}
