package dev.chagres.models.huggingface;

import dev.chagres.DType;
import dev.chagres.io.SafetensorsEntry;
import dev.chagres.io.SafetensorsFile;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.foreign.MemorySegment;
import java.net.URISyntaxException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.stream.Stream;

/** A small model that transformers wrote, and what it computes: src/test/vectors/make_huggingface_esm2.py and make_huggingface_decoders.py. */
record StoredModel(String name) {
    static List<StoredModel> all() {
        return List.of(new StoredModel("token-dropout"), new StoredModel("plain"));
    }

    static List<StoredModel> classifiers() {
        return List.of(new StoredModel("tokens"), new StoredModel("sequences"));
    }

    /** Classifiers whose labels are numbers. */
    static List<StoredModel> targets() {
        return List.of(new StoredModel("regression"), new StoredModel("multi-label"));
    }

    static List<StoredModel> decoders() {
        return Stream.of("llama", "llama-biases", "llama2", "qwen2", "qwen3", "qwen3-biases", "mistral", "mistral-full")
                .map(name -> new StoredModel("decoders/" + name))
                .toList();
    }

    /** Returns the folder that transformers wrote. */
    Path folder() {
        try {
            return Path.of(Objects.requireNonNull(
                                    StoredModel.class.getResource("/huggingface/" + name + "/config.json"))
                            .toURI())
                    .getParent();
        } catch (URISyntaxException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    /** Copies config.json and the tensors. */
    Path copyTo(Path target) {
        try {
            Files.createDirectories(target);
            for (String file : List.of("config.json", "model.safetensors")) {
                Files.copy(folder().resolve(file), target.resolve(file));
            }
            return target;
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }

    /** Returns all floating-point tensors of the vectors. */
    Map<String, float[]> vectors() {
        return floats(folder().resolve("vectors.safetensors"));
    }

    static Map<String, float[]> floats(Path file) {
        Map<String, float[]> all = new LinkedHashMap<>();
        try (SafetensorsFile opened = SafetensorsFile.open(file)) {
            opened.entries().forEach((name, entry) -> {
                if (entry.dtype() == DType.FLOAT32) {
                    float[] values = new float[count(entry)];
                    entry.copyTo(MemorySegment.ofArray(values));
                    all.put(name, values);
                }
            });
        }
        return all;
    }

    int[] ints(String vector) {
        return ints(folder().resolve("vectors.safetensors"), vector);
    }

    static int[] ints(Path file, String vector) {
        try (SafetensorsFile opened = SafetensorsFile.open(file)) {
            SafetensorsEntry entry = opened.entry(vector);
            int[] values = new int[count(entry)];
            entry.copyTo(MemorySegment.ofArray(values));
            return values;
        }
    }

    private static int count(SafetensorsEntry entry) {
        return Math.toIntExact(Arrays.stream(entry.sizes()).reduce(1, Math::multiplyExact));
    }

    @Override
    public String toString() {
        return name;
    }
}
