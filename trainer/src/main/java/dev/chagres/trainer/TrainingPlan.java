package dev.chagres.trainer;

import dev.chagres.DType;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.PackingOrder;
import dev.chagres.batch.TrainedModel;
import dev.chagres.models.decoder.DecoderConfig;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.esm.Esm2Form;
import dev.chagres.models.esm.Esm2Size;
import dev.chagres.models.huggingface.Esm2Checkpoint;
import dev.chagres.models.transformer.TransformerBody.Recomputation;
import dev.chagres.optim.LearningRateSchedule;
import dev.chagres.optim.OptimizerConfig;
import dev.chagres.pass.ActivationOffload;
import dev.chagres.trainer.command.BuildVersion;
import dev.chagres.trainer.plan.ProfileOptions;
import java.nio.file.Path;
import java.util.Locale;
import org.jspecify.annotations.Nullable;

/**
 * Everything that a run follows from.
 *
 * <p>Threading: immutable.
 *
 * @param start the model that the run begins with
 * @param data the sequences
 * @param shape layout, token budget and context of a batch
 * @param order in which sequences are packed
 * @param recipe in what precision layers compute
 * @param recomputation what backward of the layers recomputes
 * @param offload of how many layers the inputs lie in the host's memory
 * @param layout the ranks, and what each keeps of the model
 * @param enqueuing which kernels run, and how they are enqueued
 * @param steps how many updates
 * @param schedule the learning rate by step
 * @param optimizer how weights are updated
 * @param productGradients type of the gradients that products alone write
 * @param seed what data order, masks and first weights follow from
 * @param saving where the state goes, and which one the run begins with
 * @param report where the report goes, null for none
 * @param plot where the picture goes, null for none
 * @param evaluation on what the run is evaluated
 * @param profile of which steps kernels are recorded, null for none
 */
record TrainingPlan(
        Start start,
        TrainingData data,
        BatchShape shape,
        PackingOrder order,
        TrainingRecipe recipe,
        Recomputation recomputation,
        ActivationOffload offload,
        RankLayout layout,
        ModelSetup.Enqueuing enqueuing,
        int steps,
        LearningRateSchedule schedule,
        OptimizerConfig optimizer,
        DType productGradients,
        long seed,
        SavingPlan saving,
        @Nullable Path report,
        @Nullable Path plot,
        EvaluationPlan evaluation,
        ProfileOptions.@Nullable Wanted profile) {
    private static final float MAX_NORM = 1;

    /**
     * The model that a run begins with.
     *
     * @param name as {@code --model} has it: a size or a folder
     * @param model sizes and form
     * @param form as {@code --form} has it; of a folder its own, null
     * @param folder a checkpoint of Hugging Face whose weights are the first ones; null where they follow from the seed
     */
    record Start(
            String name,
            StartModel model,
            @Nullable ModelForm form,
            @Nullable Path folder) {
        static final String FOLDER = "folder";

        /** Returns a new model. */
        static Start of(Esm2Size size, ModelForm form) {
            Esm2Config config = Esm2Config.of(size, CONTEXT).withForm(form.form());
            return new Start(size.label(), new StartModel.Proteins(config), form, null);
        }

        /**
         * Returns that in a folder.
         *
         * @throws dev.chagres.models.huggingface.CheckpointException when it has no ESM-2 with the head of the masked-language model
         */
        static Start of(Path folder) {
            return new Start(folder.toString(), new StartModel.Proteins(Esm2Checkpoint.config(folder)), null, folder);
        }

        /** Returns the decoder in a folder. */
        static Start ofDecoder(Path folder, DecoderConfig config) {
            return new Start(folder.toString(), new StartModel.Decoders(config, folder), null, folder);
        }

        /** Returns the form in a report's words. */
        String formText() {
            return form == null ? FOLDER : form.toString();
        }
    }

    /** Values of {@code --form}. */
    enum ModelForm {
        /** That of the published checkpoints, which transformers computes, too. */
        PUBLISHED,
        /** That of NVIDIA's recipes. */
        NVIDIA;

        Esm2Form form() {
            return this == PUBLISHED ? Esm2Form.published() : Esm2Form.nvidia();
        }

        @Override
        public String toString() {
            return name().toLowerCase(Locale.ROOT);
        }
    }

    /** Of a model whose context is still to be set. */
    private static final int CONTEXT = 1024;

    /** Returns sizes and form of the model, and what backward recomputes. */
    TrainedModel.Factory model() {
        return start.model().factory(shape.context(), recomputation);
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
                        recipe.dtype(), recipe.quantizedWeight().orElse(null), productGradients))
                .with(layout)
                .with(new ModelSetup.Updates(optimizer, MAX_NORM))
                .with(enqueuing)
                .with(offload)
                .with(start.model().files(shape.context(), recipe.dtype()).orElse(null));
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
                "--model " + start.name(),
                "--form " + start.formText(),
                "--" + data.option() + " " + data.name() + ", " + data.content(),
                "--packing " + packing(),
                "--tokens-per-step " + shape.tokensPerStep(),
                "--context " + shape.context(),
                "--accumulate, micro-batches in all " + shape.microBatches(),
                "--recipe " + recipe,
                "--recompute " + OptionWords.word(recomputation),
                "--offload activations, layers " + offload,
                "--strategy, --mesh " + layout,
                "--product-plans " + enqueuing.productPlan(),
                "--sm-margin " + enqueuing.margin().norms(),
                "--product-sm-margin " + enqueuing.margin().products(),
                "--graph, steps " + enqueuing.steps(),
                "--steps " + steps,
                "--learning-rate " + schedule.peak(),
                "--warm-up-steps " + schedule.warmUpSteps(),
                "--decay " + schedule.decay(),
                "--optimizer " + optimizer,
                "--gradient-dtype " + productGradients,
                "--seed " + seed,
                "--fp8-statistics " + enqueuing.castStatistics(),
                "--save " + saving.file(),
                "--save-every " + saving.times(),
                "--keep-last, --keep-every, --keep-best " + saving.retention(),
                "--resume " + saving.resumed(),
                "--profile " + (profile == null ? "none" : profile.steps()),
                evaluation.purpose());
    }

    /** Returns whether casts are measured in a step, counted from 1. */
    boolean measures(int step) {
        int every = enqueuing.castStatistics();
        return every != 0 && (step - 1) % every == 0;
    }

    /** Returns the layout as {@code --packing} spells it. */
    String packing() {
        return switch (shape.layout()) {
            case PACKED -> order == PackingOrder.BEST_FIT ? "best-fit" : "on";
            case PADDED -> "off";
        };
    }
}
