package dev.chagres.samples.train;

import dev.chagres.samples.esm.Esm2Size;
import java.util.Arrays;
import java.util.stream.Collectors;
import picocli.CommandLine.ITypeConverter;
import picocli.CommandLine.TypeConversionException;

/**
 * Reads an option's value that is one of a few words, in upper or lower case. picocli's own conversion names the words as
 * the constants are spelled in Java, not as users write them.
 *
 * @param <E> the type whose constants' texts are the words
 */
abstract class OptionWords<E extends Enum<E>> implements ITypeConverter<E> {
    private final E[] constants;

    private OptionWords(Class<E> type) {
        constants = type.getEnumConstants();
    }

    @Override
    public E convert(String value) {
        for (E constant : constants) {
            if (constant.toString().equalsIgnoreCase(value)) {
                return constant;
            }
        }
        String words = Arrays.stream(constants).map(Enum::toString).collect(Collectors.joining(", "));
        throw new TypeConversionException("expected one of " + words + ", got " + value);
    }

    static final class OfSize extends OptionWords<Esm2Size> {
        OfSize() {
            super(Esm2Size.class);
        }
    }

    static final class OfPacking extends OptionWords<TrainOptions.Packing> {
        OfPacking() {
            super(TrainOptions.Packing.class);
        }
    }

    static final class OfRecipe extends OptionWords<Recipe> {
        OfRecipe() {
            super(Recipe.class);
        }
    }

    static final class OfDecay extends OptionWords<RateSchedule.Decay> {
        OfDecay() {
            super(RateSchedule.Decay.class);
        }
    }

    static final class OfProvider extends OptionWords<TrainOptions.ProviderChoice> {
        OfProvider() {
            super(TrainOptions.ProviderChoice.class);
        }
    }
}
