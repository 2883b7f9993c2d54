package dev.chagres.models.huggingface;

import dev.chagres.Scope;
import dev.chagres.Shape;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.io.SafetensorsWriter;
import dev.chagres.io.TensorSource;
import dev.chagres.io.TensorSpec;
import dev.chagres.models.huggingface.Target.Padding;
import dev.chagres.models.huggingface.Target.Part;
import dev.chagres.models.huggingface.Target.Run;
import dev.chagres.parameter.Parameters;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;

/**
 * Writes a folder of transformers whose files appear all at once, and the tensors of a model into it.
 *
 * <p>Threading: the device's thread.
 */
final class CheckpointWriter {
    private static final Map<String, String> METADATA = Map.of("format", "pt");

    /** Writes the files of a folder. */
    interface Content {
        void writeTo(Path folder) throws IOException;
    }

    private CheckpointWriter() {}

    /** Writes a folder that does not exist yet, or is empty. */
    static void write(Path folder, Content content) {
        Path target = folder.toAbsolutePath().normalize();
        Path parent = target.getParent();
        if (parent == null) {
            throw CheckpointException.of(folder, "expected a folder inside another one, got a root", null);
        }
        try {
            ensureFree(target);
            Path whole = Files.createDirectory(parent.resolve("." + target.getFileName() + "-" + UUID.randomUUID()));
            try {
                content.writeTo(whole);
                Files.move(whole, target, StandardCopyOption.ATOMIC_MOVE);
            } finally {
                delete(whole);
            }
        } catch (IOException failure) {
            throw CheckpointException.of(folder, "could not be written: " + failure, failure);
        }
    }

    /**
     * Writes a model to a folder that does not exist yet, or is empty.
     *
     * @param others tensors that are no parameters, by name; those of the model come first
     */
    static void write(
            Path folder, FolderFiles files, Parameters parameters, Map<String, TensorSource> others, long shardBytes) {
        write(folder, whole -> {
            Stream stream = parameters.scope().stream();
            try (Scope views = stream.device().openScope(stream)) {
                Map<String, TensorSource> all = sources(files.targets(), parameters, files.paddedRows(), views);
                files.constants().forEach(source -> all.put(source.spec().name(), source));
                others.forEach(all::putIfAbsent);
                writeTensors(whole, all, shardBytes);
            }
            for (Map.Entry<String, byte[]> file : files.files().entrySet()) {
                Files.write(whole.resolve(file.getKey()), file.getValue());
            }
        });
    }

    private static void ensureFree(Path folder) throws IOException {
        if (!Files.exists(folder)) {
            return;
        }
        if (!Files.isDirectory(folder)) {
            throw CheckpointException.of(folder, "expected a new or empty folder, got a file", null);
        }
        try (var files = Files.list(folder)) {
            if (files.findAny().isPresent()) {
                throw CheckpointException.of(folder, "expected a new or empty folder, got one with files", null);
            }
        }
    }

    private static void delete(Path folder) throws IOException {
        if (!Files.exists(folder)) {
            return;
        }
        try (var files = Files.walk(folder)) {
            for (Path file : files.sorted(Comparator.reverseOrder()).toList()) {
                Files.delete(file);
            }
        }
    }

    /**
     * Returns the tensors that targets make of parameters, by name.
     *
     * @param paddedRows the rows of a tensor whose parameter has padding; 0 for those without padding
     */
    static Map<String, TensorSource> sources(
            List<Target> targets, Parameters parameters, long paddedRows, Scope views) {
        Map<String, TensorSource> all = new TreeMap<>();
        for (Target target : targets) {
            Tensor weight = parameters.get(target.parameter()).weight();
            long first = 0;
            for (Part part : target.parts()) {
                long[] sizes = part.sizes().clone();
                if (target.padding() != Padding.NONE && paddedRows > 0) {
                    sizes[0] = paddedRows;
                }
                TensorSpec spec = new TensorSpec(part.tensor(), weight.dtype(), Shape.of(sizes));
                all.put(part.tensor(), new Rows(spec, target, part, weight, first, views));
                first += part.count();
            }
        }
        return all;
    }

    /** Writes tensors in the order of their names: one file, or several and their index. */
    private static void writeTensors(Path folder, Map<String, TensorSource> all, long shardBytes) throws IOException {
        List<List<TensorSource>> shards = shards(all.values(), shardBytes);
        if (shards.size() == 1) {
            SafetensorsWriter.write(folder.resolve(CheckpointTensors.SINGLE), shards.getFirst(), METADATA);
            return;
        }
        Map<String, Object> places = new TreeMap<>();
        for (int i = 0; i < shards.size(); i++) {
            String name = String.format(Locale.ROOT, "model-%05d-of-%05d.safetensors", i + 1, shards.size());
            SafetensorsWriter.write(folder.resolve(name), shards.get(i), METADATA);
            shards.get(i).forEach(source -> places.put(source.spec().name(), name));
        }
        writeIndex(folder, all, places);
    }

    private static void writeIndex(Path folder, Map<String, TensorSource> all, Map<String, Object> places)
            throws IOException {
        long bytes = 0;
        long elements = 0;
        for (TensorSource source : all.values()) {
            bytes += source.spec().byteSize();
            elements += source.spec().shape().count();
        }
        Map<String, Object> totals = new LinkedHashMap<>();
        totals.put("total_parameters", elements);
        totals.put("total_size", bytes);
        Map<String, Object> index = new LinkedHashMap<>();
        index.put("metadata", totals);
        index.put("weight_map", places);
        JsonText.write(folder.resolve(CheckpointTensors.INDEX), index);
    }

    /** Returns files of tensors in the order of their names, each as long as it may be. */
    private static List<List<TensorSource>> shards(Iterable<TensorSource> all, long shardBytes) {
        List<List<TensorSource>> shards = new ArrayList<>();
        long bytes = Long.MAX_VALUE;
        for (TensorSource source : all) {
            long size = source.spec().byteSize();
            if (bytes > shardBytes - size) {
                shards.add(new ArrayList<>());
                bytes = 0;
            }
            shards.getLast().add(source);
            bytes += size;
        }
        return shards;
    }

    /** Some rows of a weight on the device, fetched piece by piece. */
    private record Rows(TensorSpec spec, Target target, Part part, Tensor weight, long first, Scope views)
            implements TensorSource {
        @Override
        public void copyTo(long offset, MemorySegment piece) {
            int size = weight.dtype().byteSize();
            long done = 0;
            Stream stream = views.stream();
            try (Scope one = views.open()) {
                while (done < piece.byteSize() && (offset + done) / size < part.count()) {
                    Run run = target.back(part, (offset + done) / size);
                    long count = Math.min(run.count(), (piece.byteSize() - done) / size);
                    one.view(weight, first + run.first(), count).copyTo(stream, piece.asSlice(done, count * size));
                    done += count * size;
                }
            }
            stream.synchronize();
            if (done < piece.byteSize()) {
                CheckpointWeights.pad(target.padding(), weight.dtype(), piece.asSlice(done));
            }
        }
    }
}
