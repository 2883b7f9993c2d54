package dev.chagres.checkpoint;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.checkpoint.FolderLayout.Place;
import dev.chagres.checkpoint.StateTensor.Stretch;
import dev.chagres.internal.BlockSums;
import dev.chagres.internal.FileFailure;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.BackgroundReads;
import dev.chagres.io.ModelFiles;
import dev.chagres.io.SafetensorsException;
import dev.chagres.parameter.State;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.function.Predicate;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;

/**
 * Writes a state to a folder: each rank the bytes that it has, or its part of those that several have.
 *
 * <p>Threading: the device's thread.
 */
final class FolderWriter {
    private final RankAccord accord;
    private final Stream stream;
    private final List<StateTensor> tensors;
    private final State own;
    private final FolderLayout layout;

    /**
     * Prepares a save.
     *
     * @param own the state whose numbers are saved
     * @param weights names of weights
     * @param model null where they keep their names
     */
    FolderWriter(
            RankAccord accord,
            Stream stream,
            List<StateTensor> tensors,
            State own,
            Set<String> weights,
            @Nullable ModelFiles model) {
        this.accord = accord;
        this.stream = stream;
        this.tensors = tensors;
        this.own = own;
        layout = new FolderLayout(tensors.stream().map(StateTensor::spec).toList(), weights, model);
    }

    /**
     * Begins a checkpoint.
     *
     * @param later names of tensors that only the next optimizer step changes; others are copied before this returns
     * @param most bytes of pinned memory
     */
    PendingCheckpoint begin(
            CheckpointFolder run, long step, Map<String, String> metadata, Predicate<String> later, long most) {
        int[] sums = new int[layout.sums()];
        boolean releases = !run.isClaimed();
        Path folder = null;
        boolean begun = false;
        try {
            folder = Path.of(accord.ofRoot(() -> begin(run, step, sums)));
            Path target = folder;
            List<Supplier<BackgroundReads.Reading>> prepared = new ArrayList<>();
            accord.together(() -> prepared.add(prepare(target, later, most, sums)));
            Map<String, Long> numbers = numbers();
            // Behind what ranks tell each other, which frees memory of the device and so would wait for the copies.
            BackgroundReads.Reading reading = prepared.getFirst().get();
            begun = true;
            return new PendingCheckpoint(
                    accord,
                    Inside.state(stream),
                    run,
                    folder,
                    releases,
                    reading,
                    all -> run.publish(target, layout.manifest(step, metadata, numbers, all)),
                    sums);
        } finally {
            if (!begun && accord.rank() == StateTensor.ROOT) {
                if (folder != null) {
                    discard(run, folder);
                }
                if (releases) {
                    run.close();
                }
            }
        }
    }

    /** The failure that made it useless is told, not that it stays until the next save. */
    static void discard(CheckpointFolder run, Path folder) {
        try {
            run.discard(folder);
        } catch (SafetensorsException second) {
            // See above.
        }
    }

    private String begin(CheckpointFolder run, long step, int... sums) {
        run.claim();
        Path folder = run.begin(step);
        try {
            layout.create(folder, sums);
        } catch (IOException failure) {
            discard(run, folder);
            throw unwritable(folder, failure);
        } catch (UncheckedIOException failure) {
            discard(run, folder);
            throw unwritable(folder, Objects.requireNonNull(failure.getCause()));
        }
        return folder.toString();
    }

    static SafetensorsException unwritable(Path file, IOException failure) {
        return SafetensorsException.ofFile(file, "could not be written: " + FileFailure.text(failure), failure);
    }

    private Map<String, Long> numbers() {
        Map<String, Long> numbers = new LinkedHashMap<>();
        own.numbers()
                .forEach((name, number) -> numbers.put(name, number.reader().getAsLong()));
        return numbers;
    }

    /** Returns what begins to read and to write what this rank writes. */
    private Supplier<BackgroundReads.Reading> prepare(Path folder, Predicate<String> later, long most, int... sums) {
        var files = new OpenFiles(folder, layout);
        List<Piece> copied = new ArrayList<>();
        List<Piece> ready = new ArrayList<>();
        divide(later, copied, ready, files, sums);
        List<MemorySegment> fetched = ready.stream().map(this::fetch).toList();
        stream.synchronize();
        BackgroundReads reads = BackgroundReads.of(Inside.state(stream));
        reads.reserve(most, copied);
        return () -> reads.begin(most, copied, copies -> {
            try (files) {
                copies.run();
                for (int i = 0; i < fetched.size(); i++) {
                    ready.get(i).take(fetched.get(i));
                }
                if (accord.rank() == StateTensor.ROOT) {
                    layout.force(folder); // all that it has made, also where others write
                } else {
                    files.force();
                }
            }
        });
    }

    /** Does now what of {@link #begin begin} can be done before: takes its memory, and loads the classes that lay out files. */
    void reserve(Predicate<String> later, long most) {
        List<Piece> copied = new ArrayList<>();
        divide(later, copied, new ArrayList<>(), new OpenFiles(Path.of(""), layout));
        BackgroundReads.of(Inside.state(stream)).reserve(most, copied);
    }

    /** Adds what this rank writes: to {@code copied} of the tensors that {@code later} names, to {@code ready} of the others. */
    private void divide(Predicate<String> later, List<Piece> copied, List<Piece> ready, OpenFiles files, int... sums) {
        for (int i = 0; i < tensors.size(); i++) {
            List<Piece> pieces = later.test(tensors.get(i).spec().name()) ? copied : ready;
            for (Stretch stretch : tensors.get(i).written(accord.rank())) {
                for (Place place : layout.places(i)) {
                    addPieces(pieces, stretch, place, files, sums);
                }
            }
        }
    }

    private MemorySegment fetch(Piece piece) {
        MemorySegment bytes = Arena.ofAuto().allocate(piece.byteSize());
        try (Scope views = stream.device().openScope(stream)) {
            views.reinterpret(piece.source.vector(), DType.BYTE, piece.source.begin(), piece.byteSize)
                    .copyTo(stream, bytes);
        }
        return bytes;
    }

    /** Adds what of {@code stretch} is in a place, a block at most. */
    private static void addPieces(List<Piece> pieces, Stretch stretch, Place place, OpenFiles files, int... sums) {
        long end = Math.min(stretch.first() + stretch.bytes(), place.end());
        long count;
        for (long next = Math.max(stretch.first(), place.first()); next < end; next += count) {
            long inPlace = next - place.first();
            int block = (int) (inPlace / BlockSums.BLOCK_BYTES);
            long blockEnd = Math.min(place.bytes(), (block + 1) * BlockSums.BLOCK_BYTES);
            count = Math.min(end - next, blockEnd - inPlace);
            Target target = new Target(
                    place.file(), place.position() + inPlace, place.sum() + block, blockEnd - inPlace - count);
            Stretch part = stretch.part(next, count);
            pieces.add(new Piece(part, part.vector().address() + part.begin(), part.held(), files, target, sums));
        }
    }

    /** The files that this rank has something of. */
    private static final class OpenFiles implements AutoCloseable {
        private final Path folder;
        private final FolderLayout layout;
        private final @Nullable FileChannel[] open;

        OpenFiles(Path folder, FolderLayout layout) {
            this.folder = folder;
            this.layout = layout;
            open = new FileChannel[layout.fileCount()];
        }

        FileChannel get(int file) throws IOException {
            FileChannel present = open[file];
            if (present == null) {
                present = FileChannel.open(layout.file(folder, file), StandardOpenOption.WRITE);
                open[file] = present;
            }
            return present;
        }

        void force() throws IOException {
            for (FileChannel channel : open) {
                if (channel != null) {
                    channel.force(true);
                }
            }
        }

        @Override
        public void close() throws IOException {
            for (FileChannel channel : open) {
                if (channel != null) {
                    channel.close();
                }
            }
        }
    }

    /**
     * Where bytes go.
     *
     * @param sum the number of their block's checksum
     * @param following bytes of the block after them
     */
    private record Target(int file, long position, int sum, long following) {}

    /** Bytes of a vector on their way to a file. */
    private record Piece(Stretch source, long address, long byteSize, OpenFiles files, Target target, int... sums)
            implements BackgroundReads.Piece {
        @Override
        public void take(MemorySegment held) throws IOException {
            MemorySegment bytes = source.repeated(held);
            sums[target.sum] ^= BlockSums.contribution(bytes, target.following);
            FolderLayout.write(files.get(target.file), target.position, bytes.asByteBuffer());
        }
    }
}
