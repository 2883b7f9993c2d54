package dev.chagres.models.text;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.core.StreamReadFeature;
import java.io.BufferedReader;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Locale;
import java.util.stream.Stream;

/**
 * The texts of a file, read from its beginning to its end.
 *
 * <p>Threading: thread-safe.
 */
final class TextFile {
    private static final JsonFactory JSON = JsonFactory.builder()
            .enable(StreamReadFeature.STRICT_DUPLICATE_DETECTION)
            .build();

    private static final String EXPECTED = "expected an object with text, or with prompt and completion, ";

    /** Takes a text, and what comes before it and is not learned, which is empty where there is none. */
    interface Texts {
        void add(String prompt, String text);
    }

    private TextFile() {}

    static void read(Path file, Texts texts) {
        try {
            if (file.toString().toLowerCase(Locale.ROOT).endsWith(".jsonl")) {
                readLines(file, texts);
            } else {
                String text = Files.readString(file);
                texts.add("", text.startsWith("\ufeff") ? text.substring(1) : text);
            }
        } catch (IOException failure) {
            throw new TextException(file, "could not be read as UTF-8: " + failure, failure);
        } catch (OutOfMemoryError tooLong) {
            throw new TextException(file, "expected a text that fits into memory, got a longer one", tooLong);
        }
    }

    private static void readLines(Path file, Texts texts) throws IOException {
        try (BufferedReader reader = Files.newBufferedReader(file)) {
            long number = 0;
            for (String line = reader.readLine(); line != null; line = reader.readLine()) {
                number++;
                if (!line.isBlank()) {
                    readLine(file, number, line, texts);
                }
            }
        }
    }

    private static void readLine(Path file, long number, String line, Texts texts) {
        String text = null;
        String prompt = null;
        String completion = null;
        try (JsonParser parser = JSON.createParser(line)) {
            if (parser.nextToken() != JsonToken.START_OBJECT) {
                throw new TextException(file, number, EXPECTED + "got another text", null);
            }
            while (parser.nextToken() != JsonToken.END_OBJECT) {
                String name = parser.currentName();
                parser.nextToken();
                switch (name) {
                    case "text" -> text = string(file, number, parser);
                    case "prompt" -> prompt = string(file, number, parser);
                    case "completion" -> completion = string(file, number, parser);
                    default -> parser.skipChildren();
                }
            }
            if (parser.nextToken() != null) {
                throw new TextException(file, number, "expected one object a line, got more behind it", null);
            }
        } catch (IOException failure) {
            throw new TextException(file, number, "expected JSON: " + failure.getMessage(), failure);
        }
        boolean isPair = prompt != null && completion != null;
        if (isPair == (text != null) || (text != null && (prompt != null || completion != null))) {
            List<String> present = Stream.of(
                            text == null ? "" : "text",
                            prompt == null ? "" : "prompt",
                            completion == null ? "" : "completion")
                    .filter(name -> !name.isEmpty())
                    .toList();
            throw new TextException(
                    file, number, EXPECTED + "got " + (present.isEmpty() ? "none of them" : present), null);
        }
        try {
            texts.add(isPair ? String.valueOf(prompt) : "", String.valueOf(isPair ? completion : text));
        } catch (IllegalArgumentException refused) {
            throw new TextException(file, number, String.valueOf(refused.getMessage()), refused);
        }
    }

    private static String string(Path file, long number, JsonParser parser) throws IOException {
        if (parser.currentToken() != JsonToken.VALUE_STRING) {
            throw new TextException(
                    file,
                    number,
                    "expected a text for " + parser.currentName() + ", got " + parser.currentToken(),
                    null);
        }
        return parser.getText();
    }
}
