package dev.chagres.trainer;

import java.nio.file.InvalidPathException;
import java.nio.file.Path;
import picocli.CommandLine.ITypeConverter;
import picocli.CommandLine.TypeConversionException;

/**
 * Reads an option's value that is the name of a file.
 *
 * <p>Threading: thread-safe.
 */
final class FileOption implements ITypeConverter<Path> {
    @Override
    public Path convert(String value) {
        try {
            return Path.of(value);
        } catch (InvalidPathException e) {
            // Java decodes arguments by the locale and has lost the letters by now.
            throw new TypeConversionException("the locale's character set, " + System.getProperty("sun.jnu.encoding")
                    + ", lacks a letter of this name; begin the command with LC_ALL=C.UTF-8");
        }
    }
}
