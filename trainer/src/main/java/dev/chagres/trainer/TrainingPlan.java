package dev.chagres.trainer;

import dev.chagres.MultiprocessorMargin;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.PackingOrder;
import dev.chagres.batch.TrainedModel;
import dev.chagres.models.data.FastaSource;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.esm.Esm2Recomputation;
import dev.chagres.models.esm.Esm2Size;
import dev.chagres.ops.ProductPlan;
import dev.chagres.optim.LearningRateSchedule;
import java.nio.file.Path;
import org.jspecify.annotations.Nullable;

/**
 * Everything that a run follows from.
 *
 * <p>Threading: immutable.
 *
 * @param size the model
 * @param source the sequences
 * @param shape layout, token budget and context of a batch
 * @param order in which sequences are packed
 * @param recipe in what precision layers compute
 * @param recomputation what backward of the layers recomputes
 * @param productPlan by which of cuBLASLt's kernels products are computed
 * @param margin how many multiprocessors norms and products leave free
 * @param layout the ranks, and what each keeps of the model
 * @param enqueuing how the work of a step gets to the device
 * @param fp8Statistics casts to eight bits are measured in steps whose number, from 0, divides by it; 0 for none
 * @param steps how many updates
 * @param schedule the learning rate by step
 * @param seed what data order, masks and first weights follow from
 * @param saving where the state goes, and which one the run begins with
 * @param report where the report goes, null for none
 * @param plot where the picture goes, null for none
 * @param evaluation on what the run is evaluated
 */
record TrainingPlan(
        Esm2Size size,
        FastaSource source,
        BatchShape shape,
        PackingOrder order,
        TrainingRecipe recipe,
        Esm2Recomputation recomputation,
        ProductPlan productPlan,
        MultiprocessorMargin margin,
        RankLayout layout,
        ModelSetup.Steps enqueuing,
        int fp8Statistics,
        int steps,
        LearningRateSchedule schedule,
        long seed,
        SavingPlan saving,
        @Nullable Path report,
        @Nullable Path plot,
        EvaluationPlan evaluation) {

    /** Returns the sizes of the model, and what backward recomputes. */
    Esm2Config model() {
        return Esm2Config.of(size, shape.context()).withRecomputation(recomputation);
    }

    /** Returns how the model is made, and what a step does. */
    ModelSetup setup() {
        return setup(model());
    }

    /** The same of another model. */
    ModelSetup setup(TrainedModel.Factory other) {
        return ModelSetup.of(other, shape)
                .with(seed)
                .with(new ModelSetup.Precision(
                        recipe.dtype(), recipe.quantizedWeight().orElse(null)))
                .with(layout)
                .with(new ModelSetup.Enqueuing(productPlan, margin, enqueuing, fp8Statistics));
    }

    /** Returns the number of ranks. */
    int ranks() {
        return layout.count();
    }

    /** Everything that must be the same in all processes, a line each. */
    String purpose() {
        return String.join(
                "\n",
                "Chagres " + BuildVersion.text(),
                "--model " + size.label(),
                "--fasta " + source.name(),
                "--packing " + packing(),
                "--tokens-per-step " + shape.tokensPerStep(),
                "--context " + shape.context(),
                "--accumulate, micro-batches in all " + shape.microBatches(),
                "--recipe " + recipe,
                "--recompute " + OptionWords.word(recomputation),
                "--strategy, --mesh " + layout,
                "--product-plans " + productPlan,
                "--sm-margin " + margin.norms(),
                "--product-sm-margin " + margin.products(),
                "--graph, steps " + enqueuing,
                "--steps " + steps,
                "--learning-rate " + schedule.peak(),
                "--warm-up-steps " + schedule.warmUpSteps(),
                "--decay " + schedule.decay(),
                "--seed " + seed,
                "--fp8-statistics " + fp8Statistics,
                "--save " + saving.file(),
                "--save-every " + saving.every(),
                "--resume " + saving.resumed(),
                evaluation.purpose());
    }

    /** Returns whether casts are measured in a step, counted from 1. */
    boolean measures(int step) {
        return fp8Statistics != 0 && (step - 1) % fp8Statistics == 0;
    }

    /** Returns the layout as {@code --packing} spells it. */
    String packing() {
        return switch (shape.layout()) {
            case PACKED -> order == PackingOrder.BEST_FIT ? "best-fit" : "on";
            case PADDED -> "off";
        };
    }
}
