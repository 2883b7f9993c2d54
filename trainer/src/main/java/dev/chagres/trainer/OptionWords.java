package dev.chagres.trainer;

import dev.chagres.bindings.ForeignText;
import dev.chagres.models.esm.Esm2Recomputation;
import dev.chagres.models.esm.Esm2Size;
import dev.chagres.ops.ProductPlan;
import dev.chagres.optim.LearningRateSchedule;
import dev.chagres.sharding.GradientReduction;
import dev.chagres.sharding.GradientSync;
import dev.chagres.sharding.OptimizerSharding;
import dev.chagres.sharding.Reshard;
import dev.chagres.sharding.WeightGather;
import java.util.Arrays;
import java.util.Locale;
import java.util.stream.Collectors;
import picocli.CommandLine.ITypeConverter;
import picocli.CommandLine.TypeConversionException;

/**
 * Reads an option's value that is one of a few words, in upper or lower case. picocli's own conversion names the words as
 * the constants are spelled in Java, not as users write them.
 *
 * @param <E> the type whose constants are the words
 */
abstract class OptionWords<E extends Enum<E>> implements ITypeConverter<E> {
    private final E[] constants;

    private OptionWords(Class<E> type) {
        constants = type.getEnumConstants();
    }

    @Override
    public E convert(String value) {
        for (E constant : constants) {
            if (word(constant).equalsIgnoreCase(value)) {
                return constant;
            }
        }
        String words = Arrays.stream(constants).map(OptionWords::word).collect(Collectors.joining(", "));
        throw new TypeConversionException("expected one of " + words + ", got " + ForeignText.plain(value));
    }

    /** Returns a constant's own text, or its name in lower case with hyphens where it has none of its own. */
    static String word(Enum<?> constant) {
        String text = constant.toString();
        return text.equals(constant.name()) ? text.toLowerCase(Locale.ROOT).replace('_', '-') : text;
    }

    static final class OfSize extends OptionWords<Esm2Size> {
        OfSize() {
            super(Esm2Size.class);
        }
    }

    static final class OfPacking extends OptionWords<BatchOptions.Packing> {
        OfPacking() {
            super(BatchOptions.Packing.class);
        }
    }

    static final class OfGraph extends OptionWords<TrainOptions.GraphChoice> {
        OfGraph() {
            super(TrainOptions.GraphChoice.class);
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

    static final class OfReduceType extends OptionWords<ReduceType> {
        OfReduceType() {
            super(ReduceType.class);
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

    static final class OfRecomputation extends OptionWords<Esm2Recomputation> {
        OfRecomputation() {
            super(Esm2Recomputation.class);
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

    static final class OfProvider extends OptionWords<TrainOptions.ProviderChoice> {
        OfProvider() {
            super(TrainOptions.ProviderChoice.class);
        }
    }
}
