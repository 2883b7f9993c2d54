package dev.chagres.io;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** Makes the bytes before the data: the header's length, and the header, padded with spaces. */
final class HeaderWriter {
    /** The data begins at a multiple of this, so that each tensor begins at a multiple of its elements' size. */
    private static final int ALIGNMENT = 8;

    private static final JsonFactory JSON = new JsonFactory();

    private HeaderWriter() {}

    /**
     * Returns length and header.
     *
     * @param tensors in the order of their data
     * @throws IllegalArgumentException when the header would be longer than readers take
     */
    static ByteBuffer bytes(List<TensorSpec> tensors, Map<String, String> metadata) {
        byte[] json = json(tensors, metadata);
        int size = Math.ceilDiv(json.length, ALIGNMENT) * ALIGNMENT;
        if (size > Header.MAX_BYTES) {
            throw new IllegalArgumentException("tensors, metadata: expected a header of at most " + Header.MAX_BYTES
                    + " bytes, got " + size + "; write several files");
        }
        byte[] padded = Arrays.copyOf(json, size);
        Arrays.fill(padded, json.length, size, (byte) ' ');
        return ByteBuffer.allocate(Header.LENGTH_BYTES + size)
                .order(ByteOrder.LITTLE_ENDIAN)
                .putLong(size)
                .put(padded)
                .flip();
    }

    private static byte[] json(List<TensorSpec> tensors, Map<String, String> metadata) {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try (JsonGenerator json = JSON.createGenerator(bytes)) {
            json.writeStartObject();
            if (!metadata.isEmpty()) {
                json.writeObjectFieldStart(Names.METADATA);
                for (Map.Entry<String, String> entry : new TreeMap<>(metadata).entrySet()) {
                    json.writeStringField(entry.getKey(), entry.getValue());
                }
                json.writeEndObject();
            }
            long offset = 0;
            for (TensorSpec tensor : tensors) {
                long end = offset + tensor.byteSize();
                tensor(json, tensor, offset, end);
                offset = end;
            }
            json.writeEndObject();
        } catch (IOException impossible) {
            throw new UncheckedIOException("memory can be written", impossible);
        }
        return bytes.toByteArray();
    }

    private static void tensor(JsonGenerator json, TensorSpec tensor, long begin, long end) throws IOException {
        long[] sizes = tensor.shape().sizes();
        json.writeObjectFieldStart(tensor.name());
        json.writeStringField(Header.DTYPE, SafetensorsType.of(tensor.dtype()).name());
        json.writeFieldName(Header.SHAPE);
        json.writeArray(sizes, 0, sizes.length);
        json.writeFieldName(Header.OFFSETS);
        json.writeArray(new long[] {begin, end}, 0, 2);
        json.writeEndObject();
    }
}
