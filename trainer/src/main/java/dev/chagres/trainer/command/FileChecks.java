package dev.chagres.trainer.command;

import dev.chagres.bindings.ForeignText;
import dev.chagres.io.AtomicFile;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.InvalidPathException;
import java.nio.file.Path;
import java.util.Locale;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.ITypeConverter;
import picocli.CommandLine.TypeConversionException;

/** Checks of options that name files. Each throws an {@link IllegalArgumentException} that names the option. */
public final class FileChecks {
    private FileChecks() {}

    /** Refuses an empty name, and one of no file, such as {@code /}. */
    public static void requireName(String option, @Nullable Path file) {
        if (file != null && (file.getFileName() == null || file.toString().isEmpty())) {
            throw new IllegalArgumentException(option + ": expected the name of a file, got "
                    + (file.toString().isEmpty() ? "an empty one" : ForeignText.plain(file)));
        }
    }

    /** Refuses a name that does not end with {@code .png}, and any where no picture can be drawn. */
    public static void requirePicture(String option, @Nullable Path file) {
        requireName(option, file);
        if (file != null && !file.toString().toLowerCase(Locale.ROOT).endsWith(".png")) {
            throw new IllegalArgumentException(
                    option + ": expected a name that ends with .png, got " + ForeignText.plain(file));
        }
        String missing = file == null ? null : Pictures.missing();
        if (missing != null) {
            throw new IllegalArgumentException(option + ": " + missing + ", or leave " + option + " out");
        }
    }

    /** Refuses the file of another option. */
    public static void requireDifferent(String option, @Nullable Path file, String other, @Nullable Path otherFile) {
        if (file == null || otherFile == null) {
            return;
        }
        if (isSame(file, otherFile)) {
            throw new IllegalArgumentException(
                    option + ": " + ForeignText.plain(file) + " is the file of " + other + "; name another one");
        }
    }

    /** Refuses a file that would be written over another one while it is not whole yet. */
    public static void requireOtherPart(String option, @Nullable Path file, String other, @Nullable Path otherFile) {
        if (file != null && otherFile != null && isSame(AtomicFile.part(file), otherFile)) {
            throw new IllegalArgumentException(
                    option + ": " + ForeignText.plain(file) + " is called " + ForeignText.plain(otherFile)
                            + " until it is whole, and that is the file of " + other + "; name another one");
        }
    }

    /** Refuses to write a file over that of another option, also while it is not whole yet. */
    public static void requireApart(String option, @Nullable Path file, String other, @Nullable Path otherFile) {
        requireDifferent(option, file, other, otherFile);
        requireOtherPart(option, file, other, otherFile);
    }

    /** Refuses to write over a file that is in the folder of another option. */
    static void requireOutside(String option, @Nullable Path file, String other, Path folder) {
        Path parent = file == null ? null : file.toAbsolutePath().getParent();
        if (file != null && parent != null && Files.isRegularFile(file) && isSame(parent, folder)) {
            throw new IllegalArgumentException(option + ": " + ForeignText.plain(file) + " is in the folder of " + other
                    + " already; name another one");
        }
    }

    private static boolean isSame(Path file, Path other) {
        try {
            return Files.isSameFile(file, other);
        } catch (IOException e) {
            return file.toAbsolutePath()
                    .normalize()
                    .equals(other.toAbsolutePath().normalize());
        }
    }

    /**
     * Reads an option's value that is the name of a file.
     *
     * <p>Threading: thread-safe.
     */
    public static final class FileOption implements ITypeConverter<Path> {
        @Override
        public Path convert(String value) {
            try {
                return Path.of(value);
            } catch (InvalidPathException e) {
                // Java decodes arguments by the locale and has lost the letters by now.
                throw new TypeConversionException(
                        "the locale's character set, " + System.getProperty("sun.jnu.encoding")
                                + ", lacks a letter of this name; begin the command with LC_ALL=C.UTF-8");
            }
        }
    }
}
