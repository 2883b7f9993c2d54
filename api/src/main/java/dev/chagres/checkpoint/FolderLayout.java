package dev.chagres.checkpoint;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.core.util.DefaultIndenter;
import com.fasterxml.jackson.core.util.DefaultPrettyPrinter;
import dev.chagres.Shape;
import dev.chagres.internal.BlockSums;
import dev.chagres.internal.Manifest;
import dev.chagres.io.ModelFiles;
import dev.chagres.io.SafetensorsLayout;
import dev.chagres.io.SafetensorsType;
import dev.chagres.io.TensorSource;
import dev.chagres.io.TensorSpec;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.jspecify.annotations.Nullable;

/**
 * Which bytes of which files a state has in a folder. It follows from names, types and shapes alone, so that all ranks know it, and the files
 * are the same whatever ranks write them.
 *
 * <p>Threading: immutable.
 */
final class FolderLayout {
    /** Most bytes of tensors in a file of weights, as transformers has it; a larger tensor has a file of its own. */
    private static final long MODEL_BYTES = 5_000_000_000L;
    /** Most in a file of other state, so that many are written at a time. */
    private static final long STATE_BYTES = 2L << 30;

    private final List<TensorSpec> specs;
    /** Of each tensor, in the order of its bytes. */
    private final List<List<Place>> places = new ArrayList<>();

    private final List<TensorFile> files = new ArrayList<>();
    private final Map<TensorSource, Place> constants = new LinkedHashMap<>();
    private final Map<String, byte[]> others = new LinkedHashMap<>();
    private int sums;

    /**
     * Bytes of a tensor, which are a tensor of a file.
     *
     * @param name in the file
     * @param first of them in the tensor
     * @param file its number
     * @param position in the file
     * @param sum the number of the checksum of its first block
     */
    record Place(String name, long first, int file, long position, long bytes, int sum) {
        long end() {
            return first + bytes;
        }
    }

    private record TensorFile(String name, SafetensorsLayout layout) {}

    /**
     * A tensor of a file that has no place yet.
     *
     * @param owner number of the tensor of the state; -1 for a constant
     */
    private record Wanted(
            TensorSpec spec,
            int owner,
            long first,
            @Nullable TensorSource constant) {}

    /**
     * Plans a folder.
     *
     * @param specs of the state's tensors
     * @param weights names of those that are weights
     * @param model under which names they lie; null for their own
     * @throws IllegalArgumentException when names of the model's files are no plain names, or its tensors are larger than a weight
     */
    FolderLayout(List<TensorSpec> specs, Set<String> weights, @Nullable ModelFiles model) {
        this.specs = specs;
        List<Wanted> ofModel = new ArrayList<>();
        List<Wanted> ofState = new ArrayList<>();
        for (int i = 0; i < specs.size(); i++) {
            places.add(new ArrayList<>());
            TensorSpec spec = specs.get(i);
            if (weights.contains(spec.name())) {
                addWeight(i, spec, model, ofModel, ofState);
            } else {
                ofState.add(new Wanted(spec, i, 0, null));
            }
        }
        if (model != null && !ofModel.isEmpty()) {
            model.constants().forEach(source -> ofModel.add(new Wanted(source.spec(), -1, 0, source)));
        }
        ofModel.sort(Comparator.comparing(wanted -> wanted.spec.name()));
        List<List<Wanted>> shards = shards(ofModel, MODEL_BYTES);
        place("model", shards, shards.size() == 1, Map.of("format", "pt"));
        List<List<Wanted>> state = shards(ofState, STATE_BYTES);
        place("state", state, false, Map.of());
        places.forEach(ranges -> ranges.sort(Comparator.comparingLong(Place::first)));
        if (shards.size() > 1) {
            others.put("model.safetensors.index.json", index(shards));
        }
        if (model != null && !ofModel.isEmpty()) {
            model.files().forEach((name, content) -> {
                if (!name.equals(Path.of(name).getFileName().toString()) || name.equals(Manifest.NAME)) {
                    throw new IllegalArgumentException(
                            "model: expected plain names of files other than " + Manifest.NAME + ", got " + name);
                }
                others.put(name, content);
            });
        }
    }

    private static void addWeight(
            int owner, TensorSpec spec, @Nullable ModelFiles model, List<Wanted> ofModel, List<Wanted> ofState) {
        List<ModelFiles.Named> named = model == null ? List.of() : model.tensors(spec.name());
        if (named.isEmpty()) {
            (model == null ? ofModel : ofState).add(new Wanted(spec, owner, 0, null));
            return;
        }
        long first = 0;
        for (ModelFiles.Named tensor : named) {
            TensorSpec one = new TensorSpec(tensor.name(), spec.dtype(), tensor.shape());
            ofModel.add(new Wanted(one, owner, first, null));
            first += one.byteSize();
        }
        long rest = spec.byteSize() - first;
        if (rest < 0) {
            throw new IllegalArgumentException(
                    "model: expected tensors of at most the elements of " + spec + ", got " + named);
        }
        if (rest > 0) {
            Shape shape = Shape.of(rest / spec.dtype().byteSize());
            ofState.add(new Wanted(new TensorSpec(spec.name(), spec.dtype(), shape), owner, first, null));
        }
    }

    private static List<List<Wanted>> shards(List<Wanted> all, long most) {
        List<List<Wanted>> shards = new ArrayList<>();
        long bytes = Long.MAX_VALUE;
        for (Wanted wanted : all) {
            long size = wanted.spec.byteSize();
            if (bytes > most - size) {
                shards.add(new ArrayList<>());
                bytes = 0;
            }
            shards.getLast().add(wanted);
            bytes += size;
        }
        return shards;
    }

    private static String name(String kind, int index, int count) {
        return String.format(Locale.ROOT, "%s-%05d-of-%05d.safetensors", kind, index + 1, count);
    }

    private void place(String kind, List<List<Wanted>> shards, boolean single, Map<String, String> metadata) {
        for (int i = 0; i < shards.size(); i++) {
            List<Wanted> shard = shards.get(i);
            var layout = new SafetensorsLayout(shard.stream().map(Wanted::spec).toList(), metadata);
            for (Wanted wanted : shard) {
                String name = wanted.spec.name();
                Place place = new Place(
                        name, wanted.first, files.size(), layout.position(name), wanted.spec.byteSize(), sums);
                sums += BlockSums.count(wanted.spec.byteSize());
                if (wanted.constant == null) {
                    places.get(wanted.owner).add(place);
                } else {
                    constants.put(wanted.constant, place);
                }
            }
            String name = single ? kind + ".safetensors" : name(kind, i, shards.size());
            files.add(new TensorFile(name, layout));
        }
    }

    private static byte[] index(List<List<Wanted>> shards) {
        Map<String, String> map = new TreeMap<>();
        long bytes = 0;
        long elements = 0;
        for (int i = 0; i < shards.size(); i++) {
            for (Wanted wanted : shards.get(i)) {
                map.put(wanted.spec.name(), name("model", i, shards.size()));
                bytes += wanted.spec.byteSize();
                elements += wanted.spec.shape().count();
            }
        }
        var all = new ByteArrayOutputStream();
        try (JsonGenerator json = new JsonFactory().createGenerator(all)) {
            json.setPrettyPrinter(new DefaultPrettyPrinter().withObjectIndenter(new DefaultIndenter("  ", "\n")));
            json.writeStartObject();
            json.writeObjectFieldStart("metadata");
            json.writeNumberField("total_parameters", elements);
            json.writeNumberField("total_size", bytes);
            json.writeEndObject();
            json.writeObjectFieldStart("weight_map");
            for (Map.Entry<String, String> entry : map.entrySet()) {
                json.writeStringField(entry.getKey(), entry.getValue());
            }
            json.writeEndObject();
            json.writeEndObject();
        } catch (IOException impossible) {
            throw new UncheckedIOException("memory can be written", impossible);
        }
        return all.toByteArray();
    }

    /** Returns how many checksums of blocks there are. */
    int sums() {
        return sums;
    }

    /** Returns where the bytes of a tensor lie, in their order. */
    List<Place> places(int tensor) {
        return places.get(tensor);
    }

    int fileCount() {
        return files.size();
    }

    Path file(Path folder, int file) {
        return folder.resolve(files.get(file).name);
    }

    /**
     * Makes all files, with what is no part of the state, in their whole length; {@link #force} brings them to the disk.
     *
     * @param found takes the checksums of constants
     */
    void create(Path folder, int... found) throws IOException {
        for (int i = 0; i < files.size(); i++) {
            int number = i;
            SafetensorsLayout layout = files.get(i).layout;
            try (FileChannel channel = create(folder.resolve(files.get(i).name))) {
                write(channel, 0, ByteBuffer.wrap(layout.header()));
                if (layout.byteSize() > layout.header().length) {
                    write(channel, layout.byteSize() - 1, ByteBuffer.allocate(1));
                }
                constants.forEach((source, place) -> {
                    if (place.file == number) {
                        write(channel, source, place, found);
                    }
                });
            }
        }
        for (Map.Entry<String, byte[]> other : others.entrySet()) {
            try (FileChannel channel = create(folder.resolve(other.getKey()))) {
                write(channel, 0, ByteBuffer.wrap(other.getValue()));
            }
        }
    }

    /** Waits until all files are on the disk. */
    void force(Path folder) throws IOException {
        List<String> names = new ArrayList<>(others.keySet());
        files.forEach(file -> names.add(file.name));
        for (String name : names) {
            try (FileChannel channel = FileChannel.open(folder.resolve(name), StandardOpenOption.WRITE)) {
                channel.force(true);
            }
        }
    }

    private static FileChannel create(Path file) throws IOException {
        return FileChannel.open(file, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE);
    }

    private static void write(FileChannel channel, TensorSource source, Place place, int... found) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment bytes = arena.allocate(place.bytes, Long.BYTES);
            source.copyTo(0, bytes);
            write(channel, place.position, bytes.asByteBuffer());
            int[] own = BlockSums.ofAll(bytes);
            System.arraycopy(own, 0, found, place.sum, own.length);
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }

    static void write(FileChannel channel, long position, ByteBuffer bytes) throws IOException {
        long next = position;
        while (bytes.hasRemaining()) {
            next += channel.write(bytes, next);
        }
    }

    /** Returns what the folder holds. */
    Manifest manifest(long step, Map<String, String> metadata, Map<String, Long> numbers, int... found) {
        Map<String, Manifest.Content> contents = new LinkedHashMap<>();
        for (TensorFile file : files) {
            byte[] header = file.layout.header();
            contents.put(
                    file.name,
                    new Manifest.Content(
                            file.layout.byteSize(), header.length, BlockSums.ofAll(MemorySegment.ofArray(header))));
        }
        others.forEach((name, bytes) -> contents.put(
                name, new Manifest.Content(bytes.length, bytes.length, BlockSums.ofAll(MemorySegment.ofArray(bytes)))));
        Map<String, Manifest.Whole> tensors = new LinkedHashMap<>();
        for (int i = 0; i < specs.size(); i++) {
            tensors.put(specs.get(i).name(), whole(specs.get(i), places.get(i), found));
        }
        Map<String, Manifest.Whole> beside = new LinkedHashMap<>();
        constants.forEach(
                (source, place) -> beside.put(source.spec().name(), whole(source.spec(), List.of(place), found)));
        return new Manifest(step, metadata, numbers, contents, tensors, beside);
    }

    private Manifest.Whole whole(TensorSpec spec, List<Place> of, int... found) {
        return new Manifest.Whole(
                SafetensorsType.of(spec.dtype()).name(),
                spec.shape().sizes(),
                of.stream()
                        .map(place -> new Manifest.Range(
                                place.name,
                                place.first,
                                files.get(place.file).name,
                                place.position,
                                place.bytes,
                                Arrays.copyOfRange(found, place.sum, place.sum + BlockSums.count(place.bytes))))
                        .toList());
    }
}
