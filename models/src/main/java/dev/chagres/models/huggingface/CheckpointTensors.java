package dev.chagres.models.huggingface;

import dev.chagres.io.SafetensorsEntry;
import dev.chagres.io.SafetensorsFile;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;

/**
 * All tensors of a folder: of {@code model.safetensors}, or of the shards that {@code model.safetensors.index.json} names.
 *
 * <p>Threading: thread-safe.
 */
final class CheckpointTensors implements AutoCloseable {
    static final String SINGLE = "model.safetensors";
    static final String INDEX = "model.safetensors.index.json";

    private static final String WEIGHT_MAP = "weight_map";
    private static final int MOST_SHARDS = 10_000;

    /** A tensor and the file that has it. */
    record Found(Path file, SafetensorsEntry entry) {
        /** Says what is wrong with the tensor. */
        CheckpointException refused(String text) {
            return CheckpointException.ofTensor(file, entry.name(), text);
        }
    }

    private final Path main;
    private final Map<String, Found> tensors = new LinkedHashMap<>();
    private final Map<Path, SafetensorsFile> files = new LinkedHashMap<>();

    private CheckpointTensors(Path main) {
        this.main = main;
    }

    static CheckpointTensors open(Path folder) {
        Path single = folder.resolve(SINGLE);
        Path index = folder.resolve(INDEX);
        boolean isSingle = Files.isRegularFile(single);
        if (!isSingle && !Files.isRegularFile(index)) {
            throw CheckpointException.of(folder, missing(folder), null);
        }
        return CheckpointWeights.orClosed(new CheckpointTensors(isSingle ? single : index), opened -> {
            if (isSingle) {
                opened.add(single);
            } else {
                opened.addShards(folder, JsonObject.read(index).textsByName(WEIGHT_MAP));
            }
            return opened;
        });
    }

    /** Opens a single file. */
    static CheckpointTensors ofFile(Path file) {
        CheckpointTensors opened = new CheckpointTensors(file);
        opened.add(file);
        return opened;
    }

    private static String missing(Path folder) {
        String expected = "expected " + SINGLE + " or " + INDEX + ", got neither";
        boolean pickled = Files.exists(folder.resolve("pytorch_model.bin"))
                || Files.exists(folder.resolve("pytorch_model.bin.index.json"));
        return pickled
                ? expected
                        + ", but pytorch_model.bin, which only PyTorch reads. Convert it with: python -c \"from"
                        + " transformers import AutoModelForMaskedLM as M;"
                        + " M.from_pretrained('FOLDER').save_pretrained('CONVERTED')\""
                : expected;
    }

    private void add(Path file) {
        SafetensorsFile opened = SafetensorsFile.open(file);
        files.put(file, opened);
        opened.entries().forEach((name, entry) -> {
            Found before = tensors.putIfAbsent(name, new Found(file, entry));
            if (before != null) {
                throw CheckpointException.ofTensor(
                        file,
                        name,
                        "expected it in one file, got it in " + before.file().getFileName() + ", too");
            }
        });
    }

    private void addShards(Path folder, Map<String, String> weightMap) {
        Set<String> names = new TreeSet<>(weightMap.values());
        if (names.size() > MOST_SHARDS) {
            throw CheckpointException.ofField(
                    main, WEIGHT_MAP, "expected at most " + MOST_SHARDS + " files, got " + names.size());
        }
        weightMap.forEach((tensor, name) -> {
            if (!isPlain(name)) {
                throw CheckpointException.ofField(
                        main,
                        WEIGHT_MAP + "." + tensor,
                        "expected the name of a safetensors file in the same folder, got "
                                + CheckpointException.plain(name));
            }
            if (!Files.isRegularFile(folder.resolve(name))) {
                throw CheckpointException.ofField(
                        main,
                        WEIGHT_MAP + "." + tensor,
                        "expected a file in the same folder, got " + name + ", which is not there");
            }
        });
        names.forEach(name -> add(folder.resolve(name)));
        weightMap.forEach((tensor, name) -> {
            Found found = tensors.get(tensor);
            if (found == null || !found.file().equals(folder.resolve(name))) {
                throw CheckpointException.ofField(
                        main,
                        WEIGHT_MAP + "." + tensor,
                        "expected this tensor in " + name + ", got it "
                                + (found == null
                                        ? "nowhere"
                                        : "in " + found.file().getFileName()));
            }
        });
        tensors.forEach((tensor, found) -> {
            if (!weightMap.containsKey(tensor)) {
                throw found.refused("expected a tensor that " + INDEX + " names, got another one");
            }
        });
    }

    private static boolean isPlain(String name) {
        return name.endsWith(".safetensors")
                && name.length() <= 255
                && name.chars().noneMatch(c -> c == '/' || c == '\\' || c == ':' || Character.isISOControl(c))
                && !name.startsWith(".");
    }

    /** Returns the file of the weights, or the index of files. */
    Path main() {
        return main;
    }

    /** Returns all tensors by name. */
    Map<String, Found> all() {
        return tensors;
    }

    @Override
    public void close() {
        files.values().forEach(SafetensorsFile::close);
    }
}
