package dev.chagres.trainer.command;

import dev.chagres.bindings.ForeignText;
import dev.chagres.models.data.HeldOut;
import picocli.CommandLine.ITypeConverter;
import picocli.CommandLine.TypeConversionException;

/**
 * Reads the part of the data that a command holds out, between 0 and 1.
 *
 * <p>Threading: thread-safe.
 */
public final class HeldOutOption implements ITypeConverter<HeldOut> {
    @Override
    public HeldOut convert(String value) {
        try {
            return new HeldOut(Double.parseDouble(value));
        } catch (IllegalArgumentException outside) { // a NumberFormatException, too
            throw new TypeConversionException("expected a number between 0 and 1, got "
                    + (value.isEmpty() ? "nothing" : ForeignText.plain(value)));
        }
    }
}
