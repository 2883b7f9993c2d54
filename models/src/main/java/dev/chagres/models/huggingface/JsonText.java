package dev.chagres.models.huggingface;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.core.util.DefaultIndenter;
import com.fasterxml.jackson.core.util.DefaultPrettyPrinter;
import com.fasterxml.jackson.core.util.Separators;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.math.BigDecimal;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * Writes JSON as transformers does: indented by two, a final newline.
 *
 * <p>Threading: thread-safe.
 */
final class JsonText {
    private static final JsonFactory JSON = new JsonFactory();

    private static final Separators SEPARATORS =
            Separators.createDefaultInstance().withObjectFieldValueSpacing(Separators.Spacing.AFTER);

    private JsonText() {}

    /** Writes an object of texts, numbers, truth values, lists of texts, and objects. */
    static void write(Path file, Map<String, ?> fields) throws IOException {
        Files.write(file, bytes(fields));
    }

    /** Returns what {@link #write} writes. */
    static byte[] bytes(Map<String, ?> fields) {
        DefaultIndenter lines = new DefaultIndenter("  ", "\n");
        var bytes = new ByteArrayOutputStream();
        try (JsonGenerator json = JSON.createGenerator(bytes)) {
            json.setPrettyPrinter(new DefaultPrettyPrinter(SEPARATORS)
                    .withObjectIndenter(lines)
                    .withArrayIndenter(lines));
            write(json, fields);
        } catch (IOException impossible) {
            throw new UncheckedIOException("memory can be written", impossible);
        }
        bytes.write('\n');
        return bytes.toByteArray();
    }

    private static void write(JsonGenerator json, @Nullable Object value) throws IOException {
        switch (value) {
            case null -> json.writeNull();
            case Map<?, ?> object -> {
                json.writeStartObject();
                for (Map.Entry<?, ?> field : object.entrySet()) {
                    json.writeFieldName(String.valueOf(field.getKey()));
                    write(json, field.getValue());
                }
                json.writeEndObject();
            }
            case List<?> list -> {
                json.writeStartArray();
                for (Object element : list) {
                    write(json, element);
                }
                json.writeEndArray();
            }
            case String text -> json.writeString(text);
            case Boolean flag -> json.writeBoolean(flag);
            case Integer number -> json.writeNumber(number);
            case Long number -> json.writeNumber(number);
            case Double number -> json.writeNumber(number);
            case BigDecimal number -> json.writeNumber(number);
            default -> throw new IllegalArgumentException("value: expected one that JSON has, got " + value);
        }
    }
}
