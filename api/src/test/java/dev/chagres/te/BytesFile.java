package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.bindings.Provider;
import dev.chagres.io.SafetensorsFile;
import dev.chagres.io.SafetensorsWriter;
import dev.chagres.io.TensorSource;
import dev.chagres.io.TensorSpec;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** A safetensors file with what one provider computed. */
final class BytesFile {
    private BytesFile() {}

    /** Writes all parts, each under its name. */
    static void write(Path file, Map<String, byte[]> parts) {
        try (Arena arena = Arena.ofConfined()) {
            List<TensorSource> sources = new ArrayList<>();
            parts.forEach((name, bytes) -> {
                MemorySegment memory = arena.allocateFrom(ValueLayout.JAVA_BYTE, bytes);
                sources.add(TensorSource.of(new TensorSpec(name, DType.BYTE, Shape.of(bytes.length)), memory));
            });
            SafetensorsWriter.write(
                    file, sources, Map.of("provider", Provider.current().name()));
        }
    }

    /** Returns the parts of a file. */
    static Map<String, byte[]> read(Path file) {
        Map<String, byte[]> parts = new LinkedHashMap<>();
        try (SafetensorsFile source = SafetensorsFile.open(file)) {
            source.entries()
                    .forEach((name, entry) -> parts.put(name, entry.bytes().toArray(ValueLayout.JAVA_BYTE)));
        }
        return parts;
    }

    /** Returns which provider wrote a file. */
    static String provider(Path file) {
        try (SafetensorsFile source = SafetensorsFile.open(file)) {
            return String.valueOf(source.metadata().get("provider"));
        }
    }

    /** Returns the bytes of what was computed. */
    static Map<String, byte[]> bytes(ComputedBytes computed) {
        Map<String, byte[]> bytes = new LinkedHashMap<>();
        computed.parts().forEach((name, part) -> bytes.put(name, part.bytes()));
        return bytes;
    }
}
