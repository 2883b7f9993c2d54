package dev.chagres.io;

import dev.chagres.internal.Checks;
import java.nio.ByteBuffer;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

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
}
