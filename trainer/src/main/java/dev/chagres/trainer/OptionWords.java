package dev.chagres.trainer;

import dev.chagres.DType;
import dev.chagres.bindings.ForeignText;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.models.transformer.TransformerBody.Recomputation;
import dev.chagres.ops.ProductPlan;
import dev.chagres.optim.LearningRateSchedule;
import dev.chagres.sharding.GradientReduction;
import dev.chagres.sharding.GradientSync;
import dev.chagres.sharding.OptimizerSharding;
import dev.chagres.sharding.Reshard;
import dev.chagres.sharding.WeightGather;
import dev.chagres.trainer.RankLayout.CpCommType;
import dev.chagres.trainer.command.EnumOption;
import java.util.EnumSet;
import java.util.Locale;
import java.util.Set;
import picocli.CommandLine.ITypeConverter;
import picocli.CommandLine.TypeConversionException;

/**
 * Reads an option's value that is one of a few words, in upper or lower case. picocli's own conversion names the words as
 * the constants are spelled in Java, not as users write them.
 *
 * @param <E> the type whose constants are the words
 */
abstract class OptionWords<E extends Enum<E>> extends EnumOption<E> {
    private OptionWords(Class<E> type) {
        super(type);
    }

    static final class OfForm extends OptionWords<TrainingPlan.ModelForm> {
        OfForm() {
            super(TrainingPlan.ModelForm.class);
        }
    }

    static final class OfPacking extends OptionWords<BatchOptions.Packing> {
        OfPacking() {
            super(BatchOptions.Packing.class);
        }
    }

    static final class OfGraph extends OptionWords<EnqueuingOptions.GraphChoice> {
        OfGraph() {
            super(EnqueuingOptions.GraphChoice.class);
        }
    }

    static final class OfStrategy extends OptionWords<RankStrategy> {
        OfStrategy() {
            super(RankStrategy.class);
        }

        @Override
        public RankStrategy convert(String value) {
            try {
                return super.convert(value);
            } catch (TypeConversionException e) {
                if (!value.equalsIgnoreCase("fsdp")) {
                    throw e;
                }
                throw new TypeConversionException(e.getMessage() + "; what PyTorch calls fsdp is zero3 here");
            }
        }
    }

    static final class OfOptimizerSharding extends OptionWords<OptimizerSharding> {
        OfOptimizerSharding() {
            super(OptimizerSharding.class);
        }
    }

    static final class OfWeightGather extends OptionWords<WeightGather> {
        OfWeightGather() {
            super(WeightGather.class);
        }
    }

    static final class OfGradientReduction extends OptionWords<GradientReduction> {
        OfGradientReduction() {
            super(GradientReduction.class);
        }
    }

    static final class OfReshard extends OptionWords<Reshard> {
        OfReshard() {
            super(Reshard.class);
        }
    }

    static final class OfGradientSync extends OptionWords<GradientSync> {
        OfGradientSync() {
            super(GradientSync.class);
        }
    }

    static final class OfGradientType extends OptionWords<GradientType> {
        OfGradientType() {
            super(GradientType.class);
        }
    }

    static final class OfCpCommType extends OptionWords<CpCommType> {
        OfCpCommType() {
            super(CpCommType.class);
        }
    }

    static final class OfRecipe extends OptionWords<TrainingRecipe> {
        OfRecipe() {
            super(TrainingRecipe.class);
        }
    }

    static final class OfRecomputation extends OptionWords<Recomputation> {
        OfRecomputation() {
            super(Recomputation.class);
        }
    }

    static final class OfProductPlan extends OptionWords<ProductPlan> {
        OfProductPlan() {
            super(ProductPlan.class);
        }
    }

    static final class OfDecay extends OptionWords<LearningRateSchedule.Decay> {
        OfDecay() {
            super(LearningRateSchedule.Decay.class);
        }
    }

    static final class OfOptimizer extends OptionWords<OptimizerOptions.Choice> {
        OfOptimizer() {
            super(OptimizerOptions.Choice.class);
        }
    }

    static final class OfProvider extends OptionWords<TrainOptions.ProviderChoice> {
        OfProvider() {
            super(TrainOptions.ProviderChoice.class);
        }
    }

    /** Reads sizes by dimension, such as {@code replicate=2,shard=4}. */
    static final class MeshWords implements ITypeConverter<MeshShape> {
        @Override
        public MeshShape convert(String value) {
            MeshShape shape = MeshShape.ofOne();
            Set<MeshDimension> named = EnumSet.noneOf(MeshDimension.class);
            for (String part : value.split(",", -1)) {
                String[] words = part.split("=", -1);
                MeshDimension dimension = dimension(words[0], value);
                if (words.length != 2) {
                    throw wrong("numbers of ranks, such as replicate=2,shard=4", value);
                }
                if (!named.add(dimension)) {
                    throw wrong("each dimension once", words[0] + " a second time in " + value);
                }
                shape = with(shape, dimension, words[1], value);
            }
            return shape;
        }

        private static MeshShape with(MeshShape shape, MeshDimension dimension, String size, String value) {
            int ranks;
            try {
                ranks = Integer.parseInt(size);
            } catch (NumberFormatException e) {
                throw wrong("numbers of ranks, such as replicate=2,shard=4", value);
            }
            try {
                return shape.with(dimension, ranks);
            } catch (IllegalArgumentException e) {
                throw new TypeConversionException(
                        String.valueOf(e.getMessage()).replace("size: ", "") + " in " + ForeignText.plain(value));
            }
        }

        private static MeshDimension dimension(String word, String value) {
            return switch (word.toLowerCase(Locale.ROOT)) {
                case "replicate" -> MeshDimension.REPLICATE;
                case "shard" -> MeshDimension.SHARD;
                case "tensor" -> MeshDimension.TENSOR;
                case "pipeline" -> MeshDimension.PIPELINE;
                case "context" -> MeshDimension.CONTEXT;
                default ->
                    throw wrong(
                            "pipeline, replicate, shard, context or tensor, each with a number of ranks,"
                                    + " such as replicate=2,shard=4",
                            value);
            };
        }

        private static TypeConversionException wrong(String expected, String got) {
            return new TypeConversionException("expected " + expected + ", got " + got);
        }
    }

    /** Values of {@code --reduce-dtype} and {@code --gradient-dtype}: the type in which ranks sum gradients, or products write them. */
    enum GradientType {
        FP32(DType.FLOAT32),
        BF16(DType.BFLOAT16),
        FP16(DType.FLOAT16);

        private final DType dtype;

        GradientType(DType dtype) {
            this.dtype = dtype;
        }

        DType dtype() {
            return dtype;
        }

        @Override
        public String toString() {
            return name().toLowerCase(Locale.ROOT);
        }
    }
}
