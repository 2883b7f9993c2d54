package dev.chagres.models.text;

import com.fasterxml.jackson.core.JacksonException;
import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.core.StreamReadConstraints;
import com.fasterxml.jackson.core.StreamReadFeature;
import dev.chagres.models.data.GzipMembers;
import java.io.BufferedInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.nio.file.AccessDeniedException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.function.Function;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;

/**
 * The texts of a file one after another, in memory that does not grow with the file, but for a text.
 *
 * <p>Threading: one thread at a time.
 */
abstract class TextReader implements AutoCloseable {
    /** The longest line of JSON Lines, in bytes. */
    static final int MAX_LINE_BYTES = 1 << 27;

    static final String EXPECTED = "expected an object with text, with prompt and completion, or with messages, ";

    private final Path file;

    /**
     * A text.
     *
     * @param number of its line or row, from 1
     * @param prompt what comes before the text and is not learned; empty where there is nothing
     * @param messages of a chat; empty of another text
     * @param tools of a chat
     */
    record Text(
            Path file,
            long number,
            String prompt,
            String text,
            List<ChatTemplate.Message> messages,
            List<ChatTemplate.Tool> tools) {
        Text(Path file, long number, String prompt, String text) {
            this(file, number, prompt, text, List.of(), List.of());
        }

        /** Returns what tells this text from others, wherever it stands. */
        byte[] bytes() {
            StringBuilder all = new StringBuilder(prompt).append('\0').append(text);
            messages.forEach(message -> all.append('\0')
                    .append(message.role())
                    .append('\0')
                    .append(
                            message.fields().size() == 2 && message.content().isPresent()
                                    ? message.content().get()
                                    : PythonValue.json(message.fields(), PythonValue.Form.PLAIN)));
            tools.forEach(tool -> all.append('\0').append(PythonValue.json(tool.schema(), PythonValue.Form.PLAIN)));
            return all.toString().getBytes(StandardCharsets.UTF_8);
        }
    }

    TextReader(Path file) {
        this.file = file;
    }

    Path file() {
        return file;
    }

    /**
     * Opens a file by its name: JSON Lines, Parquet, or else one text, each but Parquet plain or gz.
     *
     * @throws TextException when it cannot be opened
     */
    static TextReader open(Path file) {
        String name = file.toString().toLowerCase(Locale.ROOT);
        if (name.endsWith(".parquet")) {
            return ParquetTexts.open(file);
        }
        try {
            if (Files.isDirectory(file)) {
                throw new TextException(file, "could not be read: it is a directory", null);
            }
            InputStream plain = new BufferedInputStream(Files.newInputStream(file), 1 << 16);
            InputStream in;
            try {
                in = name.endsWith(".gz") ? new GzipMembers(plain) : plain;
            } catch (IOException failure) {
                plain.close();
                throw failure;
            }
            boolean isLines = name.endsWith(".jsonl") || name.endsWith(".jsonl.gz");
            return isLines ? new JsonLines(file, in) : new WholeText(file, in);
        } catch (IOException failure) {
            throw unreadable(file, failure);
        }
    }

    static TextException unreadable(Path file, IOException failure) {
        String reason = switch (failure) {
            case NoSuchFileException _ -> "there is no such file";
            case AccessDeniedException _ -> "no permission to read it";
            default -> failure.toString();
        };
        return new TextException(file, "could not be read: " + reason, failure);
    }

    /**
     * Returns the next text, null where none is left.
     *
     * @throws TextException when the file cannot be read, or a line or row is not what it should be
     */
    abstract @Nullable Text next();

    @Override
    public abstract void close();

    /** Makes a text of what a line or a row has, of which either {@code text} alone or both others are to be there. */
    final Text text(long number, @Nullable String text, @Nullable String prompt, @Nullable String completion) {
        if (text != null && prompt == null && completion == null) {
            return new Text(file, number, "", text);
        }
        if (text == null && prompt != null && completion != null) {
            return new Text(file, number, prompt, completion);
        }
        List<String> present = Stream.of(
                        text == null ? "" : "text",
                        prompt == null ? "" : "prompt",
                        completion == null ? "" : "completion")
                .filter(name -> !name.isEmpty())
                .toList();
        throw new TextException(file, number, EXPECTED + "got " + (present.isEmpty() ? "none of them" : present), null);
    }

    private static void closeFile(Path file, InputStream in) {
        try {
            in.close();
        } catch (IOException failure) {
            throw unreadable(file, failure);
        }
    }

    private static String decoded(byte[] bytes, int from, int length) throws CharacterCodingException {
        return StandardCharsets.UTF_8
                .newDecoder()
                .decode(ByteBuffer.wrap(bytes, from, length))
                .toString();
    }

    private static boolean hasMark(byte[] bytes, int length) {
        return length >= 3 && bytes[0] == (byte) 0xef && bytes[1] == (byte) 0xbb && bytes[2] == (byte) 0xbf;
    }

    /** A file that is one text. */
    private static final class WholeText extends TextReader {
        private final InputStream in;
        private boolean read;

        WholeText(Path file, InputStream in) {
            super(file);
            this.in = in;
        }

        @Override
        @Nullable
        Text next() {
            if (read) {
                return null;
            }
            read = true;
            try {
                byte[] bytes = in.readAllBytes();
                int from = hasMark(bytes, bytes.length) ? 3 : 0;
                return new Text(file(), 1, "", decoded(bytes, from, bytes.length - from));
            } catch (CharacterCodingException failure) {
                throw new TextException(file(), "could not be read as UTF-8: " + failure, failure);
            } catch (IOException failure) {
                throw unreadable(file(), failure);
            } catch (OutOfMemoryError tooLong) {
                throw new TextException(
                        file(),
                        "expected a text that fits into memory, got a longer one; divide it, as JSON Lines",
                        tooLong);
            }
        }

        @Override
        public void close() {
            closeFile(file(), in);
        }
    }

    /** A file with an object a line. */
    private static final class JsonLines extends TextReader {
        private static final JsonFactory JSON = JsonFactory.builder()
                .enable(StreamReadFeature.STRICT_DUPLICATE_DETECTION)
                .streamReadConstraints(StreamReadConstraints.builder()
                        .maxStringLength(Integer.MAX_VALUE) // the line is limited already
                        .maxNumberLength(Integer.MAX_VALUE)
                        .maxNameLength(Integer.MAX_VALUE)
                        .build())
                .build();

        private final InputStream in;
        private final byte[] buffer = new byte[1 << 16];
        private int position;
        private int limit;
        private byte[] line = new byte[1 << 12];
        private long number;

        JsonLines(Path file, InputStream in) {
            super(file);
            this.in = in;
        }

        @Override
        @Nullable
        Text next() {
            for (int length = nextLine(); length >= 0; length = nextLine()) {
                int from = number == 1 && hasMark(line, length) ? 3 : 0;
                String text;
                try {
                    text = decoded(line, from, length - from);
                } catch (CharacterCodingException failure) {
                    throw new TextException(file(), number, "could not be read as UTF-8: " + failure, failure);
                }
                if (!text.isBlank()) {
                    return read(text);
                }
            }
            return null;
        }

        /** Reads up to the next LF into {@code line}, and returns its length, or -1 at the end. */
        private int nextLine() {
            number++;
            int length = 0;
            while (true) {
                if (position == limit && !refill()) {
                    return length == 0 ? -1 : length;
                }
                int end = position;
                while (end < limit && buffer[end] != '\n') {
                    end++;
                }
                int more = end - position;
                if (length + more > MAX_LINE_BYTES) {
                    throw new TextException(
                            file(),
                            number,
                            "expected a line of up to " + MAX_LINE_BYTES + " bytes, got a longer one",
                            null);
                }
                if (length + more > line.length) {
                    line = Arrays.copyOf(line, Math.max(length + more, 2 * line.length));
                }
                System.arraycopy(buffer, position, line, length, more);
                length += more;
                position = end;
                if (end < limit) {
                    position++;
                    return length;
                }
            }
        }

        private boolean refill() {
            try {
                limit = Math.max(0, in.read(buffer, 0, buffer.length));
                position = 0;
                return limit > 0;
            } catch (IOException failure) {
                throw new TextException(file(), number, "could not be read: " + failure.getMessage(), failure);
            }
        }

        private Text read(String json) {
            String text = null;
            String prompt = null;
            String completion = null;
            List<ChatTemplate.Message> messages = List.of();
            List<ChatTemplate.Tool> tools = List.of();
            try (JsonParser parser = JSON.createParser(json)) {
                if (parser.nextToken() != JsonToken.START_OBJECT) {
                    throw new TextException(file(), number, EXPECTED + "got another text", null);
                }
                while (parser.nextToken() != JsonToken.END_OBJECT) {
                    String name = parser.currentName();
                    parser.nextToken();
                    if (parser.currentToken() == JsonToken.VALUE_NULL) {
                        continue; // as if it were not there
                    }
                    switch (name) {
                        case "text" -> text = string(parser);
                        case "prompt" -> prompt = string(parser);
                        case "completion" -> completion = string(parser);
                        case "messages" ->
                            messages = made("messages", value("messages", parser, json), ChatTemplate.Message::new);
                        case "tools" -> tools = tools(value("tools", parser, json));
                        default -> parser.skipChildren();
                    }
                }
                if (parser.nextToken() != null) {
                    throw new TextException(file(), number, "expected one object a line, got more behind it", null);
                }
            } catch (IOException failure) {
                throw notJson("", failure);
            }
            if (messages.isEmpty() && !tools.isEmpty()) {
                throw new TextException(file(), number, "tools: expected them beside messages, got none", null);
            }
            if (messages.isEmpty()) {
                return text(number, text, prompt, completion);
            }
            if (text != null || prompt != null || completion != null) {
                throw new TextException(
                        file(), number, "expected messages alone, got text, prompt or completion beside them", null);
            }
            return new Text(file(), number, "", "", messages, tools);
        }

        /** Reads what takes a multiple of its text in memory, of a text that is no longer than a template may write. */
        private @Nullable Object value(String field, JsonParser parser, String json) throws IOException {
            if (json.length() > JinjaLimits.TEXT) {
                throw new TextException(
                        file(),
                        number,
                        field + ": expected a line of up to " + JinjaLimits.TEXT + " characters, got " + json.length()
                                + "; divide the chat",
                        null);
            }
            try {
                return ChatValues.read(parser, ChatValues.MEMBERS);
            } catch (IllegalArgumentException refused) {
                throw new TextException(file(), number, field + ": " + refused.getMessage(), refused);
            }
        }

        private TextException notJson(String where, IOException failure) {
            String text = failure instanceof JacksonException parsed
                    ? parsed.getOriginalMessage() + " at column "
                            + parsed.getLocation().getColumnNr()
                    : String.valueOf(failure.getMessage());
            return new TextException(file(), number, where + "expected JSON: " + text, failure);
        }

        /** Returns tools, which may be a list in a text, as tables without nested types have them; null is none. */
        private List<ChatTemplate.Tool> tools(@Nullable Object value) {
            Object list = value;
            if (value instanceof String text) {
                try (JsonParser parser = JSON.createParser(text)) {
                    parser.nextToken();
                    list = value("tools", parser, text);
                    if (parser.nextToken() != null) {
                        throw new TextException(file(), number, "tools: expected one list, got more behind it", null);
                    }
                } catch (IOException failure) {
                    throw notJson("tools: ", failure);
                }
            }
            return list == null || list instanceof List<?> all && all.isEmpty()
                    ? List.of()
                    : made("tools", list, ChatTemplate.Tool::new);
        }

        /** Makes something of each object of a list. */
        private <T> List<T> made(String field, @Nullable Object value, Function<Map<String, Object>, T> maker) {
            List<T> all = new ArrayList<>();
            String path = "";
            try {
                List<?> list = ChatValues.list(field, value);
                if (list.isEmpty()) {
                    throw ChatValues.refused(field, "a list of one or more", null);
                }
                for (int i = 0; i < list.size(); i++) {
                    path = field + "[" + i + "]";
                    all.add(maker.apply(ChatValues.mapping("", list.get(i))));
                }
                return all;
            } catch (IllegalArgumentException refused) {
                String text = String.valueOf(refused.getMessage());
                String joint = path.isEmpty() ? "" : text.startsWith("expected ") ? ": " : ".";
                throw new TextException(file(), number, path + joint + text, refused);
            }
        }

        private static String kind(JsonToken token) {
            return switch (token) {
                case START_ARRAY -> "a list";
                case START_OBJECT -> "an object";
                case VALUE_TRUE, VALUE_FALSE -> "true or false";
                default -> "a number";
            };
        }

        private String string(JsonParser parser) throws IOException {
            if (parser.currentToken() != JsonToken.VALUE_STRING) {
                throw new TextException(
                        file(),
                        number,
                        "expected a text for " + parser.currentName() + ", got " + kind(parser.currentToken()),
                        null);
            }
            return parser.getText();
        }

        @Override
        public void close() {
            closeFile(file(), in);
        }
    }
}
