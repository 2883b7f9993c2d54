package dev.chagres.internal;

import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.core.JsonToken;
import dev.chagres.bindings.ForeignText;
import dev.chagres.internal.Manifest.Content;
import dev.chagres.internal.Manifest.InvalidException;
import dev.chagres.internal.Manifest.Range;
import dev.chagres.internal.Manifest.Whole;
import java.io.IOException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * Reads a {@link Manifest}: what does not fit is told with the path of its field.
 *
 * <p>Threading: any thread.
 */
final class ManifestReader {
    private ManifestReader() {}

    static Manifest read(byte... file) throws InvalidException {
        Fields all;
        try (JsonParser json = Manifest.JSON.createParser(file)) {
            json.nextToken();
            all = Fields.of("", value(json));
            if (json.nextToken() != null) {
                throw new InvalidException("expected one JSON object, got more behind it");
            }
        } catch (JsonProcessingException e) {
            throw new InvalidException("expected JSON, got other text: " + e.getOriginalMessage());
        } catch (IOException e) {
            throw new InvalidException("expected JSON, got other text: " + e.getMessage());
        }
        if (!Manifest.FORMAT.equals(all.get("format"))) {
            throw all.refused("format", Manifest.FORMAT);
        }
        if (all.number("version") != Manifest.VERSION || all.number("block_bytes") != BlockSums.BLOCK_BYTES) {
            throw new InvalidException("version: expected " + Manifest.VERSION + " with blocks of "
                    + BlockSums.BLOCK_BYTES + " bytes, got " + all.get("version") + " with " + all.get("block_bytes"));
        }
        Map<String, Content> files = files(all.object("files"));
        return new Manifest(
                all.number("step"),
                metadata(all.object("metadata")),
                numbers(all.object("numbers")),
                files,
                tensors(all.object("tensors"), files),
                tensors(all.object("beside"), files));
    }

    private static Map<String, String> metadata(Fields all) throws InvalidException {
        Map<String, String> metadata = new LinkedHashMap<>();
        for (String key : all.names()) {
            metadata.put(key, all.text(key));
        }
        return metadata;
    }

    private static Map<String, Long> numbers(Fields all) throws InvalidException {
        Map<String, Long> numbers = new LinkedHashMap<>();
        for (String key : all.names()) {
            if (!(all.get(key) instanceof Long bits)) { // A double's may be negative; whoever reads knows the limits.
                throw all.refused(key, "a whole number");
            }
            numbers.put(key, bits);
        }
        return numbers;
    }

    private static Map<String, Content> files(Fields all) throws InvalidException {
        Map<String, Content> files = new LinkedHashMap<>();
        for (String name : all.names()) {
            if (name.isEmpty() || name.equals("..") || name.contains("/") || name.indexOf(0) >= 0) {
                throw new InvalidException("files: expected plain names, got " + ForeignText.quoted(name));
            }
            Fields one = all.object(name);
            Content content = new Content(one.number("bytes"), one.number("head_bytes"), one.sums());
            if (content.head() > content.bytes() || !isSummed(content.head(), content.sums())) {
                throw all.refused(
                        name, "head_bytes within its " + content.bytes() + " bytes, a checksum for each block");
            }
            files.put(name, content);
        }
        return files;
    }

    private static Map<String, Whole> tensors(Fields all, Map<String, Content> files) throws InvalidException {
        Map<String, Whole> tensors = new LinkedHashMap<>();
        for (String name : all.names()) {
            Fields one = all.object(name);
            List<Range> ranges = new ArrayList<>();
            long first = 0;
            Fields given = one.list("ranges");
            for (String each : given.names()) {
                Fields range = given.object(each);
                if (range.number("first") != first) {
                    throw range.refused("first", first + ", behind the ranges before");
                }
                Range read = new Range(
                        range.text("tensor"),
                        first,
                        range.text("file"),
                        range.number("position"),
                        range.number("bytes"),
                        range.sums());
                if (!isWithin(read, files.get(read.file()))) {
                    throw given.refused(each, "bytes within a file of \"files\", a checksum for each block");
                }
                ranges.add(read);
                first += read.bytes();
            }
            Fields sizes = one.list("shape");
            List<Long> shape = new ArrayList<>();
            for (String size : sizes.names()) {
                shape.add(sizes.number(size));
            }
            tensors.put(
                    name,
                    new Whole(
                            one.text("dtype"),
                            shape.stream().mapToLong(size -> size).toArray(),
                            ranges));
        }
        return tensors;
    }

    private static boolean isWithin(Range range, @Nullable Content file) {
        return file != null
                && range.position() >= file.head()
                && range.position() <= file.bytes() - range.bytes()
                && isSummed(range.bytes(), range.sums());
    }

    private static boolean isSummed(long bytes, int... sums) {
        return sums.length == Math.ceilDiv(bytes, BlockSums.BLOCK_BYTES);
    }

    /**
     * An object, or a list, whose names are 0, 1, ….
     *
     * @param path of its fields: the names that lead to it, a dot behind each
     */
    private record Fields(String path, Map<String, Object> all) {
        private static Fields of(String path, @Nullable Object value) throws InvalidException {
            if (!(value instanceof Map<?, ?> given)) {
                throw new InvalidException("expected an object, got " + shown(value));
            }
            Map<String, Object> all = new LinkedHashMap<>();
            given.forEach((name, field) -> all.put(String.valueOf(name), field));
            return new Fields(path, all);
        }

        private @Nullable Object get(String field) {
            return all.get(field);
        }

        private List<String> names() {
            return List.copyOf(all.keySet());
        }

        private InvalidException refused(String field, String expected) {
            return new InvalidException(ForeignText.plain(path + field) + ": expected " + expected + ", got "
                    + (get(field) instanceof Map ? "other fields" : shown(get(field))));
        }

        private static String shown(@Nullable Object value) {
            return switch (value) {
                case null -> "none";
                case String text -> ForeignText.quoted(text);
                case List<?> _ -> "a list";
                case Map<?, ?> _ -> "an object";
                default -> ForeignText.plain(value);
            };
        }

        private String text(String field) throws InvalidException {
            if (get(field) instanceof String text) {
                return text;
            }
            throw refused(field, "a text");
        }

        private long number(String field) throws InvalidException {
            if (get(field) instanceof Long number && number >= 0) {
                return number;
            }
            throw refused(field, "a number from 0 to " + Long.MAX_VALUE);
        }

        private Fields object(String field) throws InvalidException {
            if (get(field) instanceof Map<?, ?> fields) {
                return of(path + field + ".", fields);
            }
            throw refused(field, "an object");
        }

        private Fields list(String field) throws InvalidException {
            if (!(get(field) instanceof List<?> list)) {
                throw refused(field, "a list");
            }
            Map<String, Object> elements = new LinkedHashMap<>();
            for (Object element : list) {
                elements.put(String.valueOf(elements.size()), element);
            }
            return new Fields(path + field + ".", elements);
        }

        private int[] sums() throws InvalidException {
            Fields list = list("crc32c");
            int[] sums = new int[list.all.size()];
            for (int i = 0; i < sums.length; i++) {
                String digits = list.text(String.valueOf(i));
                try {
                    sums[i] = BlockSums.sum(digits);
                } catch (IllegalArgumentException e) {
                    throw list.refused(String.valueOf(i), "eight hexadecimal digits");
                }
            }
            return sums;
        }
    }

    private static Object value(JsonParser json) throws IOException {
        JsonToken token = json.currentToken();
        if (token == JsonToken.START_OBJECT) {
            Map<String, Object> object = new LinkedHashMap<>();
            while (json.nextToken() != JsonToken.END_OBJECT) {
                String name = json.currentName();
                json.nextToken();
                object.put(name, value(json));
            }
            return object;
        }
        if (token == JsonToken.START_ARRAY) {
            List<Object> list = new ArrayList<>();
            while (json.nextToken() != JsonToken.END_ARRAY) {
                list.add(value(json));
            }
            return list;
        }
        if (token == JsonToken.VALUE_NUMBER_INT) {
            Number number = json.getNumberValue();
            return number instanceof Integer small ? (Object) small.longValue() : number;
        }
        String text = json.getText();
        if (token == JsonToken.VALUE_STRING) {
            return text;
        }
        return new Literal(text == null ? "nothing" : text);
    }

    /** A fraction, true, false or null: no field has such a value. */
    private record Literal(String text) {
        @Override
        public String toString() {
            return text;
        }
    }
}
