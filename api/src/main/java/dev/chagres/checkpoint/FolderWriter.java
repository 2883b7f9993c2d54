package dev.chagres.checkpoint;

import dev.chagres.DType;
import dev.chagres.HostBuffer;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.checkpoint.FolderLayout.Place;
import dev.chagres.checkpoint.StateTensor.Stretch;
import dev.chagres.internal.BlockSums;
import dev.chagres.internal.FileFailure;
import dev.chagres.io.ModelFiles;
import dev.chagres.io.SafetensorsException;
import dev.chagres.parameter.State;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.io.UncheckedIOException;
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
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.jspecify.annotations.Nullable;

/**
 * Writes a state to a folder: each rank the bytes that it has, or its part of those that several have. Ranks exchange checksums alone.
 *
 * <p>Threading: the device's thread.
 */
final class FolderWriter {
    /** Pinned memory for what is on the way from the device to the files. */
    private static final long STAGING_BYTES = 32L << 20;

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

    /** Writes and publishes a checkpoint, or leaves the run's folder as it was. */
    void save(CheckpointFolder run, long step, Map<String, String> metadata) {
        int[] sums = new int[layout.sums()];
        boolean claimed = run.isClaimed();
        Path folder = null;
        boolean published = false;
        try {
            folder = Path.of(accord.ofRoot(() -> begin(run, step, sums)));
            Path target = folder;
            accord.together(() -> write(target, sums));
            int[] all = combined(sums);
            accord.ofRoot(() -> {
                run.publish(target, layout.manifest(step, metadata, numbers(), all));
                return "";
            });
            published = true;
        } finally {
            if (accord.rank() == StateTensor.ROOT) {
                if (folder != null && !published) {
                    discard(run, folder);
                }
                if (!claimed) {
                    run.close();
                }
            }
        }
    }

    /** The failure that made it useless is told, not that it stays until the next save. */
    private static void discard(CheckpointFolder run, Path folder) {
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

    private static SafetensorsException unwritable(Path file, IOException failure) {
        return SafetensorsException.ofFile(file, "could not be written: " + FileFailure.text(failure), failure);
    }

    private Map<String, Long> numbers() {
        Map<String, Long> numbers = new LinkedHashMap<>();
        own.numbers()
                .forEach((name, number) -> numbers.put(name, number.reader().getAsLong()));
        return numbers;
    }

    /** Each rank has contributed to the sums of blocks what it has written there. */
    private int[] combined(int... sums) {
        long[] mine = new long[sums.length];
        for (int i = 0; i < sums.length; i++) {
            mine[i] = sums[i];
        }
        long[] all = accord.gather(mine);
        int[] combined = new int[sums.length];
        for (int i = 0; i < all.length; i++) {
            combined[i % sums.length] ^= (int) all[i];
        }
        return combined;
    }

    private void write(Path folder, int... sums) {
        try (HostBuffer host = HostBuffer.pinned(stream.device(), STAGING_BYTES);
                OpenFiles files = new OpenFiles(folder, layout);
                Staging staging = new Staging(files, host.segment(), sums)) {
            for (int i = 0; i < tensors.size(); i++) {
                for (Stretch stretch : tensors.get(i).written(accord.rank())) {
                    for (Place place : layout.places(i)) {
                        staging.add(stretch, place);
                    }
                }
            }
            staging.flush();
            staging.awaitWritten();
            files.force();
        } catch (IOException failure) {
            throw unwritable(folder, failure);
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

    /** Some bytes on their way: what is at {@code bytes} goes to a place in a file. */
    private record Piece(MemorySegment bytes, int file, long position, int sum, long following) {}

    /** Collects bytes from the device in one half of the memory, while a thread writes those of the other half. */
    private final class Staging implements AutoCloseable {
        private final OpenFiles files;
        private final MemorySegment memory;
        private final long half;
        private final int[] sums;
        private final ExecutorService writer = Executors.newSingleThreadExecutor(
                Thread.ofPlatform().daemon().name("checkpoint").factory());
        private List<Piece> pieces = new ArrayList<>();
        private @Nullable Future<?> written;
        private long begin;
        private long used;

        Staging(OpenFiles files, MemorySegment memory, int... sums) {
            this.files = files;
            this.memory = memory;
            this.sums = sums;
            half = memory.byteSize() / 2;
        }

        /** Adds what of {@code stretch} is in a place. */
        void add(Stretch stretch, Place place) throws IOException {
            long end = Math.min(stretch.first() + stretch.bytes(), place.end());
            long count;
            for (long next = Math.max(stretch.first(), place.first()); next < end; next += count) {
                long inPlace = next - place.first();
                int block = (int) (inPlace / BlockSums.BLOCK_BYTES);
                long blockEnd = Math.min(place.bytes(), (block + 1) * BlockSums.BLOCK_BYTES);
                if (used == half) {
                    flush();
                }
                count = Math.min(Math.min(end - next, blockEnd - inPlace), half - used);
                MemorySegment bytes = memory.asSlice(begin + used, count);
                fetch(stretch.vector(), stretch.place() + next - stretch.first(), bytes);
                used += count;
                pieces.add(new Piece(
                        bytes,
                        place.file(),
                        place.position() + inPlace,
                        place.sum() + block,
                        blockEnd - inPlace - count));
            }
        }

        private void fetch(Tensor vector, long offset, MemorySegment bytes) {
            try (Scope views = stream.device().openScope(stream)) {
                views.reinterpret(vector, DType.BYTE, offset, bytes.byteSize()).copyTo(stream, bytes);
            }
        }

        /** Hands the half over, once the other one is written. */
        void flush() throws IOException {
            stream.synchronize();
            awaitWritten();
            List<Piece> whole = pieces;
            written = writer.submit(() -> {
                for (Piece piece : whole) {
                    sums[piece.sum] ^= BlockSums.contribution(piece.bytes, piece.following);
                    FolderLayout.write(files.get(piece.file), piece.position, piece.bytes.asByteBuffer());
                }
                return true;
            });
            pieces = new ArrayList<>();
            begin = half - begin;
            used = 0;
        }

        void awaitWritten() throws IOException {
            Future<?> last = written;
            if (last == null) {
                return;
            }
            try {
                last.get();
            } catch (ExecutionException e) {
                if (e.getCause() instanceof IOException failure) {
                    throw failure;
                }
                throw new IllegalStateException(e.getCause());
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                throw new InterruptedIOException("the thread was interrupted while it saved");
            }
        }

        /** Waits for what is under way, which reads the memory. */
        @Override
        public void close() {
            writer.close();
        }
    }
}
