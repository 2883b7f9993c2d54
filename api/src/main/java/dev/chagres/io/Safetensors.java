package dev.chagres.io;

import dev.chagres.DType;
import dev.chagres.HostBuffer;
import dev.chagres.Scope;
import dev.chagres.Shape;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.parameter.State;
import dev.chagres.parameter.State.Values;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.stream.Collectors;
import org.jspecify.annotations.Nullable;

/**
 * Saves a {@link State} to a safetensors file, and loads it: each tensor under its name, each number of the host as an I64 scalar.
 *
 * {@snippet file="dev/chagres/TrainingExamplesTest.java" region="safetensors"}
 *
 * <p>Threading: the device's thread.
 */
public final class Safetensors {
    private static final long PIECE_BYTES = 16L << 20;
    /** Elements that are compared with limits at a time. */
    private static final int CHECKED_AT_A_TIME = 1 << 12;

    private static final Shape SCALAR = Shape.of();

    private Safetensors() {}

    /**
     * Writes everything in {@code state}, after the work enqueued on {@code stream}. The new file is written beside the old one and then
     * replaces it; a failure leaves the old one. It has checksums ({@link SafetensorsWriter#writeWithChecksums}).
     *
     * @param metadata text that goes into the header
     * @throws SafetensorsException when the file cannot be written
     */
    public static void save(Path file, State state, Stream stream, Map<String, String> metadata) {
        Checks.given("state", state);
        List<TensorSource> sources = new ArrayList<>();
        try (Scope views = Checks.given("stream", stream).device().openScope(stream)) {
            state.tensors().forEach((name, tensor) -> sources.add(new DeviceTensor(name, tensor, stream, views)));
            state.quantized()
                    .forEach((name, weight) -> sources.add(new DequantizedWeight(name, weight, stream, views)));
            state.numbers().forEach((name, number) -> sources.add(new HostNumber(name, number)));
            SafetensorsWriter.writeWithChecksums(file, sources, metadata);
        }
    }

    /**
     * Loads everything in {@code state} from a file that has exactly that, or also tensors that the state leaves out, and waits until it is
     * on the device. First names, types and shapes are compared, then the bytes with their checksums if the file has some, then the host's
     * numbers and the elements of tensors with limited values are checked. If anything does not fit, nothing is loaded, and the error lists the first names, types and shapes. If the state has
     * only weights ({@link State#weightsAlone}), the file may have them in FLOAT32, BFLOAT16 or FLOAT16, whichever of these types the state
     * has: a wider type has the same numbers, a narrower one rounds to nearest even. Weights that are kept only in eight bits are loaded
     * last, one after another: the file has them in FLOAT32, BFLOAT16 or FLOAT16, and they are cast with their scales, which the state may
     * have, too. A state with weights discards the gradients of the current step, and their sums over ranks.
     *
     * @throws SafetensorsException when the file cannot be read, is damaged, has other names, types and shapes than the state, or has
     *     a number that cannot be, such as a negative number of steps, or an FP8 scale that is 0
     */
    public static void load(Path file, State state, Stream stream) {
        Checks.given("state", state, "stream", stream);
        try (SafetensorsFile opened = SafetensorsFile.open(file, state.coded())) {
            load(opened, state, stream);
        }
        state.loaded();
    }

    /**
     * Loads as {@link #load} does, but from a file whose run may have had another recipe, with weights of the same type. If its scales and
     * histories are not those of {@code state}, they are ignored and the state keeps its own; everything else must match exactly.
     *
     * {@snippet file="dev/chagres/recipe/OtherRecipeTest.java" region="otherRecipe"}
     *
     * @param state includes that of the parameters, or of their weights, which knows the names of scales
     * @return what was not loaded
     * @throws SafetensorsException as {@link #load} does
     */
    public static RecipeDifferences loadUnderOtherRecipe(Path file, State state, Stream stream) {
        Checks.given("state", state, "stream", stream);
        RecipeDifferences differences;
        try (SafetensorsFile opened = SafetensorsFile.open(file, state.coded())) {
            differences = RecipeDifferences.between(opened, state);
            load(opened, differences.isEmpty() ? state : state.withoutRecipe(differences.ignored()), stream);
        }
        state.loaded();
        return differences;
    }

    private static void load(SafetensorsFile opened, State state, Stream stream) {
        try (HostBuffer host = HostBuffer.pinned(stream.device(), PIECE_BYTES);
                Scope views = stream.device().openScope(stream)) {
            Map<String, Long> numbers = ensureFits(opened, List.of(), Map.of(), state, host);
            state.tensors().forEach((name, tensor) -> {
                Checks.on(stream, name, tensor);
                read(piecesOf(opened.entry(name), tensor), tensor, host, stream, views);
            });
            state.quantized().forEach((name, weight) -> {
                SafetensorsEntry entry = opened.entry(name);
                try (Scope room = stream.device().openScope(stream)) {
                    Tensor values = room.tensor(entry.dtype(), entry.shape());
                    read(piecesOf(entry, values), values, host, stream, views);
                    weight.cast(values);
                }
            });
            numbers.forEach((name, value) ->
                    Checks.given(name, state.numbers().get(name)).writer().accept(value));
        }
    }

    /**
     * Fills all tensors of {@code state} from elsewhere than a file of it, and waits until they are on the device. Weights that are kept only
     * in eight bits are cast from the type that {@link #specs} names, with their scales. A state with weights discards the gradients of the
     * current step, and their sums over ranks.
     *
     * @param sources returns what has the bytes of one of {@link #specs}; null leaves that tensor as it is
     * @throws IllegalArgumentException when the state has numbers of the host, or a source has another spec than it was asked for
     */
    public static void loadFrom(TensorSource.Lookup sources, State state, Stream stream) {
        Checks.given("sources", sources, "stream", stream);
        if (!Checks.given("state", state).numbers().isEmpty()) {
            throw new IllegalArgumentException("state: expected tensors alone, got numbers of the host: "
                    + state.numbers().keySet());
        }
        List<TensorSource> asked = new ArrayList<>();
        for (TensorSpec spec : specs(state)) {
            TensorSource source = asked(sources, spec);
            if (source != null) {
                asked.add(source);
            }
        }
        try (HostBuffer host = HostBuffer.pinned(stream.device(), PIECE_BYTES);
                Scope views = stream.device().openScope(stream)) {
            for (TensorSource source : asked) {
                String name = source.spec().name();
                Tensor tensor = state.tensors().get(name);
                if (tensor != null) {
                    Checks.on(stream, name, tensor);
                    read(source::copyTo, tensor, host, stream, views);
                    continue;
                }
                try (Scope room = stream.device().openScope(stream)) {
                    Tensor values =
                            room.tensor(source.spec().dtype(), source.spec().shape());
                    read(source::copyTo, values, host, stream, views);
                    Checks.given(name, state.quantized().get(name)).cast(values);
                }
            }
        }
        state.loaded();
    }

    /**
     * For sharding: returns the source of {@code spec}, or null where it stays as it is.
     *
     * @throws IllegalArgumentException when it has another spec
     */
    public static @Nullable TensorSource asked(TensorSource.Lookup sources, TensorSpec spec) {
        TensorSource source = Checks.given("sources", sources).find(Checks.given("spec", spec));
        if (source != null && !source.spec().equals(spec)) {
            throw new IllegalArgumentException("sources: expected that of " + spec + ", got that of " + source.spec());
        }
        return source;
    }

    /**
     * For sharding: checks a file as {@link #load} does before it loads anything: it must have exactly what {@code shared} and {@code
     * state} name, or also tensors that the state leaves out, with numbers and elements that {@code state} may have.
     *
     * @param shared tensors that are sharded among ranks
     * @param limits the values that elements of these may have, by name; any where a name is absent
     * @param host memory to read elements into
     * @return the file's numbers by their names
     * @throws SafetensorsException as {@link #load} does
     * @throws IllegalArgumentException when the memory has not 8 bytes, or a name comes twice
     */
    public static Map<String, Long> ensureFits(
            SafetensorsFile file,
            List<TensorSpec> shared,
            Map<String, State.Values> limits,
            State state,
            HostBuffer host) {
        MemorySegment memory = Checks.given("host", host).segment();
        if (memory.byteSize() < Long.BYTES) {
            throw new IllegalArgumentException(
                    "host: expected at least " + Long.BYTES + " bytes, got " + memory.byteSize());
        }
        List<TensorSpec> expected = ensureHolds(file, shared, state);
        file.verify(expected.stream().map(TensorSpec::name).collect(Collectors.toSet()));
        Map<String, Long> numbers = numbers(file, state, memory.asSlice(0, Long.BYTES));
        Checks.given("limits", limits).forEach((name, may) -> checkElements(file, name, may, memory));
        state.tensors().keySet().forEach(name -> checkElements(file, name, state.values(name), memory));
        return numbers;
    }

    private static List<TensorSpec> ensureHolds(SafetensorsFile file, List<TensorSpec> shared, State state) {
        Checks.given("file", file);
        List<TensorSpec> expected = new ArrayList<>(Checks.<TensorSpec>givenAll("shared", shared));
        expected.addAll(specs(state));
        expected.replaceAll(spec -> isConverted(spec, state) ? asIn(file, spec) : spec);
        file.ensureHolds(expected, entry -> isLeftOut(entry, state), state.weightsAlone());
        return expected;
    }

    /**
     * For checkpoints: checks names, types and shapes as {@link #ensureFits} does, and the numbers, but reads no tensor.
     *
     * @param shared tensors that are sharded among ranks
     * @return the file's numbers by their names
     * @throws SafetensorsException as {@link #load} does
     */
    public static Map<String, Long> numbers(SafetensorsFile file, List<TensorSpec> shared, State state) {
        ensureHolds(file, shared, state);
        return numbers(file, state, MemorySegment.ofArray(new long[1]));
    }

    private static void checkElements(SafetensorsFile file, String name, Values may, MemorySegment host) {
        SafetensorsEntry entry = file.entry(name);
        long most = host.byteSize() / Long.BYTES * Long.BYTES;
        for (long offset = 0; may != Values.ANY && offset < entry.byteSize(); offset += most) {
            MemorySegment piece = host.asSlice(0, Math.min(most, entry.byteSize() - offset));
            entry.copyTo(offset, piece);
            checkElements(entry, may, offset, piece);
        }
    }

    /** Returns names, types and shapes of what {@link #save} writes of {@code state}. */
    public static List<TensorSpec> specs(State state) {
        List<TensorSpec> specs = new ArrayList<>();
        Checks.given("state", state)
                .tensors()
                .forEach((name, tensor) -> specs.add(new TensorSpec(name, tensor.dtype(), tensor.shape())));
        state.quantized().forEach((name, weight) -> specs.add(DequantizedWeight.spec(name, weight)));
        state.numbers().keySet().forEach(name -> specs.add(number(name)));
        return specs;
    }

    private static boolean isLeftOut(SafetensorsEntry entry, State state) {
        boolean isNumber = entry.fits(number(entry.name()));
        return isNumber ? state.leavesOutNumbers() : state.leavesOut(entry.name());
    }

    /** Returns whether a file may have a tensor in another floating-point type; tensors with limited values may not. */
    private static boolean isConverted(TensorSpec spec, State state) {
        String name = spec.name();
        boolean isLimited = state.tensors().containsKey(name) && state.values(name) != Values.ANY;
        return state.quantized().containsKey(name)
                || state.weightsAlone().contains(name) && spec.dtype().isFloat() && !isLimited;
    }

    /** Returns the spec of a weight in the file's type, if that can be converted. */
    private static TensorSpec asIn(SafetensorsFile file, TensorSpec spec) {
        return Optional.ofNullable(file.entries().get(spec.name()))
                .flatMap(entry -> entry.type()
                        .dtype()
                        .filter(DType::isFloat)
                        .map(dtype -> new TensorSpec(spec.name(), dtype, spec.shape()))
                        .filter(entry::fits))
                .orElse(spec);
    }

    /** Returns the spec of a number that the host keeps: an INT64 scalar. */
    public static TensorSpec number(String name) {
        return new TensorSpec(name, DType.INT64, SCALAR);
    }

    private static Map<String, Long> numbers(SafetensorsFile file, State state, MemorySegment piece) {
        Map<String, Long> values = new LinkedHashMap<>();
        state.numbers().forEach((name, number) -> {
            file.entry(name).copyTo(piece);
            long value = piece.get(ValueLayout.JAVA_LONG, 0);
            if (!number.takes(value)) {
                throw SafetensorsException.of(
                        file.path(), name, "expected " + number.expected() + ", got " + value, null);
            }
            values.put(name, value);
        });
        return values;
    }

    /**
     * For checkpoints: throws for an element that is outside the limits.
     *
     * @param offset of the first byte in the tensor
     * @param piece some elements of it
     * @throws SafetensorsException when there is one
     */
    public static void checkElements(SafetensorsEntry entry, Values may, long offset, MemorySegment piece) {
        Checks.given("entry", entry, "piece", piece);
        if (Checks.given("may", may) == Values.ANY) {
            return;
        }
        DType dtype = entry.dtype();
        long count = piece.byteSize() / dtype.byteSize();
        float[] values = new float[(int) Math.min(count, CHECKED_AT_A_TIME)];
        for (long done = 0; done < count; done += CHECKED_AT_A_TIME) {
            int numbers = (int) Math.min(count - done, CHECKED_AT_A_TIME);
            dtype.toFloats(piece, done, values, 0, numbers);
            for (int i = 0; i < numbers; i++) {
                if (!may.takes(values[i])) {
                    throw entry.refused("expected " + may.inWords() + ", got " + values[i] + " at element "
                            + (offset / dtype.byteSize() + done + i));
                }
            }
        }
    }

    /** Fills a piece of a tensor from an offset on. */
    private interface Pieces {
        void copyTo(long offset, MemorySegment piece);
    }

    /** Returns those of an entry, in the tensor's type. */
    private static Pieces piecesOf(SafetensorsEntry entry, Tensor tensor) {
        return (offset, piece) -> entry.copyTo(tensor.dtype(), offset, piece);
    }

    private static void read(Pieces pieces, Tensor tensor, HostBuffer host, Stream stream, Scope views) {
        long bytes = tensor.byteSize();
        for (long offset = 0; offset < bytes; offset += PIECE_BYTES) {
            long count = Math.min(PIECE_BYTES, bytes - offset);
            MemorySegment piece = host.segment().asSlice(0, count);
            pieces.copyTo(offset, piece);
            try (Scope one = views.open()) {
                int size = tensor.dtype().byteSize();
                one.view(tensor, offset / size, count / size).copyFrom(stream, piece);
            }
            stream.synchronize();
        }
    }

    /** A tensor on the device, fetched piece by piece. */
    private record DeviceTensor(String name, Tensor tensor, Stream stream, Scope views) implements TensorSource {
        @Override
        public TensorSpec spec() {
            return new TensorSpec(name, tensor.dtype(), tensor.shape());
        }

        @Override
        public void copyTo(long offset, MemorySegment target) {
            int size = tensor.dtype().byteSize();
            try (Scope one = views.open()) {
                one.view(tensor, offset / size, target.byteSize() / size).copyTo(stream, target);
            }
            stream.synchronize();
        }
    }

    /** A number that the host keeps. */
    private record HostNumber(String name, State.Number number) implements TensorSource {
        @Override
        public TensorSpec spec() {
            return Safetensors.number(name);
        }

        @Override
        public void copyTo(long offset, MemorySegment target) {
            target.set(ValueLayout.JAVA_LONG_UNALIGNED, 0, number.reader().getAsLong());
        }
    }
}
