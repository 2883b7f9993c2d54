package dev.chagres.models.huggingface;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.checkpoint.RunState;
import dev.chagres.io.SafetensorsEntry;
import dev.chagres.io.TensorSource;
import dev.chagres.io.TensorSpec;
import dev.chagres.models.esm.Esm2ClassifierConfig;
import dev.chagres.models.esm.Esm2ClassifierConfig.Task;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.huggingface.CheckpointTensors.Found;
import dev.chagres.models.huggingface.Esm2Tensors.Padding;
import dev.chagres.models.huggingface.Esm2Tensors.Target;
import dev.chagres.parameter.Parameters;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * An ESM-2 in a folder, checked: the sizes of {@code config.json}, and for each parameter the tensors that make it.
 *
 * <p>Threading: the device's thread.
 */
final class Esm2Source implements AutoCloseable {
    private static final String CONFIG = "config.json";
    private static final Set<DType> FLOATS = Set.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16);

    private final EsmArchitecture architecture;
    private final EsmFields fields;
    private final Esm2Config config;
    private final CheckpointTensors tensors;
    private final List<Target> targets;
    private final Map<String, Found> found = new HashMap<>();

    private Esm2Source(EsmArchitecture architecture, EsmFields fields, Esm2Config sizes, CheckpointTensors tensors) {
        this.architecture = architecture;
        this.fields = fields;
        this.tensors = tensors;
        refuseMoreLayers(sizes);
        Task task = architecture.task();
        targets = task == null
                ? Esm2Tensors.targets(sizes)
                : Esm2Tensors.targets(new Esm2ClassifierConfig(sizes, task, fields.labels()));
        targets.forEach(this::find);
        config = sizes.withForm(sizes.form().withFrequencies(frequencies(sizes)));
        refuseOthers();
        checkTied();
    }

    /** Opens and checks a folder. */
    static Esm2Source open(Path folder) {
        JsonObject json = config(folder);
        EsmArchitecture architecture = EsmArchitecture.of(json);
        EsmFields fields = new EsmFields(json);
        Esm2Config sizes = fields.config(); // before any other file is read
        TokenizerFiles.check(folder);
        CheckpointTensors tensors = CheckpointTensors.open(folder);
        try {
            return new Esm2Source(architecture, fields, sizes, tensors);
        } catch (RuntimeException | Error failure) {
            tensors.close();
            throw failure;
        }
    }

    static JsonObject config(Path folder) {
        return JsonObject.read(folder.resolve(CONFIG));
    }

    /** Before lists are made of so many layers. */
    private void refuseMoreLayers(Esm2Config sizes) {
        String last = "esm.encoder.layer." + (sizes.layers() - 1) + ".output.dense.bias";
        if (Esm2Tensors.namesOf(last).stream().noneMatch(tensors.all()::containsKey)) {
            throw absent(last);
        }
    }

    private CheckpointException absent(String tensor) {
        return CheckpointException.ofTensor(
                tensors.main(),
                tensor,
                "expected it for num_hidden_layers and architectures of " + CONFIG + ", got none");
    }

    private void find(Target target) {
        for (String tensor : target.tensors()) {
            Found only = null;
            for (String name : Esm2Tensors.namesOf(tensor)) {
                Found next = tensors.all().get(name);
                if (next != null && only != null) {
                    throw next.refused(
                            "expected it under one name, got " + only.entry().name() + ", too");
                }
                only = next == null ? only : next;
            }
            if (only == null) {
                throw absent(tensor);
            }
            check(only, target.sizes());
            found.put(tensor, only);
        }
    }

    private static void check(Found tensor, long... sizes) {
        SafetensorsEntry entry = tensor.entry();
        if (!isFloat(entry) || !Arrays.equals(entry.sizes(), sizes)) {
            throw tensor.refused("expected F32, F16 or BF16 " + Arrays.toString(sizes) + ", as " + CONFIG
                    + " says, got " + entry.type() + " " + Arrays.toString(entry.sizes()));
        }
    }

    private static boolean isFloat(SafetensorsEntry entry) {
        return entry.type().dtype().filter(FLOATS::contains).isPresent();
    }

    /** Returns the frequencies, which are the same wherever the files have them; those of the base where they have none. */
    private List<Double> frequencies(Esm2Config sizes) {
        @Nullable Found first = null;
        float[] values = {};
        for (Map.Entry<String, Found> tensor : tensors.all().entrySet()) {
            if (Esm2Tensors.isFrequencies(tensor.getKey())) {
                check(tensor.getValue(), sizes.headDim() / 2);
                float[] own = floats(tensor.getValue().entry());
                if (first != null && !Arrays.equals(values, own)) {
                    throw tensor.getValue()
                            .refused("expected the frequencies of "
                                    + first.entry().name() + ", got others");
                }
                first = tensor.getValue();
                values = own;
            }
        }
        if (first == null) {
            double theta = fields.ropeTheta();
            return IntStream.range(0, sizes.headDim() / 2)
                    .mapToObj(i -> (double) (float) Math.pow(theta, -2.0 * i / sizes.headDim()))
                    .toList();
        }
        List<Double> all = new ArrayList<>();
        for (float value : values) {
            if (!Float.isFinite(value)) {
                throw first.refused("expected finite numbers, got " + value);
            }
            all.add((double) value);
        }
        return all;
    }

    private static float[] floats(SafetensorsEntry entry) {
        int count = Math.toIntExact(entry.sizes()[0]);
        float[] values = new float[count];
        entry.copyTo(DType.FLOAT32, 0, MemorySegment.ofArray(values));
        return values;
    }

    private void refuseOthers() {
        Set<String> used = new HashSet<>();
        found.values().forEach(tensor -> used.add(tensor.entry().name()));
        tensors.all().forEach((name, tensor) -> {
            if (!used.contains(name)
                    && !Esm2Tensors.isFrequencies(name)
                    && !Esm2Tensors.isUnused(name)
                    && !name.equals(Esm2Tensors.TIED_DECODER)) {
                throw tensor.refused("expected a tensor of an " + architecture.className() + " of " + config.layers()
                        + " layers, got another one");
            }
        });
    }

    /** The decoder's weight is the embedding's table: where a file has both they are the same. */
    private void checkTied() {
        Found decoder = tensors.all().get(Esm2Tensors.TIED_DECODER);
        Found table = found.get(Esm2Tensors.EMBEDDING);
        if (decoder == null || table == null) {
            return;
        }
        SafetensorsEntry own = decoder.entry();
        check(decoder, table.entry().sizes());
        if (own.type() != table.entry().type()
                || own.bytes().mismatch(table.entry().bytes()) != -1) {
            throw decoder.refused("expected the numbers of " + table.entry().name()
                    + ", since tie_word_embeddings is true, got others");
        }
    }

    /** Returns sizes and form. */
    Esm2Config config() {
        return config;
    }

    EsmArchitecture architecture() {
        return architecture;
    }

    /** Refuses another head. */
    Esm2Source ensure(EsmArchitecture... expected) {
        if (!List.of(expected).contains(architecture)) {
            throw fields.json()
                    .refused(
                            "architectures",
                            Arrays.stream(expected)
                                    .map(EsmArchitecture::className)
                                    .toList()
                                    .toString());
        }
        return this;
    }

    /** Returns sizes, form and classes of a classifier. */
    Esm2ClassifierConfig classifier() {
        return new Esm2ClassifierConfig(config, Objects.requireNonNull(architecture.task(), "task"), fields.labels());
    }

    /** Returns the type that the weights were saved in: that of the file's text, else that of the embedding. */
    DType dtype() {
        return fields.dtype().orElseGet(() -> entry(Esm2Tensors.EMBEDDING).dtype());
    }

    private SafetensorsEntry entry(String tensor) {
        return Objects.requireNonNull(found.get(tensor), tensor).entry();
    }

    /** Returns the tensors of the folder that the model does not compute with, by name. */
    Map<String, Found> unused() {
        Map<String, Found> unused = new HashMap<>(tensors.all());
        unused.keySet().removeIf(name -> !Esm2Tensors.isUnused(name));
        return unused;
    }

    /** Copies all weights into the parameters of a model of these sizes, and waits. */
    void load(Parameters parameters) {
        load(targets, parameters);
    }

    /** Copies the weights that all heads read. */
    void loadEncoder(Parameters parameters) {
        load(Esm2Tensors.encoder(config), parameters);
    }

    private void load(List<Target> chosen, Parameters parameters) {
        for (Target target : chosen) {
            Tensor weight = parameters.get(target.parameter()).weight();
            TensorSource source = source(target, new TensorSpec(target.parameter(), weight.dtype(), weight.shape()));
            try (Arena arena = Arena.ofConfined()) {
                MemorySegment host = arena.allocate(weight.byteSize(), Long.BYTES);
                source.copyTo(0, host);
                weight.copyFrom(parameters.scope().stream(), host);
                parameters.scope().stream().synchronize();
            }
        }
        parameters.changed();
    }

    /** Copies all weights to where a state keeps them, on each rank its parts. */
    void load(RunState weights) {
        Map<String, Target> byName = new HashMap<>();
        targets.forEach(target -> byName.put(target.parameter(), target));
        weights.loadFrom(spec -> {
            Target target = byName.get(spec.name());
            if (target == null) {
                throw new IllegalArgumentException("weights: expected those of " + architecture.className() + " in "
                        + tensors.main() + ", got " + spec);
            }
            return source(target, spec);
        });
    }

    /** Returns the bytes of a parameter, whose rows are those of its tensors and then padding. */
    private TensorSource source(Target target, TensorSpec spec) {
        long own = target.tensorCount() * target.tensors().size();
        if (own > spec.shape().count()
                || target.padding() == Padding.NONE && own != spec.shape().count()) {
            throw new IllegalArgumentException("weights: expected " + own + " numbers of " + target.tensors() + " in "
                    + tensors.main() + ", got " + spec);
        }
        target.tensors().forEach(tensor -> entry(tensor).verify());
        return new TensorSource() {
            @Override
            public TensorSpec spec() {
                return spec;
            }

            @Override
            public void copyTo(long offset, MemorySegment piece) {
                fill(target, spec.dtype(), offset, piece);
            }
        };
    }

    private void fill(Target target, DType dtype, long offset, MemorySegment piece) {
        long bytes = target.tensorCount() * dtype.byteSize();
        long done = 0;
        while (done < piece.byteSize()) {
            long at = offset + done;
            int index = (int) Math.min(at / bytes, target.tensors().size());
            if (index == target.tensors().size()) {
                pad(target.padding(), dtype, piece.asSlice(done));
                return;
            }
            long count = Math.min(bytes - at % bytes, piece.byteSize() - done);
            entry(target.tensors().get(index)).copyTo(dtype, at % bytes, piece.asSlice(done, count));
            done += count;
        }
    }

    private static void pad(Padding padding, DType dtype, MemorySegment rest) {
        rest.fill((byte) 0);
        for (long at = 0; padding == Padding.LOWEST && at < rest.byteSize(); at += dtype.byteSize()) {
            putLowest(rest, dtype, at);
        }
    }

    private static void putLowest(MemorySegment host, DType dtype, long offset) {
        switch (dtype) {
            case FLOAT32 -> host.set(ValueLayout.JAVA_FLOAT, offset, -Float.MAX_VALUE);
            case BFLOAT16 -> host.set(ValueLayout.JAVA_SHORT, offset, (short) 0xff7f);
            case FLOAT16 -> host.set(ValueLayout.JAVA_SHORT, offset, (short) 0xfbff);
            default -> throw new IllegalArgumentException("dtype: expected FLOAT32, BFLOAT16 or FLOAT16, got " + dtype);
        }
    }

    @Override
    public void close() {
        tensors.close();
    }
}
