package dev.chagres.io;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import dev.chagres.internal.Checks;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * For checkpoints: the header of a file that several writers fill, and where each tensor begins. It is the file that {@link
 * SafetensorsWriter#write} writes.
 *
 * <p>Threading: immutable.
 */
public final class SafetensorsLayout {
    private final byte[] header;
    private final Map<String, Long> positions = new LinkedHashMap<>();
    private final long byteSize;

    /**
     * Plans a file.
     *
     * @param tensors no name twice
     * @param metadata texts by key, for readers
     * @throws IllegalArgumentException as {@link SafetensorsWriter#write} does
     */
    public SafetensorsLayout(List<TensorSpec> tensors, Map<String, String> metadata) {
        List<TensorSpec> specs = Checks.<TensorSpec>givenAll("tensors", tensors).stream()
                .sorted(ORDER)
                .toList();
        SafetensorsWriter.checkNames(specs);
        SafetensorsWriter.checkMetadata(metadata);
        ByteBuffer bytes = HeaderWriter.bytes(specs, metadata);
        header = new byte[bytes.remaining()];
        bytes.get(header);
        long position = header.length;
        for (TensorSpec spec : specs) {
            positions.put(spec.name(), position);
            position += spec.byteSize();
        }
        byteSize = position;
    }

    /** Tensors of large elements first. */
    static final Comparator<TensorSpec> ORDER =
            Comparator.comparingInt(spec -> -SafetensorsType.of(spec.dtype()).bitSize());

    /** Returns the bytes before the first tensor. */
    public byte[] header() {
        return header.clone();
    }

    /**
     * Returns where a tensor begins in the file.
     *
     * @throws IllegalArgumentException when there is none of this name
     */
    public long position(String tensor) {
        Long position = positions.get(Checks.given("tensor", tensor));
        if (position == null) {
            throw new IllegalArgumentException("tensor: expected one of " + positions.keySet() + ", got " + tensor);
        }
        return position;
    }

    /** Returns the bytes of the file. */
    public long byteSize() {
        return byteSize;
    }

    /** Makes the bytes before the data: the header's length, and the header, padded with spaces. */
    static final class HeaderWriter {
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
            json.writeStringField(
                    Header.DTYPE, SafetensorsType.of(tensor.dtype()).name());
            json.writeFieldName(Header.SHAPE);
            json.writeArray(sizes, 0, sizes.length);
            json.writeFieldName(Header.OFFSETS);
            json.writeArray(new long[] {begin, end}, 0, 2);
            json.writeEndObject();
        }
    }
}
