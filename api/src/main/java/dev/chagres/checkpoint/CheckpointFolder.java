package dev.chagres.checkpoint;

import dev.chagres.bindings.ForeignText;
import dev.chagres.internal.Checks;
import dev.chagres.internal.FileFailure;
import dev.chagres.internal.FileReplacement;
import dev.chagres.internal.Manifest;
import dev.chagres.io.AtomicFile;
import dev.chagres.io.SafetensorsException;
import dev.chagres.io.SafetensorsFile;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.channels.OverlappingFileLockException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ThreadLocalRandom;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;

/**
 * The folder of a run, with a folder for each checkpoint: {@code step-00012000}, and the file {@code latest} with the name of the last one.
 *
 * <p>A checkpoint is written under another name, forced to the disk and then renamed; its file {@code chagres.json} is written last. So what
 * has that name is whole, whenever the program or the machine stops. What killed programs have left is removed when the next checkpoint is
 * saved. One program at a time saves: the folder is locked by {@code .chagres.part}, and the operating system releases the lock however the
 * program ends.
 *
 * {@snippet file="dev/chagres/checkpoint/CheckpointFolderTest.java" region="folder"}
 *
 * <p>Threading: one thread at a time.
 */
public final class CheckpointFolder implements AutoCloseable {
    private static final String STEP = "step-";
    private static final String UNPUBLISHED = ".part";
    /** Of a checkpoint whose name another one gets; it comes back if that does not happen. */
    private static final String REPLACED = ".replaced";

    private static final String LATEST = "latest";
    private static final String LOCK = ".chagres";
    private static final String PREFIX = ".latest-";

    /** Twice a block of a file that is written while the next one is copied. */
    static final long LEAST_PINNED_BYTES = 32L << 20;

    private static final long PINNED_BYTES = 512L << 20;

    private final Path path;
    private final Retention retention;
    private final long pinnedBytes;
    private @Nullable AtomicFile lock;

    private CheckpointFolder(Path path, Retention retention, long pinnedBytes) {
        this.path = path;
        this.retention = retention;
        this.pinnedBytes = pinnedBytes;
    }

    /** Returns the folder of a run, which need not exist yet, and keeps all checkpoints. Nothing is read or written. */
    public static CheckpointFolder of(Path path) {
        return new CheckpointFolder(Checks.given("path", path), Retention.ALL, PINNED_BYTES);
    }

    /** Returns the same that removes what {@code newRetention} does not keep whenever a checkpoint is published. */
    public CheckpointFolder with(Retention newRetention) {
        return new CheckpointFolder(path, Checks.given("newRetention", newRetention), pinnedBytes);
    }

    /**
     * Returns the same that takes at most so many bytes of page-locked memory on each rank while it {@link RunState#saveInBackground saves in
     * the background}: 512 MiB unless told otherwise. With as many as a rank has of the state, no step waits for the disk.
     *
     * @throws IllegalArgumentException when they are less than 32 MiB
     */
    public CheckpointFolder withPinnedBytes(long bytes) {
        if (bytes < LEAST_PINNED_BYTES) {
            throw new IllegalArgumentException("bytes: expected at least " + LEAST_PINNED_BYTES + ", got " + bytes);
        }
        return new CheckpointFolder(path, retention, bytes);
    }

    /** Returns the folder. */
    public Path path() {
        return path;
    }

    /** Returns how much page-locked memory each rank takes at most while it saves in the background. */
    public long pinnedBytes() {
        return pinnedBytes;
    }

    /** Returns which checkpoints stay. */
    public Retention retention() {
        return retention;
    }

    /**
     * Makes the folder if it is not there, tries whether checkpoints can be written, and keeps other programs from it until {@link #close}.
     * Without this a save does the same for its time.
     *
     * @throws SafetensorsException when they cannot be written, or another program writes there
     */
    public void claim() {
        if (lock != null) {
            return;
        }
        if (Files.exists(path) && !Files.isDirectory(path)) {
            throw SafetensorsException.ofFile(path, "expected a folder or a new name, got a file", null);
        }
        writing(() -> {
            Files.createDirectories(path);
            try {
                lock = AtomicFile.create(path.resolve(LOCK));
            } catch (UncheckedIOException inUse) {
                throw SafetensorsException.ofFile(
                        path, "could not be written: " + ForeignText.plain(String.valueOf(inUse.getMessage())), inUse);
            }
            try {
                removeLeftovers();
                Files.delete(Files.createDirectory(unpublished(Long.MAX_VALUE)));
            } catch (IOException | RuntimeException failure) {
                close();
                throw failure;
            }
        });
    }

    /** Returns the steps that have a checkpoint, the first one first. */
    public List<Long> steps() {
        if (!Files.isDirectory(path)) {
            return List.of();
        }
        try (Stream<Path> files = Files.list(path)) {
            return files.filter(file -> Files.isRegularFile(file.resolve(Manifest.NAME)))
                    .flatMap(file -> step(file).stream())
                    .sorted()
                    .toList();
        } catch (IOException failure) {
            throw SafetensorsException.ofFile(path, "could not be read: " + FileFailure.text(failure), failure);
        }
    }

    /** Returns the folder of the checkpoint that was published last, if there is one. A run that went on from an earlier step may have a higher one. */
    public Optional<Path> last() {
        return steps().isEmpty() ? Optional.empty() : Optional.of(SafetensorsFile.checkpoint(path));
    }

    /** Returns the folder of the checkpoint of a step, whether it is there or not. */
    public Path step(long step) {
        return path.resolve(name(step));
    }

    private static Optional<Long> step(Path file) {
        String name = file.getFileName().toString();
        try {
            long step = name.startsWith(STEP) ? Long.parseLong(name.substring(STEP.length())) : -1;
            return step >= 0 && name.equals(name(step)) ? Optional.of(step) : Optional.empty();
        } catch (NumberFormatException another) {
            return Optional.empty();
        }
    }

    private static String name(long step) {
        return String.format(Locale.ROOT, STEP + "%08d", step);
    }

    private Path unpublished(long step) {
        String nonce = Long.toHexString(ThreadLocalRandom.current().nextLong() | Long.MIN_VALUE);
        return path.resolve("." + name(step) + "." + nonce + UNPUBLISHED);
    }

    private interface Writing {
        void run() throws IOException;
    }

    private void writing(Writing work) {
        try {
            work.run();
        } catch (IOException failure) {
            throw SafetensorsException.ofFile(path, "could not be written: " + FileFailure.text(failure), failure);
        }
    }

    /** Makes the folder of a checkpoint that is not published yet. */
    Path begin(long step) {
        Path folder = unpublished(step);
        writing(() -> {
            removeLeftovers();
            Files.createDirectory(folder);
        });
        return folder;
    }

    /** Writes the manifest of a folder whose files are on the disk, and gives the folder its name. */
    void publish(Path folder, Manifest manifest) {
        long step = manifest.step();
        writing(() -> {
            try (FileChannel channel = FileChannel.open(
                    folder.resolve(Manifest.NAME), StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE)) {
                ByteBuffer bytes = ByteBuffer.wrap(manifest.bytes());
                while (bytes.hasRemaining()) {
                    channel.write(bytes);
                }
                channel.force(true);
            }
            force(folder);
            Path target = step(step);
            if (Files.exists(target)) {
                Files.move(
                        target,
                        path.resolve("." + name(step) + "." + Long.toHexString(System.nanoTime()) + REPLACED),
                        StandardCopyOption.ATOMIC_MOVE);
            }
            Files.move(folder, target, StandardCopyOption.ATOMIC_MOVE);
            force(path);
            FileReplacement.write(
                    path.resolve(LATEST),
                    PREFIX,
                    channel -> channel.write(ByteBuffer.wrap((name(step) + "\n").getBytes(StandardCharsets.US_ASCII))));
            prune(step);
            removeLeftovers();
        });
    }

    /** Removes a folder that was not published. */
    void discard(Path folder) {
        writing(() -> delete(folder));
    }

    private static void force(Path folder) throws IOException {
        try (FileChannel channel = FileChannel.open(folder, StandardOpenOption.READ)) {
            channel.force(true);
        }
    }

    /** Only this program writes here, so what has such a name was left by another that has ended. */
    private void removeLeftovers() throws IOException {
        List<Path> hidden;
        try (Stream<Path> files = Files.list(path)) {
            hidden = files.filter(file -> file.getFileName().toString().startsWith("." + STEP)
                            && Files.isDirectory(file, LinkOption.NOFOLLOW_LINKS))
                    .toList();
        }
        for (Path file : hidden) {
            String name = file.getFileName().toString();
            Path whole = path.resolve(name.substring(1, Math.max(1, name.indexOf('.', 1))));
            if (name.endsWith(REPLACED) && !Files.exists(whole)) {
                Files.move(file, whole, StandardCopyOption.ATOMIC_MOVE);
            } else if (name.endsWith(UNPUBLISHED) || name.endsWith(REPLACED)) {
                delete(file);
            }
        }
    }

    private static void delete(Path folder) throws IOException {
        try (Stream<Path> files = Files.walk(folder)) {
            for (Path file : files.sorted(Comparator.reverseOrder()).toList()) {
                Files.deleteIfExists(file);
            }
        }
    }

    private void prune(long published) throws IOException {
        List<Long> steps = steps();
        Set<Long> kept = kept(steps);
        for (long step : steps) {
            if (step != published && !kept.contains(step) && !isRead(step(step))) {
                // First the name goes, so that nobody takes for whole what has lost some files.
                Path removed = unpublished(step);
                Files.move(step(step), removed, StandardCopyOption.ATOMIC_MOVE);
                delete(removed);
            }
        }
    }

    private Set<Long> kept(List<Long> steps) {
        if (retention.last() == 0) {
            return Set.copyOf(steps);
        }
        Set<Long> kept = new HashSet<>(steps.subList(Math.max(0, steps.size() - retention.last()), steps.size()));
        steps.stream()
                .filter(step -> retention.every() != 0 && step % retention.every() == 0)
                .forEach(kept::add);
        if (retention.best() != 0) {
            Map<Long, Double> metrics = new HashMap<>();
            steps.forEach(step -> metric(step(step)).ifPresent(value -> metrics.put(step, value)));
            metrics.entrySet().stream()
                    .sorted(Map.Entry.<Long, Double>comparingByValue().thenComparing(Map.Entry.comparingByKey()))
                    .limit(retention.best())
                    .forEach(entry -> kept.add(entry.getKey()));
        }
        return kept;
    }

    /** A checkpoint that cannot be read has none, and what it is worth shows when somebody loads it. */
    private static Optional<Double> metric(Path step) {
        try (SafetensorsFile file = SafetensorsFile.open(step)) {
            return Optional.ofNullable(file.metadata().get(Retention.METRIC))
                    .map(Double::valueOf)
                    .filter(value -> !value.isNaN());
        } catch (SafetensorsException | NumberFormatException unknown) {
            return Optional.empty();
        }
    }

    private static boolean isRead(Path step) {
        if (SafetensorsFile.isRead(step)) {
            return true;
        }
        try (FileChannel channel = FileChannel.open(step.resolve(Manifest.NAME), StandardOpenOption.WRITE)) {
            return channel.tryLock() == null;
        } catch (OverlappingFileLockException here) {
            return true;
        } catch (IOException noLocks) {
            return false;
        }
    }

    /** Lets other programs save here; a second call does nothing. */
    @Override
    public void close() {
        AtomicFile present = lock;
        lock = null;
        if (present != null) {
            present.discard();
        }
    }

    /** Returns whether other programs are kept from saving here. */
    boolean isClaimed() {
        return lock != null;
    }

    /** Returns the folder and what stays. */
    @Override
    public String toString() {
        return "checkpoints in " + path + ", " + retention;
    }
}
