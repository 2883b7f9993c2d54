package dev.chagres.nccl;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.InvalidPathException;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.Nullable;

/**
 * Writes the files of {@link FlightRecorder}s after a failure of a rank, on a separate thread: a disk may hang, and failing ranks must not
 * wait long for it.
 *
 * <p>Threading: thread-safe.
 */
final class FailureRecords {
    static final String DIRECTORY = "chagres.collective.recorder.directory";
    /** How long an exception waits for the files: so that they are there when the program ends because of it. */
    private static final long PATIENCE_MILLIS = 2_000;

    private final String place;
    private final CompletableFuture<String> note;

    private FailureRecords(String place, CompletableFuture<String> note) {
        this.place = place;
        this.note = note;
    }

    /** Begins to write if the user has named a directory; else returns null. */
    static @Nullable FailureRecords begin(List<FlightRecorder> recorders, String failure) {
        String directory = System.getProperty(DIRECTORY);
        if (directory == null || directory.isBlank() || recorders.isEmpty()) {
            return null;
        }
        CompletableFuture<String> note = new CompletableFuture<>();
        Thread.ofPlatform()
                .daemon()
                .name("chagres-flight-recorder")
                .start(() -> note.complete(write(recorders, directory, failure)));
        return new FailureRecords(directory, note);
    }

    private static String write(List<FlightRecorder> recorders, String directory, String failure) {
        try {
            Path folder = Files.createDirectories(Path.of(directory));
            Path file = folder;
            for (FlightRecorder recorder : recorders) {
                file = folder.resolve("rank-" + recorder.rank() + ".jsonl");
                RecorderFile.write(recorder, file, failure);
            }
            return "the calls before it: " + (recorders.size() == 1 ? file : folder.resolve("rank-*.jsonl"));
        } catch (UncheckedIOException e) {
            return "its calls: " + e.getMessage();
        } catch (IOException | InvalidPathException | SecurityException e) {
            return "its calls could not be written to -D" + DIRECTORY + "=" + directory + ": " + e;
        }
    }

    /** Returns the text about the files for errors. */
    String note() {
        return note.completeOnTimeout(
                        "its calls are still being written to " + place, PATIENCE_MILLIS, TimeUnit.MILLISECONDS)
                .join();
    }
}
