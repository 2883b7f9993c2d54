package dev.chagres.models.huggingface;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.io.SafetensorsFile;
import dev.chagres.io.SafetensorsWriter;
import dev.chagres.io.TensorSource;
import dev.chagres.io.TensorSpec;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import org.jspecify.annotations.Nullable;

/** A folder of transformers in which one thing is another, drawn by a number. */
final class MutatedFolder {
    /** A tensor that is written again. */
    record Copy(String name, DType dtype, long[] sizes, byte[] bytes) {
        Copy named(String newName) {
            return new Copy(newName, dtype, sizes, bytes);
        }

        Copy sized(long... newSizes) {
            return new Copy(name, dtype, newSizes, bytes);
        }
    }

    private static final String CONFIG = "config.json";
    private static final List<Object> VALUES = List.of(
            0,
            -1,
            1,
            3,
            16,
            48,
            1_000_000_000,
            new BigDecimal("1e300"),
            new BigDecimal("0.5"),
            new BigDecimal("-2.5"),
            "",
            "esm",
            "relu",
            "absolute",
            "bfloat16",
            "../x",
            true,
            false,
            List.of(),
            List.of("EsmModel"),
            List.of(1, 2),
            Map.of(),
            Map.of("a", 1),
            Map.of("rope_type", "yarn", "factor", 2),
            Map.of("rope_type", "linear", "factor", 2));

    private final Path folder;
    private final SplittableRandom random;
    private String prefix = "esm.";
    private List<String> more = List.of(Esm2Tensors.TIED_DECODER, "esm.rotary_embeddings.inv_freq");
    private String what = "";

    MutatedFolder(Path folder, long seed) {
        this.folder = folder;
        random = new SplittableRandom(seed);
    }

    /** Writes the folder of {@code stored} with one change, and returns which. */
    String write(StoredModel stored) throws IOException {
        stored.copyTo(folder);
        if (stored.name().startsWith("decoders/")) {
            prefix = "model.";
            more = List.of(DecoderTensors.HEAD, "model.layers.0.self_attn.rotary_emb.inv_freq");
        }
        switch (random.nextInt(8)) {
            case 0, 1, 2 -> changeField();
            case 3 -> damage(CONFIG, Files.size(folder.resolve(CONFIG)));
            case 4, 5 -> changeTensors();
            case 6 -> changeIndex();
            default -> damage(CheckpointTensors.SINGLE, headerSize());
        }
        return what;
    }

    private <T> T oneOf(List<T> values) {
        return values.get(random.nextInt(values.size()));
    }

    private void changeField() throws IOException {
        Path file = folder.resolve(CONFIG);
        Map<String, @Nullable Object> fields =
                new LinkedHashMap<>(JsonObject.read(file).fields());
        String field = oneOf(List.copyOf(fields.keySet()));
        switch (random.nextInt(4)) {
            case 0 -> {
                fields.remove(field);
                what = CONFIG + " without " + field;
            }
            case 1 -> {
                fields.put(field, null);
                what = CONFIG + " with null for " + field;
            }
            default -> {
                Object value = oneOf(VALUES);
                fields.put(field, value);
                what = CONFIG + " with " + value + " for " + field;
            }
        }
        JsonText.write(file, fields);
    }

    private long headerSize() throws IOException {
        byte[] all = Files.readAllBytes(folder.resolve(CheckpointTensors.SINGLE));
        return 8 + ByteBuffer.wrap(all).order(ByteOrder.LITTLE_ENDIAN).getLong();
    }

    /** Cuts a file short, or changes a byte among the first ones. */
    private void damage(String name, long first) throws IOException {
        Path file = folder.resolve(name);
        byte[] all = Files.readAllBytes(file);
        if (random.nextInt(3) == 0) {
            int length = random.nextInt(all.length);
            what = name + " cut to " + length + " bytes";
            Files.write(file, Arrays.copyOf(all, length));
            return;
        }
        int at = random.nextInt((int) first);
        byte value = (byte) random.nextInt(256);
        what = name + " with " + value + " for " + all[at] + " at byte " + at;
        all[at] = value;
        Files.write(file, all);
    }

    static List<Copy> copies(Path folder) {
        List<Copy> all = new ArrayList<>();
        try (SafetensorsFile file = SafetensorsFile.open(folder.resolve(CheckpointTensors.SINGLE))) {
            file.entries()
                    .forEach((name, entry) -> all.add(new Copy(
                            name, entry.dtype(), entry.sizes(), entry.bytes().toArray(ValueLayout.JAVA_BYTE))));
        }
        return all;
    }

    static void store(Path folder, String name, List<Copy> copies) {
        List<TensorSource> sources = new ArrayList<>();
        for (Copy copy : copies) {
            sources.add(TensorSource.of(
                    new TensorSpec(copy.name, copy.dtype, Shape.of(copy.sizes)), MemorySegment.ofArray(copy.bytes)));
        }
        SafetensorsWriter.write(folder.resolve(name), sources, Map.of("format", "pt"));
    }

    private void changeTensors() {
        List<Copy> copies = copies(folder);
        int at = random.nextInt(copies.size());
        Copy copy = copies.get(at);
        byte[] others = copy.bytes.clone();
        others[random.nextInt(others.length)] ^= 1;
        int change = random.nextInt(9);
        switch (change) {
            case 0 -> copies.remove(at);
            case 1 -> copies.set(at, copy.named(copy.name + "x"));
            case 2 -> copies.set(at, copy.named(copy.name.replace(prefix, "")));
            case 3 ->
                copies.set(at, copy.named(copy.name.replace("gamma", "weight").replace("beta", "bias")));
            case 4 -> copies.set(at, copy.sized(1, copy.bytes.length / 4));
            case 5 ->
                copies.set(at, new Copy(copy.name, DType.BFLOAT16, new long[] {copy.bytes.length / 2}, copy.bytes));
            case 6 ->
                copies.add(copy.named(
                        copy.name.startsWith(prefix) ? copy.name.substring(prefix.length()) : prefix + copy.name));
            case 7 -> {
                String name = oneOf(more);
                if (copies.stream().noneMatch(each -> each.name.equals(name))) {
                    copies.add(new Copy(name, copy.dtype, copy.sizes, others));
                }
            }
            default -> copies.set(at, new Copy(copy.name, DType.INT32, copy.sizes, copy.bytes));
        }
        what = change == 0 ? "without " + copy.name : "tensors, change " + change + " of " + copy.name;
        store(folder, CheckpointTensors.SINGLE, copies);
    }

    private void changeIndex() throws IOException {
        List<Copy> copies = copies(folder);
        List<Copy> first = new ArrayList<>(copies.subList(0, copies.size() / 2));
        List<Copy> second = new ArrayList<>(copies.subList(copies.size() / 2, copies.size()));
        Files.delete(folder.resolve(CheckpointTensors.SINGLE));
        Map<String, @Nullable Object> places = new LinkedHashMap<>();
        first.forEach(copy -> places.put(copy.name, "model-00001-of-00002.safetensors"));
        second.forEach(copy -> places.put(copy.name, "model-00002-of-00002.safetensors"));
        String name = oneOf(copies).name;
        int change = random.nextInt(12);
        switch (change) {
            case 0 -> places.put(name, "../model.safetensors");
            case 1 ->
                places.put(
                        name,
                        folder.resolve("model-00001-of-00002.safetensors")
                                .toAbsolutePath()
                                .toString());
            case 2 -> places.put(name, "model-00003-of-00002.safetensors");
            case 3 ->
                places.put(
                        name, oneOf(List.of("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")));
            case 4 -> places.remove(name);
            case 5 -> places.put(prefix + "other.weight", "model-00002-of-00002.safetensors");
            case 6 -> second.add(first.getFirst());
            case 7 -> places.put(name, 5);
            case 8 -> second.removeFirst();
            case 9 -> places.put(name, CONFIG);
            case 10 -> places.put(name, null);
            default -> second.add(new Copy("unknown", DType.FLOAT32, new long[] {1}, new byte[4]));
        }
        what = "index, change " + change + " of " + name;
        store(folder, "model-00001-of-00002.safetensors", first);
        store(folder, "model-00002-of-00002.safetensors", second);
        JsonText.write(folder.resolve(CheckpointTensors.INDEX), Map.of("weight_map", places));
        if (random.nextInt(8) == 0) {
            damage(CheckpointTensors.INDEX, Files.size(folder.resolve(CheckpointTensors.INDEX)));
        }
    }
}
