package dev.chagres.io;

import dev.chagres.bindings.ForeignText;
import dev.chagres.internal.Checks;
import java.nio.file.Path;
import java.util.Optional;
import org.jspecify.annotations.Nullable;

/**
 * A safetensors file that cannot be read or written, or does not hold what was expected. The message begins with the file and, if one
 * tensor is at fault, its name.
 *
 * <p>Threading: immutable.
 */
public final class SafetensorsException extends RuntimeException {
    private static final long serialVersionUID = 1;

    private final String file;
    private final @Nullable String tensor;

    private SafetensorsException(Path file, @Nullable String tensor, String text, @Nullable Throwable cause) {
        super(
                ForeignText.plain(file) + ": " + (tensor == null ? "" : "tensor " + ForeignText.quoted(tensor) + ": ")
                        + ForeignText.lines(text),
                cause);
        this.file = file.toString();
        this.tensor = tensor;
    }

    private SafetensorsException(String text, Path file, @Nullable String tensor) {
        super(ForeignText.lines(text));
        this.file = file.toString();
        this.tensor = tensor;
    }

    /**
     * For sharding: returns the exception of another rank, by its text.
     *
     * @param tensor the name of the tensor at fault; null when the file as a whole is
     */
    public static SafetensorsException ofRank(String text, Path file, @Nullable String tensor) {
        return new SafetensorsException(Checks.given("text", text), Checks.given("file", file), tensor);
    }

    /** For checkpoints: returns the exception of a file or folder that cannot be read or written. */
    public static SafetensorsException ofFile(Path file, String text, @Nullable Throwable cause) {
        return of(Checks.given("file", file), Checks.given("text", text), cause);
    }

    /** Of the file as a whole. */
    static SafetensorsException of(Path file, String text, @Nullable Throwable cause) {
        return new SafetensorsException(file, null, text, cause);
    }

    /** Of one tensor in the file. */
    static SafetensorsException of(Path file, String tensor, String text, @Nullable Throwable cause) {
        return new SafetensorsException(file, tensor, text, cause);
    }

    /** Returns the file that was read or written. */
    public Path file() {
        return Path.of(file);
    }

    /** Returns the name of the tensor at fault; empty when the file as a whole is. */
    public Optional<String> tensor() {
        return Optional.ofNullable(tensor);
    }
}
