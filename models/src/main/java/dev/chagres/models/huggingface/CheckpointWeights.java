package dev.chagres.models.huggingface;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.HostBuffer;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.batch.TrainedModel;
import dev.chagres.checkpoint.RunState;
import dev.chagres.io.SafetensorsEntry;
import dev.chagres.io.TensorSource;
import dev.chagres.io.TensorSpec;
import dev.chagres.models.huggingface.CheckpointTensors.Found;
import dev.chagres.models.huggingface.Target.Padding;
import dev.chagres.models.huggingface.Target.Part;
import dev.chagres.models.huggingface.Target.Run;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.Predicate;
import java.util.function.Supplier;
import java.util.stream.LongStream;

/**
 * The tensors of a folder that make the parameters of a model: found under their names, checked, and copied.
 *
 * <p>Threading: the device's thread.
 */
final class CheckpointWeights implements AutoCloseable {
    static final String CONFIG = "config.json";

    /** Numbers that are copied to the device at a time. */
    private static final long PIECE = 1L << 24;
    /** Numbers that a core reads at a time. */
    private static final long TASK = 1L << 18;

    private static final Set<DType> FLOATS = Set.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16);

    /** Which names a folder may have for a tensor. */
    interface Names {
        List<String> of(String tensor);
    }

    /** Which file and which of its fields say what tensors there are, for errors. */
    record Said(String file, String fields) {
        static final Said CONFIG = new Said(CheckpointWeights.CONFIG, "num_hidden_layers and architectures");
    }

    private final CheckpointTensors tensors;
    private final Names names;
    private final Said said;
    private final Map<String, Found> found = new HashMap<>();

    /** Owns {@code tensors} from here on. */
    CheckpointWeights(CheckpointTensors tensors, Names names) {
        this(tensors, names, Said.CONFIG);
    }

    /** Owns {@code tensors} from here on. */
    CheckpointWeights(CheckpointTensors tensors, Names names, Said said) {
        this.tensors = tensors;
        this.names = names;
        this.said = said;
    }

    /** Before lists are made of so many layers: refuses a folder without {@code last}, a tensor of the last layer. */
    void ensureHas(String last) {
        if (names.of(last).stream().noneMatch(tensors.all()::containsKey)) {
            throw absent(last);
        }
    }

    private CheckpointException absent(String tensor) {
        return CheckpointException.ofTensor(
                tensors.main(), tensor, "expected it for " + said.fields + " of " + said.file + ", got none");
    }

    /** What a tensor may have beside the rows of a parameter. */
    enum Rows {
        /** Nothing. */
        SAME,
        /** Rows of padding, where the parameter has padding. */
        PADDED
    }

    /** Finds the tensors of a parameter, and checks them. */
    void find(Target target, Rows rows) {
        for (Part part : target.parts()) {
            Found only = null;
            for (String name : names.of(part.tensor())) {
                Found next = tensors.all().get(name);
                if (next != null && only != null) {
                    throw next.refused(
                            "expected it under one name, got " + only.entry().name() + ", too");
                }
                only = next == null ? only : next;
            }
            if (only == null) {
                throw absent(part.tensor());
            }
            long[] sizes = part.sizes().clone();
            long[] own = only.entry().sizes();
            if (rows == Rows.PADDED && target.padding() != Padding.NONE && own.length == sizes.length) {
                sizes[0] = Math.max(sizes[0], own[0]);
            }
            check(only, said, sizes);
            found.put(part.tensor(), only);
        }
    }

    static void check(Found tensor, long... sizes) {
        check(tensor, Said.CONFIG, sizes);
    }

    private static void check(Found tensor, Said said, long... sizes) {
        SafetensorsEntry entry = tensor.entry();
        boolean isFloat = entry.type().dtype().filter(FLOATS::contains).isPresent();
        if (!isFloat || !Arrays.equals(entry.sizes(), sizes)) {
            throw tensor.refused("expected F32, F16 or BF16 " + Arrays.toString(sizes) + ", as " + said.file
                    + " says, got " + entry.type() + " " + Arrays.toString(entry.sizes()));
        }
    }

    /** Refuses tensors that were not found for a parameter, unless {@code ignored}. */
    void refuseOthers(String model, Predicate<String> ignored) {
        Set<String> used = new HashSet<>();
        found.values().forEach(tensor -> used.add(tensor.entry().name()));
        tensors.all().forEach((name, tensor) -> {
            if (!used.contains(name) && !ignored.test(name)) {
                throw tensor.refused("expected a tensor of " + model + ", got another one");
            }
        });
    }

    /** Where a folder also has a weight that is tied to another one, they are the same. */
    void checkTied(String tied, String table) {
        Found own = tensors.all().get(tied);
        Found other = found.get(table);
        if (own == null || other == null) {
            return;
        }
        check(own, other.entry().sizes());
        if (own.entry().type() != other.entry().type()
                || own.entry().bytes().mismatch(other.entry().bytes()) != -1) {
            throw own.refused("expected the numbers of " + other.entry().name()
                    + ", since tie_word_embeddings is true, got others");
        }
    }

    /** Returns the file that errors about absent tensors name. */
    Path main() {
        return tensors.main();
    }

    /** Returns all tensors of the folder by name. */
    Map<String, Found> all() {
        return tensors.all();
    }

    /** Returns a tensor that was found. */
    SafetensorsEntry entry(String tensor) {
        return Objects.requireNonNull(found.get(tensor), tensor).entry();
    }

    /** Copies weights into the parameters of a model, and waits. All cores read and round. */
    void load(List<Target> targets, Parameters parameters) {
        Scope scope = parameters.scope();
        long most = targets.stream()
                .map(target -> parameters.get(target.parameter()).weight())
                .mapToLong(weight ->
                        Math.min(PIECE, weight.count()) * weight.dtype().byteSize())
                .max()
                .orElse(0);
        try (HostBuffer host = HostBuffer.pinned(scope.device(), most)) {
            for (Target target : targets) {
                Tensor weight = parameters.get(target.parameter()).weight();
                TensorSource source =
                        source(target, new TensorSpec(target.parameter(), weight.dtype(), weight.shape()));
                for (long begin = 0; begin < weight.count(); begin += PIECE) {
                    long count = Math.min(PIECE, weight.count() - begin);
                    read(source, weight.dtype().byteSize(), begin, host.segment(), count);
                    try (Scope piece = scope.open()) {
                        piece.view(weight, begin, count).copyFrom(scope.stream(), host);
                    }
                    scope.stream().synchronize();
                }
            }
        }
        parameters.changed();
    }

    private static void read(TensorSource source, long size, long begin, MemorySegment host, long count) {
        LongStream.range(0, Math.ceilDiv(count, TASK)).parallel().forEach(task -> {
            long first = task * TASK;
            long bytes = Math.min(TASK, count - first) * size;
            source.copyTo((begin + first) * size, host.asSlice(first * size, bytes));
        });
    }

    /** Copies weights to where a state keeps them, on each rank its parts, but for those that are {@code left} as they are. */
    void load(List<Target> targets, String model, Predicate<String> left, RunState state) {
        Map<String, Target> byName = new HashMap<>();
        targets.forEach(target -> byName.put(target.parameter(), target));
        state.loadFrom(spec -> {
            Target target = byName.get(spec.name());
            if (target == null && left.test(spec.name())) {
                return null;
            }
            if (target == null) {
                throw new IllegalArgumentException(
                        "weights: expected those of " + model + " in " + tensors.main() + ", got " + spec);
            }
            return source(target, spec);
        });
    }

    /** Returns the bytes of a parameter, whose rows are those of its tensors and then padding. */
    private TensorSource source(Target target, TensorSpec spec) {
        long own = target.count();
        if (own > spec.shape().count()
                || target.padding() == Padding.NONE && own != spec.shape().count()) {
            List<String> names = target.parts().stream().map(Part::tensor).toList();
            throw new IllegalArgumentException(
                    "weights: expected " + own + " numbers of " + names + " in " + tensors.main() + ", got " + spec);
        }
        target.parts().forEach(part -> entry(part.tensor()).verify());
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

    /** Writes the bytes of a parameter from {@code offset} on. */
    private void fill(Target target, DType dtype, long offset, MemorySegment piece) {
        long first = 0;
        long done = 0;
        for (Part part : target.parts()) {
            long next = first + part.count() * dtype.byteSize();
            while (offset + done >= first && offset + done < next && done < piece.byteSize()) {
                Run run = target.run(part, (offset + done - first) / dtype.byteSize());
                long count = Math.min(run.count() * dtype.byteSize(), piece.byteSize() - done);
                entry(part.tensor()).copyTo(dtype, run.first() * dtype.byteSize(), piece.asSlice(done, count));
                done += count;
            }
            first = next;
        }
        pad(target.padding(), dtype, piece.asSlice(done));
    }

    /** Fills the rows that no tensor has. */
    static void pad(Padding padding, DType dtype, MemorySegment rest) {
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

    /** Returns the values of a tensor. */
    static float[] floats(SafetensorsEntry entry) {
        float[] values = new float[Math.toIntExact(entry.shape().count())];
        entry.copyTo(DType.FLOAT32, 0, MemorySegment.ofArray(values));
        return values;
    }

    /** Returns how a model that is loaded next gets its memory. */
    static Function<ModelPlan, Parameters> memory(Device device, DType dtype) {
        ensureFloat(dtype);
        return plan -> Parameters.allocateZeros(device, plan, dtype);
    }

    /** Returns the same of a model that is not trained: nothing has memory for a gradient. */
    static Function<ModelPlan, Parameters> frozen(Device device, DType dtype) {
        Function<ModelPlan, Parameters> memory = memory(device, dtype);
        return plan -> {
            plan.freeze();
            return memory.apply(plan);
        };
    }

    static void ensureFloat(DType dtype) {
        if (!Objects.requireNonNull(dtype, "dtype").isFloat()) {
            throw new IllegalArgumentException("dtype: expected FLOAT32, BFLOAT16 or FLOAT16, got " + dtype);
        }
    }

    static void ensureWhole(TrainedModel model) {
        ensureWhole(model.parameters());
    }

    static void ensureWhole(Parameters parameters) {
        for (Parameter parameter : parameters.all()) {
            if (!parameter.shape().equals(parameter.wholeShape())) {
                throw new IllegalArgumentException("model: expected whole parameters on one rank, got "
                        + parameter.shape() + " of " + parameter.name() + ", which has " + parameter.wholeShape());
            }
        }
    }

    /** Makes a model of a folder, and loads its weights. */
    static <M extends AutoCloseable> M loaded(Supplier<M> maker, Consumer<M> load, Path folder) {
        M model;
        try {
            model = maker.get();
        } catch (IllegalArgumentException refused) {
            throw CheckpointException.of(
                    folder.resolve(CONFIG),
                    "expected sizes that layers take: "
                            + CheckpointException.plain(String.valueOf(refused.getMessage())),
                    refused);
        }
        return orClosed(model, opened -> {
            load.accept(opened);
            return opened;
        });
    }

    /** Returns what is made of something open, which is closed if that fails. */
    static <R extends AutoCloseable, T> T orClosed(R open, Function<R, T> next) {
        try {
            return next.apply(open);
        } catch (RuntimeException | Error failure) {
            try {
                open.close();
            } catch (Exception alsoFailed) {
                failure.addSuppressed(alsoFailed);
            }
            throw failure;
        }
    }

    @Override
    public void close() {
        tensors.close();
    }
}
