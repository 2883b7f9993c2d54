package dev.chagres.models.huggingface;

import com.fasterxml.jackson.core.JacksonException;
import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.core.StreamReadFeature;
import dev.chagres.DType;
import dev.chagres.checkpoint.CheckpointFolder;
import java.io.IOException;
import java.math.BigDecimal;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.regex.Pattern;
import org.jspecify.annotations.Nullable;

/**
 * An object of a JSON file, whose fields are asked for by name and type.
 *
 * <p>Threading: immutable.
 *
 * @param fields texts, {@link BigDecimal}, Boolean, lists, maps, or null
 * @param prefix of the names of fields in refusals
 */
record JsonObject(Path file, Map<String, @Nullable Object> fields, String prefix) {
    private static final long MOST_BYTES = 100L << 20;
    private static final int MOST_DIGITS = 60;
    private static final int MOST_EXPONENT = 1_000;
    private static final int DEPTH = 100;
    private static final Pattern HUB_NAME = Pattern.compile("\\w[\\w.-]{0,95}/\\w[\\w.-]{0,95}");

    /** Returns what was probably meant: of a name such as the Hub's how it comes here, of the folder of a run its last checkpoint. */
    private static String hint(@Nullable Path folder) {
        if (folder == null) {
            return "";
        }
        if (Files.exists(folder)) {
            try (CheckpointFolder run = CheckpointFolder.of(folder)) {
                return run.last()
                        .map(step -> "; the last checkpoint of this run is " + step)
                        .orElse("");
            }
        }
        String name = folder.toString();
        return "; there is no such folder"
                + (HUB_NAME.matcher(name).matches()
                        ? ", and a model of the Hub comes by: hf download " + name + " --local-dir FOLDER"
                        : "");
    }

    /** Reads a file whose text is one object. A field that comes twice is refused. */
    static JsonObject read(Path file) {
        JsonFactory factory = JsonFactory.builder()
                .enable(StreamReadFeature.STRICT_DUPLICATE_DETECTION)
                .build();
        if (Files.notExists(file)) {
            throw CheckpointException.of(file, "expected a JSON file, got none" + hint(file.getParent()), null);
        }
        try {
            if (Files.size(file) > MOST_BYTES) {
                throw CheckpointException.of(
                        file, "expected at most " + MOST_BYTES + " bytes of JSON, got " + Files.size(file), null);
            }
            try (JsonParser parser = factory.createParser(Files.readAllBytes(file))) {
                if (parser.nextToken() != JsonToken.START_OBJECT) {
                    throw CheckpointException.of(file, "expected a JSON object, got another text", null);
                }
                Map<String, @Nullable Object> fields = object(parser, 0);
                if (parser.nextToken() != null) {
                    throw CheckpointException.of(file, "expected one JSON object, got more behind it", null);
                }
                return new JsonObject(file, fields, "");
            }
        } catch (IOException failure) {
            throw CheckpointException.of(
                    file, "expected a JSON file: " + CheckpointException.plain(reason(failure)), failure);
        }
    }

    private static String reason(IOException failure) {
        return failure instanceof JacksonException parsed
                ? parsed.getOriginalMessage() + " at line "
                        + parsed.getLocation().getLineNr() + ", column "
                        + parsed.getLocation().getColumnNr()
                : String.valueOf(failure.getMessage());
    }

    private static Map<String, @Nullable Object> object(JsonParser parser, int depth) throws IOException {
        Map<String, @Nullable Object> fields = new LinkedHashMap<>();
        while (parser.nextToken() != JsonToken.END_OBJECT) {
            String name = parser.currentName();
            parser.nextToken();
            fields.put(name, value(parser, depth));
        }
        return fields;
    }

    private static @Nullable Object value(JsonParser parser, int depth) throws IOException {
        if (depth > DEPTH) {
            throw new IOException("more than " + DEPTH + " objects inside each other");
        }
        return switch (parser.currentToken()) {
            case START_OBJECT -> object(parser, depth + 1);
            case START_ARRAY -> {
                List<@Nullable Object> values = new ArrayList<>();
                while (parser.nextToken() != JsonToken.END_ARRAY) {
                    values.add(value(parser, depth + 1));
                }
                yield values;
            }
            case VALUE_STRING -> parser.getText();
            case VALUE_NUMBER_INT, VALUE_NUMBER_FLOAT -> number(parser.getText());
            case VALUE_TRUE -> true;
            case VALUE_FALSE -> false;
            case VALUE_NULL -> null;
            default -> throw new IOException("the text ends inside an object");
        };
    }

    private static BigDecimal number(String text) throws IOException {
        if (text.length() > MOST_DIGITS) {
            throw new IOException("a number of more than " + MOST_DIGITS + " characters");
        }
        try {
            BigDecimal number = new BigDecimal(text);
            if (Math.abs((long) number.scale()) <= MOST_EXPONENT) {
                return number;
            }
        } catch (NumberFormatException tooLarge) {
            // the exponent has too many digits
        }
        throw new IOException("a number with an exponent over " + MOST_EXPONENT);
    }

    /** Returns whether the field is there and not null. */
    boolean has(String field) {
        return fields.get(field) != null;
    }

    /** Returns an integer from {@code least} to {@code most}; {@code usual} where there is none. */
    int integer(String field, int usual, int least, int most) {
        Object value = fields.get(field);
        if (value == null) {
            return usual;
        }
        if (value instanceof BigDecimal number
                && number.compareTo(BigDecimal.valueOf(least)) >= 0
                && number.compareTo(BigDecimal.valueOf(most)) <= 0
                && number.remainder(BigDecimal.ONE).signum() == 0) {
            return number.intValue();
        }
        throw refused(field, "an integer from " + least + " to " + most);
    }

    /** Returns a list of integers from {@code least} to {@code most}; empty where there is none. */
    List<Integer> integers(String field, int least, int most) {
        List<Integer> integers = new ArrayList<>();
        for (Object element : fields.get(field) instanceof List<?> list ? list : List.of()) {
            if (!(element instanceof BigDecimal number)
                    || number.compareTo(BigDecimal.valueOf(least)) < 0
                    || number.compareTo(BigDecimal.valueOf(most)) > 0
                    || number.remainder(BigDecimal.ONE).signum() != 0) {
                throw refused(field, "integers from " + least + " to " + most);
            }
            integers.add(number.intValue());
        }
        return integers;
    }

    /** Returns a finite number; {@code usual} where there is none. */
    double number(String field, double usual) {
        Object value = fields.get(field);
        if (value == null) {
            return usual;
        }
        if (value instanceof BigDecimal number && Double.isFinite(number.doubleValue())) {
            return number.doubleValue();
        }
        throw refused(field, "a number");
    }

    /** Returns true or false; {@code usual} where there is none. */
    boolean flag(String field, boolean usual) {
        Object value = fields.get(field);
        if (value == null) {
            return usual;
        }
        if (value instanceof Boolean flag) {
            return flag;
        }
        throw refused(field, "true or false");
    }

    /** Returns a text; {@code usual} where there is none. */
    String text(String field, String usual) {
        Object value = fields.get(field);
        if (value == null) {
            return usual;
        }
        if (value instanceof String text) {
            return text;
        }
        throw refused(field, "a text");
    }

    /** Returns a list of texts; empty where there is none. */
    List<String> texts(String field) {
        Object value = fields.get(field);
        if (value == null) {
            return List.of();
        }
        List<String> texts = new ArrayList<>();
        for (Object element : value instanceof List<?> list ? list : List.of(value)) {
            if (!(element instanceof String text)) {
                throw refused(field, "a list of texts");
            }
            texts.add(text);
        }
        return texts;
    }

    /** Returns the texts of an object by their names. */
    Map<String, String> textsByName(String field) {
        if (!(fields.get(field) instanceof Map<?, ?> object)) {
            throw refused(field, "an object of texts");
        }
        Map<String, String> texts = new LinkedHashMap<>();
        object.forEach((name, value) -> {
            if (!(value instanceof String text)) {
                throw CheckpointException.ofField(file, field + "." + name, "expected a text, got " + shown(value));
            }
            texts.put(String.valueOf(name), text);
        });
        return texts;
    }

    /** Returns the object of a field, which is there. Its fields are named in refusals behind that of this object. */
    JsonObject object(String field) {
        if (!(fields.get(field) instanceof Map<?, ?> object)) {
            throw refused(field, "an object");
        }
        Map<String, @Nullable Object> inside = new LinkedHashMap<>();
        object.forEach((name, value) -> inside.put(String.valueOf(name), value));
        return new JsonObject(file, inside, prefix + field + ".");
    }

    /** Returns the type that the weights were saved in; empty where the file does not say. */
    Optional<DType> dtype() {
        Optional<DType> old = dtype("torch_dtype");
        Optional<DType> own = dtype("dtype");
        if (old.isPresent() && own.isPresent() && !old.equals(own)) {
            throw refused("dtype", "that of torch_dtype, " + text("torch_dtype", ""));
        }
        return own.isPresent() ? own : old;
    }

    private Optional<DType> dtype(String field) {
        return switch (text(field, "")) {
            case "" -> Optional.empty();
            case "float32" -> Optional.of(DType.FLOAT32);
            case "float16" -> Optional.of(DType.FLOAT16);
            case "bfloat16" -> Optional.of(DType.BFLOAT16);
            default -> throw refused(field, "float32, float16 or bfloat16");
        };
    }

    /** Says that a field has another value than {@code expected}. */
    CheckpointException refused(String field, String expected) {
        return CheckpointException.ofField(
                file, prefix + field, "expected " + expected + ", got " + shown(fields.get(field)));
    }

    private static String shown(@Nullable Object value) {
        return value == null ? "none" : CheckpointException.plain(value.toString());
    }
}
