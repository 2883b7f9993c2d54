package dev.chagres.trainer;

import dev.chagres.DType;
import dev.chagres.models.transformer.TransformerBody.Recomputation;
import dev.chagres.optim.Adafactor;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.AveragedConfig;
import dev.chagres.optim.LearningRateSchedule.Decay;
import dev.chagres.optim.Lion;
import dev.chagres.optim.Muon;
import dev.chagres.optim.OffloadedConfig;
import dev.chagres.optim.OptimizerConfig;
import dev.chagres.optim.SGD;
import dev.chagres.optim.ScheduleFreeAdamW;
import dev.chagres.pass.ActivationOffload;
import dev.chagres.trainer.command.EnumOption;
import java.util.List;
import java.util.Locale;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Option;

/** Options of {@code train} that say how weights are updated, and what lies in the host's memory. */
final class OptimizerOptions {
    private static final float DECAY = 0.01f;
    private static final float MOMENTUM = 0.9f;

    /** Values of {@code --optimizer}. */
    enum Choice {
        ADAMW("adamw", 1),
        SGD("sgd", 25),
        LION("lion", 0.1f),
        ADAFACTOR("adafactor", 25),
        ADAMW_8_BIT("adamw8bit", 1),
        LION_8_BIT("lion8bit", 0.1f),
        MUON("muon", 1),
        SCHEDULE_FREE("schedule-free", 1);

        private final String word;
        /** The default of the highest learning rate, as a multiple of AdamW's. */
        private final float rate;

        Choice(String word, float rate) {
            this.word = word;
            this.rate = rate;
        }

        private boolean isSgd() {
            return this == SGD;
        }

        @Override
        public String toString() {
            return word;
        }
    }

    @Option(
            names = "--optimizer",
            converter = OptionWords.OfOptimizer.class,
            paramLabel = "adamw|sgd|lion|adafactor|adamw8bit|lion8bit|muon|schedule-free",
            description =
                    "how weights are updated; 8bit: with states of eight bits. Default rates are 25 times as high with sgd"
                            + " and adafactor, and a tenth with lion (default: adamw)")
    private Choice optimizer = Choice.ADAMW;

    @Option(
            names = "--weight-decay",
            paramLabel = "DECAY",
            description = "weight decay of matrices (default: 0.01, lion: 0.1)")
    private @Nullable Float weightDecay;

    @Option(
            names = "--momentum",
            paramLabel = "PART",
            description = "with sgd, the share that a step keeps (default: 0.9)")
    private @Nullable Float momentum;

    @Option(names = "--nesterov", description = "with sgd, Nesterov's momentum")
    private boolean nesterov;

    @Option(
            names = "--ema",
            paramLabel = "DECAY",
            description =
                    "also keep an exponential moving average of the weights, of which a step keeps this share, such as"
                            + " 0.999: it is what is evaluated")
    private @Nullable Float ema;

    @Option(
            names = "--gradient-dtype",
            converter = OptionWords.OfGradientType.class,
            paramLabel = "fp32|bf16",
            description =
                    "on one rank, the type of the gradients of weights that products alone read: bf16 takes two bytes an element"
                            + " less, and rounds the sum of micro-batches each time; not with adafactor and muon (default: fp32)")
    private OptionWords.GradientType gradientType = OptionWords.GradientType.FP32;

    /** Values of {@code --offload}. */
    enum Offload {
        /** Moments and masters. */
        OPTIMIZER,
        /** Inputs of layers that are recomputed. */
        ACTIVATIONS;

        @Override
        public String toString() {
            return name().toLowerCase(Locale.ROOT);
        }
    }

    static final class OfOffload extends EnumOption<Offload> {
        OfOffload() {
            super(Offload.class);
        }
    }

    @Option(
            names = "--offload",
            split = EnumOption.LIST,
            converter = OfOffload.class,
            paramLabel = "optimizer,activations",
            description =
                    "what lies in page-locked memory of the host, and is copied to the device and back beside the steps, which are"
                            + " not captured then. optimizer: moments and masters of adamw; activations: the inputs of layers, with"
                            + " --recompute layers (default: nothing)")
    private List<Offload> offload = List.of();

    @Option(
            names = "--offload-layers",
            paramLabel = "N",
            description =
                    "with --offload activations: of the first N layers, or of as many of each pipeline stage (default: all)")
    private @Nullable Integer offloadedLayers;

    /** Returns whether steps can be captured. */
    boolean isCapturable() {
        return offload.isEmpty();
    }

    /** Returns of how many layers the inputs lie in the host's memory. */
    ActivationOffload activations() {
        if (!offload.contains(Offload.ACTIVATIONS)) {
            return ActivationOffload.none();
        }
        return offloadedLayers == null ? ActivationOffload.all() : new ActivationOffload(offloadedLayers);
    }

    /**
     * Checks what does not depend on the platform.
     *
     * @param recomputation that of the layers, which says what they keep; null where it is left out
     * @param ranks how many train
     * @throws IllegalArgumentException when an option has no usable value; the text names it
     */
    void check(@Nullable Recomputation recomputation, int ranks) {
        checkOffload(recomputation);
        checkGradients(ranks);
        if (ema != null && !(ema > 0 && ema < 1)) {
            throw new IllegalArgumentException("--ema: expected a number above 0 and below 1, got " + ema);
        }
        if (ema != null && optimizer == Choice.SCHEDULE_FREE) {
            throw new IllegalArgumentException(
                    "--ema: expected an optimizer that keeps no average of its own, got schedule-free");
        }
        if (weightDecay != null && !(weightDecay >= 0 && weightDecay < Float.POSITIVE_INFINITY)) {
            throw new IllegalArgumentException("--weight-decay: expected a number of at least 0, got " + weightDecay);
        }
        if (momentum != null && !(momentum >= 0 && momentum < 1)) {
            throw new IllegalArgumentException("--momentum: expected a number from 0 to below 1, got " + momentum);
        }
        if (momentum != null && !optimizer.isSgd()) {
            throw new IllegalArgumentException("--momentum: expected --optimizer sgd beside it, got " + optimizer);
        }
        if (nesterov && !optimizer.isSgd()) {
            throw new IllegalArgumentException("--nesterov: expected --optimizer sgd beside it, got " + optimizer);
        }
        if (nesterov && momentum != null && momentum == 0) {
            throw new IllegalArgumentException("--nesterov: expected --momentum above 0, got 0");
        }
    }

    private void checkGradients(int ranks) {
        if (gradientType == OptionWords.GradientType.FP32) {
            return;
        }
        if (ranks > 1) {
            throw new IllegalArgumentException("--gradient-dtype: expected fp32 on " + ranks
                    + " ranks, which sum gradients, got " + OptionWords.word(gradientType) + "; use --reduce-dtype");
        }
        if (optimizer == Choice.ADAFACTOR || optimizer == Choice.MUON) {
            throw new IllegalArgumentException("--gradient-dtype: expected fp32 beside --optimizer " + optimizer
                    + ", got " + OptionWords.word(gradientType));
        }
    }

    private void checkOffload(@Nullable Recomputation recomputation) {
        if (offload.contains(Offload.OPTIMIZER) && optimizer != Choice.ADAMW) {
            throw new IllegalArgumentException(
                    "--offload: expected --optimizer adamw beside optimizer, whose moments and masters are streamed, got "
                            + optimizer);
        }
        if (offload.contains(Offload.ACTIVATIONS) && recomputation != Recomputation.LAYERS) {
            throw new IllegalArgumentException(
                    "--offload: expected --recompute layers beside activations, for other layers keep more than their inputs,"
                            + " got " + (recomputation == null ? "none" : OptionWords.word(recomputation)));
        }
        if (offloadedLayers == null) {
            return;
        }
        if (!offload.contains(Offload.ACTIVATIONS)) {
            throw new IllegalArgumentException("--offload-layers: expected --offload activations beside it, got none");
        }
        TrainOptions.requireAtLeast("--offload-layers", offloadedLayers, 1);
    }

    /**
     * Returns the type of the gradients that products alone write.
     *
     * @throws IllegalArgumentException when it is neither FLOAT32 nor that of the recipe's weights
     */
    DType productGradients(TrainingRecipe recipe) {
        DType type = gradientType.dtype();
        if (type != DType.FLOAT32 && type != recipe.dtype()) {
            throw new IllegalArgumentException("--gradient-dtype: expected fp32 or the type of the weights, which is "
                    + recipe.dtype() + " with --recipe " + recipe + ", got " + OptionWords.word(gradientType));
        }
        return type;
    }

    /** Returns the settings. */
    OptimizerConfig config() {
        OptimizerConfig chosen = chosen();
        return ema == null ? chosen : chosen.withAverage(ema);
    }

    private OptimizerConfig chosen() {
        boolean isLion = optimizer == Choice.LION || optimizer == Choice.LION_8_BIT;
        float decay = weightDecay != null ? weightDecay : isLion ? 10 * DECAY : DECAY;
        AdamW.Config adam = ModelSetup.ADAM.withWeightDecay(decay);
        Lion.Config lion = Lion.Config.standard().withWeightDecay(decay);
        SGD.Config sgd = new SGD.Config(momentum != null ? momentum : MOMENTUM, decay);
        return switch (optimizer) {
            case ADAMW -> offload.contains(Offload.OPTIMIZER) ? adam.offloaded() : adam;
            case ADAMW_8_BIT -> adam.withMomentDType(DType.BYTE);
            case LION -> lion;
            case LION_8_BIT -> lion.withMomentDType(DType.BYTE);
            case SGD -> nesterov ? sgd.withKind(SGD.Momentum.NESTEROV) : sgd;
            case ADAFACTOR -> Adafactor.Config.standard().withWeightDecay(decay);
            case MUON -> Muon.Config.standard().withWeightDecay(decay).withOthers(adam);
            case SCHEDULE_FREE -> ScheduleFreeAdamW.Config.standard().withWeightDecay(decay);
        };
    }

    /** Returns the value of {@code --optimizer} that gives such settings. */
    static String word(OptimizerConfig config) {
        return choice(config).toString();
    }

    private static Choice choice(OptimizerConfig config) {
        return switch (config) {
            case AdamW.Config adam -> adam.momentDType() == DType.BYTE ? Choice.ADAMW_8_BIT : Choice.ADAMW;
            case OffloadedConfig _ -> Choice.ADAMW;
            case Lion.Config lion -> lion.momentDType() == DType.BYTE ? Choice.LION_8_BIT : Choice.LION;
            case Adafactor.Config _ -> Choice.ADAFACTOR;
            case Muon.Config _ -> Choice.MUON;
            case SGD.Config _ -> Choice.SGD;
            case ScheduleFreeAdamW.Config _ -> Choice.SCHEDULE_FREE;
            case AveragedConfig averaged -> choice(averaged.updates());
        };
    }

    /** Returns the value of {@code --ema} that gives such settings; empty where no average is kept. */
    static String average(OptimizerConfig config) {
        return config instanceof AveragedConfig averaged ? Float.toString(averaged.decay()) : "";
    }

    /** Returns the highest learning rate where none was given, of that of AdamW. */
    float rate(float ofAdam) {
        return optimizer.rate * ofAdam;
    }

    /** Returns how the rate falls where that was not said: averages of steps need no schedule. */
    Decay decay() {
        return optimizer == Choice.SCHEDULE_FREE ? Decay.CONSTANT : Decay.LINEAR;
    }
}
