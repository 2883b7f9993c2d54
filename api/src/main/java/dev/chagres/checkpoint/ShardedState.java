package dev.chagres.checkpoint;

import dev.chagres.DType;
import dev.chagres.HostBuffer;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.bindings.CaptureException;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.ranks.AllGatherLongs;
import dev.chagres.internal.ranks.SameParameters;
import dev.chagres.io.ModelFiles;
import dev.chagres.io.RecipeDifferences;
import dev.chagres.io.Safetensors;
import dev.chagres.io.SafetensorsEntry;
import dev.chagres.io.SafetensorsFile;
import dev.chagres.io.SafetensorsWriter;
import dev.chagres.io.TensorSource;
import dev.chagres.io.TensorSpec;
import dev.chagres.nccl.Communicator;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import dev.chagres.sharding.Strategy;
import java.lang.foreign.MemorySegment;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Predicate;
import java.util.stream.Collectors;
import java.util.zip.CRC32C;
import org.jspecify.annotations.Nullable;

/**
 * The state that is needed to go on exactly with a model that ranks train together, with the names, types and shapes that it has on one
 * rank.
 *
 * <p>The file of {@link #save} equals, byte for byte, the file that {@link Safetensors#save} writes for {@code State.of(parameters.state(),
 * optimizer.state(), …)} on one rank with the same numbers. So it can be loaded by any number of ranks, under any {@link Strategy}, or by
 * {@link Safetensors#load} on one rank.
 *
 * <p>The state of {@link Strategy#weightState} has the weights alone, as {@code parameters.weightState()} on one rank.
 *
 * <p>Rank 0 reads and writes the file. Tensors are sent one after another, in pieces of at most 16 MB, so that besides a piece no device
 * and no host needs memory for more of the model than it keeps.
 *
 * {@snippet file="dev/chagres/sharding/ShardedStateTest.java" region="saved"}
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: PyTorch's {@code get_model_state_dict} and {@code set_model_state_dict} with full tensors from rank 0.
 */
final class ShardedState {
    private final Parameters parameters;
    /** Null of a rank that is alone. */
    private final @Nullable Strategy strategy;
    /** All ranks that hold a part; null of one that is alone. */
    private final @Nullable Communicator all;
    /** First the sharded tensors, then those of {@link #own}. */
    private final List<StateTensor> tensors;

    private final List<TensorSpec> shared;
    /** The values that elements of these may have, by name. */
    private final Map<String, State.Values> limits;

    /** The state that every rank has whole, and which of all tensors are codes and their scales. */
    private final State own;

    ShardedState(
            Parameters parameters,
            @Nullable Strategy strategy,
            @Nullable Communicator all,
            List<? extends StateTensor> sharedTensors,
            State own) {
        this.parameters = parameters;
        this.strategy = strategy;
        this.all = all;
        this.own = own;
        shared = sharedTensors.stream().map(StateTensor::spec).toList();
        limits = sharedTensors.stream()
                .collect(Collectors.toMap(tensor -> tensor.spec().name(), StateTensor::may, (first, _) -> first));
        int ranks = all == null ? 1 : all.ranks();
        tensors = new ArrayList<>(sharedTensors);
        own.ensureNoneQuantized();
        if (ranks > 1) {
            own.ensureOfAllRanks();
        }
        own.tensors().forEach((name, tensor) -> tensors.add(StateShard.whole(name, tensor, ranks)));
    }

    /** Returns names, types and shapes of the entries of a file of this state; a number of the host is an INT64 scalar. */
    public List<TensorSpec> specs() {
        List<TensorSpec> specs = new ArrayList<>(shared);
        specs.addAll(Safetensors.specs(own));
        return List.copyOf(specs);
    }

    /**
     * Writes a file on rank 0, after the work enqueued on the parameters' stream. Each rank calls it and waits. The file is written under
     * another name and then replaces the old one; after a failure the old one is unchanged.
     *
     * @param file of rank 0; what other ranks name is not used
     * @param metadata text that goes into the header, that of rank 0
     * @throws dev.chagres.io.SafetensorsException on every rank, when the file cannot be written
     * @throws IllegalStateException when the strategy is closed, or ranks have other states
     * @throws CaptureException while the stream captures
     * @throws dev.chagres.nccl.RankFailedException when another rank failed or did not come
     */
    public void save(Path file, Map<String, String> metadata) {
        Checks.given("file", file, "metadata", metadata);
        transfer(begin(Call.SAVE), transfer -> {
            List<TensorSource> sources = new ArrayList<>();
            for (int i = 0; i < tensors.size(); i++) {
                sources.add(new Gathered(i, tensors.get(i).spec(), transfer));
            }
            own.numbers().forEach((name, number) -> {
                long[] value = {number.reader().getAsLong()};
                sources.add(TensorSource.of(Safetensors.number(name), MemorySegment.ofArray(value)));
            });
            SafetensorsWriter.writeWithChecksums(file, sources, metadata);
        });
    }

    /**
     * Reads a file on rank 0 and sends each rank its parts. Each rank calls it and waits. The file must have exactly the entries of {@link
     * #specs}; for weights alone it may have more, which are ignored. Names, types and shapes are compared first, then checksums, numbers
     * and the values of tensors with limits, all on rank 0: if anything does not fit, nothing is loaded, and the error lists the first names, types
     * and shapes. Weights alone are converted as {@link Safetensors#load} does, on rank 0.
     *
     * <p>Gradients of the current step are discarded.
     *
     * @param file of rank 0; what other ranks name is not used
     * @throws dev.chagres.io.SafetensorsException on every rank with the same text, as {@link Safetensors#load} does
     * @throws IllegalStateException when the strategy is closed, or ranks have other states
     * @throws CaptureException while the stream captures
     * @throws dev.chagres.nccl.RankFailedException when another rank failed or did not come
     */
    public void load(Path file) {
        Checks.given("file", file);
        load(file, Call.LOAD);
    }

    /**
     * Like {@link #load}, for a file of a run that may have had another recipe: see {@link Safetensors#loadUnderOtherRecipe}. Each rank
     * calls it and waits.
     *
     * @param file of rank 0; what other ranks name is not used
     * @return what was not loaded, the same on every rank
     * @throws dev.chagres.io.SafetensorsException on every rank with the same text, as {@link Safetensors#load} does
     * @throws IllegalStateException when the strategy is closed, or ranks have other states
     * @throws CaptureException while the stream captures
     * @throws dev.chagres.nccl.RankFailedException when another rank failed or did not come
     */
    public RecipeDifferences loadUnderOtherRecipe(Path file) {
        Checks.given("file", file);
        return load(file, Call.LOAD_UNDER_OTHER_RECIPE);
    }

    private RecipeDifferences load(Path file, Call call) {
        Communicator ranks = begin(call);
        RankAccord accord = new RankAccord(ranks, stream());
        String folder = accord.ofRoot(() -> Files.isDirectory(file)
                ? SafetensorsFile.checkpoint(file).toAbsolutePath().toString()
                : "");
        RecipeDifferences differences = folder.isEmpty()
                ? transfer(ranks, transfer -> {
                    try (SafetensorsFile opened = SafetensorsFile.open(file, own.coded())) {
                        RecipeDifferences found = between(opened, call);
                        read(opened, found, transfer);
                        found.ignored().forEach(transfer::ignored);
                        found.missing().forEach(transfer::missing);
                    }
                })
                : readFolder(Path.of(folder), call, accord);
        own.loaded(); // Has the state of the parameters, which tells the strategy.
        return differences;
    }

    /**
     * Asks {@code sources} on rank 0 for each tensor, and sends each rank its parts. Each rank calls it and waits.
     *
     * @param sources called on rank 0 alone
     * @throws IllegalArgumentException on rank 0, when a source has another spec than it was asked for
     * @throws IllegalStateException when the strategy is closed, ranks have other states, or rank 0 failed
     * @throws CaptureException while the stream captures
     * @throws dev.chagres.nccl.RankFailedException when another rank failed or did not come
     */
    public void loadFrom(TensorSource.Lookup sources) {
        transfer(begin(Call.LOAD_FROM), transfer -> {
            List<@Nullable TensorSource> asked = new ArrayList<>();
            tensors.forEach(tensor -> asked.add(Safetensors.asked(sources, tensor.spec())));
            try (HostBuffer host = HostBuffer.pinned(stream().device(), StateTransfer.PIECE_BYTES)) {
                for (int i = 0; i < tensors.size(); i++) {
                    TensorSource source = asked.get(i);
                    if (source != null) {
                        read(i, source::copyTo, host, transfer);
                    }
                }
            }
        });
        own.loaded(); // Has the state of the parameters, which tells the strategy.
    }

    private RecipeDifferences between(SafetensorsFile opened, Call call) {
        return call == Call.LOAD ? RecipeDifferences.NONE : RecipeDifferences.between(opened, own);
    }

    /** Begins a checkpoint: see {@link RunState#saveInBackground}. */
    PendingCheckpoint begin(
            CheckpointFolder folder,
            long step,
            Map<String, String> metadata,
            Set<String> weights,
            @Nullable ModelFiles model,
            Predicate<String> later,
            long most) {
        return writer(begin(Call.SAVE_FOLDER), weights, model).begin(folder, step, metadata, later, most);
    }

    /** Takes the memory of {@link #begin begin} calls now: see {@link RunState#reserve}. */
    void reserve(Set<String> weights, @Nullable ModelFiles model, Predicate<String> later, long most) {
        if (strategy != null) {
            strategy.ensureOpen();
        }
        writer(all, weights, model).reserve(later, most);
    }

    private FolderWriter writer(@Nullable Communicator ranks, Set<String> weights, @Nullable ModelFiles model) {
        return new FolderWriter(new RankAccord(ranks, stream()), stream(), tensors, own, weights, model);
    }

    /** Reads what this rank keeps, once every rank has found its bytes undamaged. */
    private RecipeDifferences readFolder(Path folder, Call call, RankAccord accord) {
        List<RecipeDifferences> found = new ArrayList<>();
        Map<String, Long> numbers = new LinkedHashMap<>();
        try (HostBuffer host = HostBuffer.pinned(stream().device(), StateTransfer.PIECE_BYTES);
                Closing opened = new Closing()) {
            accord.together(() -> {
                SafetensorsFile file = opened.file(SafetensorsFile.open(folder, own.coded()));
                RecipeDifferences differences = between(file, call);
                State present = differences.isEmpty() ? own : own.withoutRecipe(differences.ignored());
                numbers.putAll(Safetensors.numbers(file, shared, present));
                found.add(differences);
                if (accord.rank() == StateTensor.ROOT) {
                    file.verifyRest();
                }
                each(file, accord.rank(), differences, host, Piece::check);
            });
            accord.together(() -> each(opened.file(), accord.rank(), found.getFirst(), host, Piece::load));
        }
        own.numbers().forEach((name, number) -> number.writer().accept(numbers.getOrDefault(name, 0L)));
        return found.getFirst();
    }

    /** Closes a file that was opened in between. */
    private static final class Closing implements AutoCloseable {
        private @Nullable SafetensorsFile file;

        SafetensorsFile file(SafetensorsFile opened) {
            file = opened;
            return opened;
        }

        SafetensorsFile file() {
            return Checks.given("file", file);
        }

        @Override
        public void close() {
            if (file != null) {
                file.close();
            }
        }
    }

    private interface PieceWork {
        void run(Piece piece);
    }

    /** Some bytes of a tensor that this rank holds. */
    private record Piece(
            SafetensorsEntry entry,
            TensorSpec spec,
            State.Values may,
            StateTensor.Stretch held,
            MemorySegment memory,
            Stream stream) {
        /** Of another floating-point type in the file the elements are the same, of another size. */
        void check() {
            int size = spec.dtype().byteSize();
            int size2 = entry.dtype().byteSize();
            entry.verify(held.first() / size * size2, memory.byteSize() / size * size2);
            if (may != State.Values.ANY) {
                entry.copyTo(held.first(), memory);
                Safetensors.checkElements(entry, may, held.first(), memory);
            }
        }

        void load() {
            entry.copyTo(spec.dtype(), held.first(), memory);
            try (Scope views = stream.device().openScope(stream)) {
                views.reinterpret(held.vector(), DType.BYTE, held.begin(), held.held())
                        .copyFrom(stream, held.distinct(memory));
            }
            stream.synchronize();
        }
    }

    private void each(SafetensorsFile file, int rank, RecipeDifferences differences, HostBuffer host, PieceWork work) {
        Set<String> missing = Set.copyOf(differences.missing());
        for (StateTensor tensor : tensors) {
            TensorSpec spec = tensor.spec();
            if (missing.contains(spec.name())) {
                continue;
            }
            SafetensorsEntry entry = file.entry(spec.name());
            State.Values may = own.tensors().containsKey(spec.name())
                    ? own.values(spec.name())
                    : limits.getOrDefault(spec.name(), State.Values.ANY);
            for (StateTensor.Stretch held : tensor.held(rank)) {
                for (long done = 0; done < held.bytes(); done += StateTransfer.PIECE_BYTES) {
                    long bytes = Math.min(StateTransfer.PIECE_BYTES, held.bytes() - done);
                    work.run(new Piece(
                            entry,
                            spec,
                            may,
                            held.part(held.first() + done, bytes),
                            host.segment().asSlice(0, bytes),
                            stream()));
                }
            }
        }
    }

    private Stream stream() {
        return parameters.scope().stream();
    }

    /** Sends each rank its parts of the file's entries, except {@code differences}. */
    private void read(SafetensorsFile file, RecipeDifferences differences, StateTransfer transfer) {
        Set<String> missing = Set.copyOf(differences.missing());
        State present = differences.isEmpty() ? own : own.withoutRecipe(differences.ignored());
        try (HostBuffer host = HostBuffer.pinned(stream().device(), StateTransfer.PIECE_BYTES)) {
            Map<String, Long> numbers = Safetensors.ensureFits(file, shared, limits, present, host);
            for (int i = 0; i < tensors.size(); i++) {
                if (!missing.contains(tensors.get(i).spec().name())) {
                    TensorSpec spec = tensors.get(i).spec();
                    SafetensorsEntry entry = file.entry(spec.name());
                    read(i, (offset, piece) -> entry.copyTo(spec.dtype(), offset, piece), host, transfer);
                }
            }
            int index = 0;
            for (long value : numbers.values()) {
                transfer.number(index++, value);
            }
        }
    }

    /** Fills a piece of a tensor from an offset on. */
    private interface Pieces {
        void copyTo(long offset, MemorySegment piece);
    }

    private void read(int index, Pieces pieces, HostBuffer host, StateTransfer transfer) {
        TensorSpec spec = tensors.get(index).spec();
        for (long offset = 0; offset < spec.byteSize(); offset += StateTransfer.PIECE_BYTES) {
            long bytes = Math.min(StateTransfer.PIECE_BYTES, spec.byteSize() - offset);
            MemorySegment piece = host.segment().asSlice(0, bytes);
            pieces.copyTo(offset, piece);
            transfer.scatter(index, offset, piece);
        }
    }

    /** The work of rank 0, in which the other ranks take part. */
    private interface Leading {
        void run(StateTransfer transfer);
    }

    /** The calls that ranks make together. */
    private enum Call {
        SAVE,
        SAVE_FOLDER,
        LOAD,
        LOAD_UNDER_OTHER_RECIPE,
        LOAD_FROM
    }

    /** Returns the differences that rank 0 has sent. */
    private RecipeDifferences transfer(@Nullable Communicator ranks, Leading leading) {
        List<State.Number> numbers = List.copyOf(own.numbers().values());
        try (StateTransfer transfer = new StateTransfer(Checks.given("ranks", ranks), stream(), tensors, numbers)) {
            if (transfer.isRoot()) {
                transfer.lead(() -> leading.run(transfer));
            } else {
                transfer.follow();
            }
            return transfer.differences();
        }
    }

    /** Checks that all ranks make the same call with the same tensors, and returns their communicator. */
    private @Nullable Communicator begin(Call call) {
        if (strategy != null) {
            strategy.ensureOpen();
        }
        Stream stream = stream();
        if (Inside.capture(stream) != null) {
            throw new CaptureException("ShardedState: expected a stream that does not capture, got " + stream
                    + "; save and load between steps");
        }
        if (all != null) {
            SameParameters.ensureSame(all, "state: call", call);
            ensureSame(all);
        }
        return all;
    }

    /** Checks that all ranks have the same tensors; otherwise they would hang, or mix up tensors. */
    private void ensureSame(Communicator ranks) {
        CRC32C checksum = new CRC32C();
        specs().forEach(spec -> checksum.update(spec.toString().getBytes(StandardCharsets.UTF_8)));
        int other = AllGatherLongs.firstOther(ranks, stream(), checksum.getValue());
        if (other > 0) {
            throw new IllegalStateException("state: expected the same tensors on all ranks, got others on rank " + other
                    + " than on rank 0; pass the same optimizer and states, in the same order, on each");
        }
    }

    /** A tensor whose bytes are collected on rank 0 when the writer asks for them. */
    private record Gathered(int index, TensorSpec spec, StateTransfer transfer) implements TensorSource {
        @Override
        public void copyTo(long offset, MemorySegment target) {
            transfer.gather(index, offset, target);
        }
    }

    /** Returns the number of tensors and numbers, and the strategy. */
    @Override
    public String toString() {
        return "state of " + strategy + ": " + tensors.size() + " tensors, "
                + own.numbers().size() + " numbers";
    }
}
