package dev.chagres.io;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.core.StreamReadConstraints;
import com.fasterxml.jackson.core.StreamReadFeature;
import com.fasterxml.jackson.core.exc.StreamConstraintsException;
import dev.chagres.bindings.ForeignText;
import dev.chagres.internal.FileFailure;
import java.io.BufferedInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;

/**
 * Reads a header's JSON: an object of objects, each with a {@code dtype}, a {@code shape} and {@code data_offsets}, and optionally one of
 * texts, the metadata. Anything else is refused where it begins, so that no deep or long structure is ever built.
 */
final class HeaderReader {
    /** One level more than a header has, so that the error for one that is too deep can name its tensor. */
    private static final int MAX_DEPTH = 4;

    private static final int MAX_DIGITS = 20;
    private static final int BUFFER = 1 << 16;

    private static final JsonFactory JSON = JsonFactory.builder()
            .enable(StreamReadFeature.STRICT_DUPLICATE_DETECTION)
            .disable(JsonFactory.Feature.CANONICALIZE_FIELD_NAMES)
            .disable(JsonFactory.Feature.INTERN_FIELD_NAMES)
            .streamReadConstraints(StreamReadConstraints.builder()
                    .maxNestingDepth(MAX_DEPTH)
                    .maxNumberLength(MAX_DIGITS)
                    .maxNameLength(Names.MAX_LENGTH)
                    .maxStringLength(HeaderRoom.LONGEST_TEXT)
                    .maxDocumentLength(Header.MAX_BYTES)
                    .build())
            .build();

    private final Path file;
    private final JsonParser parser;
    private final HeaderRoom room;
    private final long[] numbers = new long[Header.MAX_RANK];

    private HeaderReader(Path file, JsonParser parser) {
        this.file = file;
        this.parser = parser;
        room = new HeaderRoom(file);
    }

    /**
     * Reads and checks a header.
     *
     * @param json its bytes, UTF-8
     * @param dataSize bytes after the header
     * @throws SafetensorsException when it is not well-formed, does not fit the data, or is too large for the heap
     */
    static Header read(Path file, InputStream json, long dataSize) {
        BufferedInputStream bytes = new BufferedInputStream(json, BUFFER);
        try (JsonParser parser = JSON.createParser(new InputStreamReader(bytes, StandardCharsets.UTF_8.newDecoder()))) {
            bytes.mark(1);
            if (bytes.read() != '{') {
                throw SafetensorsException.of(file, "header: expected it to begin with {", null);
            }
            bytes.reset();
            return new HeaderReader(file, parser).read(dataSize);
        } catch (StreamConstraintsException invalid) {
            boolean isText = String.valueOf(invalid.getOriginalMessage()).startsWith("String value length");
            throw SafetensorsException.of(
                    file,
                    isText
                            ? "header: expected texts of at most " + HeaderRoom.LONGEST_TEXT
                                    + " characters, for which this Java heap has room, got a longer one; "
                                    + HeaderRoom.LARGER_HEAP
                            : "header: " + ForeignText.plain(invalid.getOriginalMessage()),
                    invalid);
        } catch (CharacterCodingException invalid) {
            throw SafetensorsException.of(file, "header: expected UTF-8, got bytes that are none", invalid);
        } catch (JsonProcessingException invalid) {
            throw SafetensorsException.of(file, "header: " + ForeignText.plain(invalid.getOriginalMessage()), invalid);
        } catch (IOException failure) {
            throw SafetensorsException.of(file, "could not be read: " + FileFailure.text(failure), failure);
        }
    }

    private Header read(long dataSize) throws IOException {
        List<Header.Entry> entries = new ArrayList<>();
        Map<String, String> metadata = Map.of();
        expect(null, JsonToken.START_OBJECT, "header");
        while (parser.nextToken() == JsonToken.FIELD_NAME) {
            String name = text(null, parser.currentName());
            if (name.equals(Names.METADATA)) {
                metadata = metadata();
            } else {
                entries.add(entry(name));
            }
        }
        if (parser.nextToken() != null) {
            throw SafetensorsException.of(
                    file, "header: expected nothing after its closing }, got " + parser.currentToken(), null);
        }
        return Header.checked(file, entries, metadata, dataSize);
    }

    private Map<String, String> metadata() throws IOException {
        Map<String, String> metadata = new LinkedHashMap<>();
        expect(null, JsonToken.START_OBJECT, Names.METADATA);
        while (parser.nextToken() == JsonToken.FIELD_NAME) {
            String key = text(null, parser.currentName());
            expect(null, JsonToken.VALUE_STRING, Names.METADATA + " " + ForeignText.quoted(key));
            String text = text(null, parser.getText());
            room.takeText(key, text);
            metadata.put(key, text);
        }
        return metadata;
    }

    private Header.Entry entry(String name) throws IOException {
        expect(name, JsonToken.START_OBJECT, "value");
        SafetensorsType type = null;
        long[] sizes = null;
        long[] offsets = null;
        while (parser.nextToken() == JsonToken.FIELD_NAME) {
            switch (parser.currentName()) {
                case Header.DTYPE -> type = type(name);
                case Header.SHAPE -> sizes = integers(name, Header.SHAPE, Header.MAX_RANK);
                case Header.OFFSETS -> offsets = integers(name, Header.OFFSETS, 2);
                default ->
                    throw fault(
                            name,
                            "expected " + Header.DTYPE + ", " + Header.SHAPE + " and " + Header.OFFSETS + " alone, got "
                                    + ForeignText.quoted(parser.currentName()));
            }
        }
        if (type == null || sizes == null || offsets == null || offsets.length != 2) {
            throw fault(
                    name,
                    "expected " + Header.DTYPE + ", " + Header.SHAPE + " and two " + Header.OFFSETS + ", got "
                            + (type == null ? "no " : "a ") + Header.DTYPE + ", "
                            + (sizes == null ? "no " : "a ") + Header.SHAPE + ", "
                            + (offsets == null ? "no" : offsets.length) + " " + Header.OFFSETS);
        }
        room.takeTensor(name, sizes);
        return new Header.Entry(name, type, sizes, offsets[0], offsets[1]);
    }

    private SafetensorsType type(String name) throws IOException {
        expect(name, JsonToken.VALUE_STRING, Header.DTYPE);
        String type = parser.getText();
        return SafetensorsType.named(type)
                .orElseThrow(() -> fault(
                        name,
                        Header.DTYPE + ": expected one of "
                                + Stream.of(SafetensorsType.values())
                                        .map(Enum::name)
                                        .collect(Collectors.joining(", "))
                                + ", got " + ForeignText.quoted(type)));
    }

    private long[] integers(String name, String field, int most) throws IOException {
        expect(name, JsonToken.START_ARRAY, field);
        int count = 0;
        while (parser.nextToken() != JsonToken.END_ARRAY) {
            if (count == most) {
                throw fault(name, field + ": expected at most " + most + " numbers, got more");
            }
            numbers[count++] = integer(name, field);
        }
        return Arrays.copyOf(numbers, count);
    }

    private long integer(String name, String field) throws IOException {
        String text = parser.getText();
        if (parser.currentToken() != JsonToken.VALUE_NUMBER_INT || text.startsWith("-")) {
            throw fault(name, field + ": expected whole numbers, none negative, got " + ForeignText.quoted(text));
        }
        try {
            return Long.parseLong(text);
        } catch (NumberFormatException tooLarge) {
            throw fault(name, field + ": expected at most " + Long.MAX_VALUE + ", got " + text);
        }
    }

    private void expect(@Nullable String tensor, JsonToken wanted, String what) throws IOException {
        JsonToken token = parser.nextToken();
        if (token != wanted) {
            throw fault(tensor, what + ": expected " + shown(wanted) + ", got " + shown(token));
        }
    }

    private static String shown(@Nullable JsonToken token) {
        return switch (token) {
            case null -> "the end of the header";
            case START_OBJECT -> "an object";
            case START_ARRAY -> "an array";
            case VALUE_STRING -> "a text";
            case VALUE_NUMBER_INT, VALUE_NUMBER_FLOAT -> "a number";
            case VALUE_NULL -> "null";
            case VALUE_TRUE, VALUE_FALSE -> "true or false";
            default -> token.toString();
        };
    }

    private String text(@Nullable String tensor, String text) {
        if (!Names.isUnicode(text)) {
            throw fault(tensor, "header: expected Unicode, got half a surrogate pair in " + ForeignText.quoted(text));
        }
        return text;
    }

    private SafetensorsException fault(@Nullable String tensor, String text) {
        return tensor == null
                ? SafetensorsException.of(file, text, null)
                : SafetensorsException.of(file, tensor, text, null);
    }

    /**
     * The part of the Java heap that a header may take. A header of 100 MB, which the format allows, can have two million tensors or nine
     * million texts, and their objects take many times its bytes.
     */
    private static final class HeaderRoom {
        /** The rest is for whoever opens the file, who makes more of each tensor. */
        static final long BYTES = Runtime.getRuntime().maxMemory() / 4;

        /** While a text is read, it is there up to three times, with two bytes a character. */
        static final int LONGEST_TEXT = (int) Math.min(Header.MAX_BYTES, BYTES / 6);

        /** Objects of a tensor, without its name and sizes, and places in collections. */
        private static final int TENSOR = 400;

        private static final int TEXT = 256;

        private final Path file;
        private long taken;
        private int tensors;
        private int texts;

        HeaderRoom(Path file) {
            this.file = file;
        }

        /** Counts a tensor. */
        void takeTensor(String name, long[] sizes) {
            tensors++;
            take(TENSOR + 2L * name.length() + (long) Long.BYTES * sizes.length);
        }

        /** Counts a text of the metadata. */
        void takeText(String key, String text) {
            texts++;
            take(TEXT + 2L * key.length() + 2L * text.length());
        }

        private void take(long bytes) {
            taken += bytes;
            if (taken > BYTES) {
                throw SafetensorsException.of(
                        file,
                        "header: expected tensors and texts that fit into " + BYTES
                                + " bytes, a quarter of the Java heap, got more than that in the first " + tensors
                                + " tensors and " + texts + " texts; " + LARGER_HEAP,
                        null);
            }
        }

        /** What to do about a header that is too large. */
        static final String LARGER_HEAP = "enlarge the heap, such as by java -Xmx4g, if this is the right file";
    }
}
