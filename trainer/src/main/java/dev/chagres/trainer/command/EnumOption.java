package dev.chagres.trainer.command;

import dev.chagres.bindings.ForeignText;
import java.util.Arrays;
import java.util.Locale;
import java.util.stream.Collectors;
import picocli.CommandLine.ITypeConverter;
import picocli.CommandLine.TypeConversionException;

/**
 * Reads an option's value that is one of a few words, in upper or lower case. picocli's own conversion names the words as
 * the constants are spelled in Java, not as users write them.
 *
 * <p>Threading: thread-safe.
 *
 * @param <E> the type whose constants are the words
 */
public abstract class EnumOption<E extends Enum<E>> implements ITypeConverter<E> {
    /** Divides a list of words at its commas, except behind the last: picocli would leave out the empty word there. */
    public static final String LIST = ",(?!$)";

    private final E[] constants;

    /** Takes the constants of {@code type}. */
    protected EnumOption(Class<E> type) {
        constants = type.getEnumConstants();
    }

    @Override
    public E convert(String value) {
        for (E constant : constants) {
            if (word(constant).equalsIgnoreCase(value)) {
                return constant;
            }
        }
        String words = Arrays.stream(constants).map(EnumOption::word).collect(Collectors.joining(", "));
        throw new TypeConversionException(
                "expected one of " + words + ", got " + (value.isEmpty() ? "nothing" : ForeignText.plain(value)));
    }

    /** Returns a constant's own text, or its name in lower case with hyphens where it has none of its own. */
    public static String word(Enum<?> constant) {
        String text = constant.toString();
        return text.equals(constant.name()) ? text.toLowerCase(Locale.ROOT).replace('_', '-') : text;
    }
}
