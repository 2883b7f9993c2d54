package dev.chagres.models.huggingface;

import java.nio.file.Path;
import java.util.Optional;
import org.jspecify.annotations.Nullable;

/**
 * A folder of transformers that cannot be read or written, or has a model that is not supported. The message begins with the file and, where
 * one is at fault, the field of the JSON or the tensor. Safetensors files that are damaged are told by {@link
 * dev.chagres.io.SafetensorsException}.
 *
 * <p>Threading: immutable.
 */
public final class CheckpointException extends RuntimeException {
    private static final long serialVersionUID = 1;
    private static final int SHOWN = 200;

    private final String file;
    private final @Nullable String part;

    private CheckpointException(Path file, String text, @Nullable String part, @Nullable Throwable cause) {
        super(text, cause);
        this.file = file.toString();
        this.part = part;
    }

    /** Of the file as a whole. */
    static CheckpointException of(Path file, String text, @Nullable Throwable cause) {
        return new CheckpointException(file, plain(file.toString()) + ": " + text, null, cause);
    }

    /** Of a field of a JSON file. */
    static CheckpointException ofField(Path file, String field, String text) {
        return new CheckpointException(
                file, plain(file.toString()) + ": field " + plain(field) + ": " + text, field, null);
    }

    /** Of a tensor. */
    static CheckpointException ofTensor(Path file, String tensor, String text) {
        return new CheckpointException(
                file, plain(file.toString()) + ": tensor " + plain(tensor) + ": " + text, tensor, null);
    }

    /** Returns a text of a file as messages show it: without control characters, and not longer than a few lines. */
    static String plain(String text) {
        String shown = text.length() <= SHOWN ? text : text.substring(0, SHOWN) + "...";
        return shown.codePoints()
                .map(point ->
                        Character.isISOControl(point) || Character.getType(point) == Character.FORMAT ? '?' : point)
                .collect(StringBuilder::new, StringBuilder::appendCodePoint, StringBuilder::append)
                .toString();
    }

    /** Returns the file at fault, or the folder. */
    public Path file() {
        return Path.of(file);
    }

    /** Returns the field or tensor at fault; empty when the file as a whole is. */
    public Optional<String> part() {
        return Optional.ofNullable(part);
    }
}
