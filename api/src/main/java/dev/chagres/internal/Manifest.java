package dev.chagres.internal;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.core.StreamReadFeature;
import com.fasterxml.jackson.core.util.DefaultIndenter;
import com.fasterxml.jackson.core.util.DefaultPrettyPrinter;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.foreign.MemorySegment;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.Map;

/**
 * What the folder of a checkpoint holds: {@code chagres.json}, which is written last. Its last field is a checksum of the file, computed with
 * zeros in its own place.
 *
 * <p>Threading: immutable.
 *
 * @param step after which the state was saved
 * @param metadata texts by key
 * @param numbers what the host keeps, by name
 * @param files by name, all but this one
 * @param tensors of the state, by name
 * @param beside tensors of the files that the state does not have, by name
 */
public record Manifest(
        long step,
        Map<String, String> metadata,
        Map<String, Long> numbers,
        Map<String, Content> files,
        Map<String, Whole> tensors,
        Map<String, Whole> beside) {
    /** The name of the file. */
    public static final String NAME = "chagres.json";

    static final String FORMAT = "chagres-checkpoint";
    static final long VERSION = 1;
    private static final String SUM = ",\n  \"crc32c\" : \"";
    private static final String END = "\"\n}\n";
    private static final String NONE = "00000000";
    static final JsonFactory JSON = JsonFactory.builder()
            .enable(StreamReadFeature.STRICT_DUPLICATE_DETECTION)
            .build();

    /**
     * A file.
     *
     * @param bytes of the file
     * @param head how many of them, the first ones, are no tensor's
     * @param sums of the head's blocks
     */
    public record Content(long bytes, long head, int... sums) {}

    /**
     * A tensor, whose elements lie in ranges one after another.
     *
     * @param type as safetensors spells it
     */
    public record Whole(String type, long[] shape, List<Range> ranges) {}

    /**
     * Consecutive bytes of a tensor, which are all of a tensor of a file.
     *
     * @param name of the file's tensor
     * @param first of the bytes of the whole tensor
     * @param file by name
     * @param position of the first byte in the file
     * @param bytes how many
     * @param sums of the range's blocks
     */
    public record Range(String name, long first, String file, long position, long bytes, int... sums) {}

    /** A manifest that cannot be used; the text says why. */
    public static final class InvalidException extends Exception {
        private static final long serialVersionUID = 1;

        InvalidException(String text) {
            super(text);
        }
    }

    /** Returns the file. */
    public byte[] bytes() {
        var all = new ByteArrayOutputStream();
        try (JsonGenerator json = JSON.createGenerator(all)) {
            var lines = new DefaultIndenter("  ", "\n");
            json.setPrettyPrinter(new DefaultPrettyPrinter().withObjectIndenter(lines));
            json.writeStartObject();
            json.writeStringField("format", FORMAT);
            json.writeNumberField("version", VERSION);
            json.writeNumberField("step", step);
            json.writeNumberField("block_bytes", BlockSums.BLOCK_BYTES);
            json.writeObjectFieldStart("metadata");
            for (var text : metadata.entrySet()) {
                json.writeStringField(text.getKey(), text.getValue());
            }
            json.writeEndObject();
            json.writeObjectFieldStart("numbers");
            for (var number : numbers.entrySet()) {
                json.writeNumberField(number.getKey(), number.getValue());
            }
            json.writeEndObject();
            json.writeObjectFieldStart("files");
            for (var file : files.entrySet()) {
                json.writeObjectFieldStart(file.getKey());
                json.writeNumberField("bytes", file.getValue().bytes);
                json.writeNumberField("head_bytes", file.getValue().head);
                sums(json, file.getValue().sums);
                json.writeEndObject();
            }
            json.writeEndObject();
            write(json, "tensors", tensors);
            write(json, "beside", beside);
            json.writeEndObject();
        } catch (IOException impossible) {
            throw new UncheckedIOException("memory can be written", impossible);
        }
        String body = all.toString(StandardCharsets.UTF_8).stripTrailing();
        body = body.substring(0, body.length() - 1).stripTrailing();
        byte[] text = (body + SUM + NONE + END).getBytes(StandardCharsets.UTF_8);
        byte[] digits =
                BlockSums.digits(BlockSums.of(MemorySegment.ofArray(text))).getBytes(StandardCharsets.US_ASCII);
        System.arraycopy(digits, 0, text, text.length - END.length() - digits.length, digits.length);
        return text;
    }

    private static void write(JsonGenerator json, String field, Map<String, Whole> all) throws IOException {
        json.writeObjectFieldStart(field);
        for (var tensor : all.entrySet()) {
            json.writeObjectFieldStart(tensor.getKey());
            json.writeStringField("dtype", tensor.getValue().type);
            json.writeFieldName("shape");
            long[] shape = tensor.getValue().shape;
            json.writeArray(shape, 0, shape.length);
            json.writeArrayFieldStart("ranges");
            for (Range range : tensor.getValue().ranges) {
                json.writeStartObject();
                json.writeStringField("tensor", range.name);
                json.writeNumberField("first", range.first);
                json.writeStringField("file", range.file);
                json.writeNumberField("position", range.position);
                json.writeNumberField("bytes", range.bytes);
                sums(json, range.sums);
                json.writeEndObject();
            }
            json.writeEndArray();
            json.writeEndObject();
        }
        json.writeEndObject();
    }

    private static void sums(JsonGenerator json, int... sums) throws IOException {
        json.writeArrayFieldStart("crc32c");
        for (int sum : sums) {
            json.writeString(BlockSums.digits(sum));
        }
        json.writeEndArray();
    }

    /**
     * Reads a manifest.
     *
     * @throws InvalidException when it is damaged, has other fields, or was written by a later version
     */
    public static Manifest of(byte[] file) throws InvalidException {
        ensureUndamaged(file);
        return ManifestReader.read(file);
    }

    private static void ensureUndamaged(byte[] file) throws InvalidException {
        int at = file.length - END.length() - NONE.length();
        byte[] zeros = file.clone();
        if (at >= 0) {
            Arrays.fill(zeros, at, at + NONE.length(), (byte) '0');
        }
        String got = BlockSums.digits(BlockSums.of(MemorySegment.ofArray(zeros)));
        String expected = at < 0 ? "" : new String(file, at, NONE.length(), StandardCharsets.ISO_8859_1);
        if (!got.equals(expected)) {
            throw new InvalidException(damaged(got));
        }
    }

    /** Says that bytes have another checksum than they had. */
    public static String damaged(String got) {
        return "damaged since it was written: the checksum is " + got + ", which is another than that of the time; take"
                + " another checkpoint";
    }
}
