package dev.chagres.nccl;

import com.fasterxml.jackson.core.JsonEncoding;
import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import dev.chagres.bindings.ForeignText;
import dev.chagres.internal.Checks;
import dev.chagres.internal.FileFailure;
import dev.chagres.internal.FileReplacement;
import dev.chagres.internal.RankNames;
import java.io.IOException;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.nio.channels.Channels;
import java.nio.channels.ClosedByInterruptException;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.InvalidPathException;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.Nullable;

/**
 * Why the ranks of a communicator cannot go on.
 *
 * <p>Threading: immutable.
 *
 * @param ranks those that failed or did not come; empty when nobody knows
 * @param waiting what a rank waited for, and how long, when others did not come; null where each rank says that of itself
 * @param text what happened
 * @param cause what the rank threw, or null
 * @param records the files of what ranks have called before, or null
 */
record RankFailure(
        List<Integer> ranks,
        @Nullable Called waiting,
        String text,
        @Nullable Throwable cause,
        @Nullable FailureRecords records) {
    RankFailure(List<Integer> ranks, String text, @Nullable Throwable cause) {
        this(ranks, null, text, cause, null);
    }

    /** The failure that {@code rank} threw; -1: unknown rank. */
    static RankFailure thrown(int rank, Throwable cause) {
        return rank < 0
                ? new RankFailure(List.of(), "a rank failed: " + Checks.describe(cause), cause)
                : new RankFailure(List.of(rank), "rank " + rank + " failed: " + Checks.describe(cause), cause);
    }

    /** The failure of {@code rank}, for the others: if it names other ranks, they are at fault. */
    static RankFailure told(int rank, Throwable cause) {
        return cause instanceof RankFailedException known && !known.ranks().isEmpty()
                ? new RankFailure(known.ranks(), String.valueOf(known.getMessage()), cause)
                : thrown(rank, cause);
    }

    /** The failure of {@code waiting} when others did not come in time. If it has no time of its own, it waited for the timeout. */
    static RankFailure late(Called waiting, List<Integer> missing, long timeoutMillis) {
        return late(waiting, FailureAttribution.only(missing), timeoutMillis);
    }

    /** The failure of {@code waiting} when others did not come in time, for a reason that may be known. */
    static RankFailure late(Called waiting, FailureAttribution blame, long timeoutMillis) {
        List<Integer> missing = blame.ranks();
        String who = missing.isEmpty()
                ? "every rank that is known here has called it, and it did not complete"
                : RankNames.of(missing) + " did not come" + blame.reason();
        Called waited = waiting.time() == null ? waiting.waited(Duration.ofMillis(timeoutMillis)) : waiting;
        return new RankFailure(missing, waited, who, null, null);
    }

    /** The failure of all ranks because the thread of one was interrupted while it waited for others. */
    static RankFailure interrupted(int rank) {
        return new RankFailure(
                List.of(rank), "the thread of rank " + rank + " was interrupted while it waited for other ranks", null);
    }

    /** Returns the same with the files of these ranks, which it begins to write where the user wants them. */
    RankFailure recorded(List<Endpoint> endpoints) {
        if (records != null) {
            return this;
        }
        List<FlightRecorder> recorders =
                endpoints.stream().map(one -> one.calls.recorder()).distinct().toList();
        return new RankFailure(ranks, waiting, text, cause, FailureRecords.begin(recorders, told(null)));
    }

    /** Returns the exception of a rank that was in {@code called}, or in no call. */
    RankFailedException exception(@Nullable Called called) {
        String told = told(called);
        Called where = waiting != null ? waiting : called;
        return new RankFailedException(
                records == null ? told : told + "; " + records.note(),
                ranks,
                where == null ? null : where.call(),
                where == null ? null : where.time(),
                cause);
    }

    private String told(@Nullable Called called) {
        Called where = waiting != null ? waiting : called;
        return where == null ? text : where + ": " + text;
    }

    /**
     * Writes the files of {@link FlightRecorder}s after a failure of a rank, on a separate thread: a disk may hang, and failing ranks must not
     * wait long for it.
     */
    private record FailureRecords(String place, CompletableFuture<String> pending) {
        static final String DIRECTORY = "chagres.collective.recorder.directory";
        /** How long an exception waits for the files: so that they are there when the program ends because of it. */
        private static final long PATIENCE_MILLIS = 5_000;

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
            return pending.completeOnTimeout(
                            "its calls are still being written to " + place, PATIENCE_MILLIS, TimeUnit.MILLISECONDS)
                    .join();
        }
    }

    /** Writes the calls of a {@link FlightRecorder} to a file. */
    static final class RecorderFile {
        private static final JsonFactory JSON = new JsonFactory();

        private RecorderFile() {}

        /** Replaces {@code file} atomically; an interrupt, which would close the channel, is postponed. */
        static void write(FlightRecorder recorder, Path file, String failure) {
            boolean interrupted = Thread.interrupted();
            try {
                while (!written(recorder, file, failure)) {
                    interrupted |= Thread.interrupted();
                }
            } finally {
                if (interrupted) {
                    Thread.currentThread().interrupt();
                }
            }
        }

        /** Returns whether it could be written before an interrupt came. */
        private static boolean written(FlightRecorder recorder, Path file, String failure) {
            try {
                FileReplacement.write(file, ".flight-recorder-", channel -> write(recorder, channel, failure));
                return true;
            } catch (ClosedByInterruptException _) {
                return false;
            } catch (FileReplacement.PlaceException unfit) {
                throw new UncheckedIOException(ForeignText.plain(file) + ": " + unfit.getMessage(), unfit);
            } catch (IOException e) {
                throw new UncheckedIOException(
                        ForeignText.plain(file) + ": could not be written: " + FileFailure.text(e), e);
            }
        }

        private static void write(FlightRecorder recorder, FileChannel channel, String failure) throws IOException {
            OutputStream out = Channels.newOutputStream(channel);
            try (JsonGenerator json = JSON.createGenerator(out, JsonEncoding.UTF8)) {
                json.disable(JsonGenerator.Feature.AUTO_CLOSE_TARGET); // The channel is forced to the disk afterwards.
                json.setRootValueSeparator(null);
                json.writeStartObject();
                json.writeNumberField("rank", recorder.rank());
                json.writeNumberField("process", ProcessHandle.current().pid());
                json.writeNumberField("calls", recorder.count());
                json.writeStringField("written", Instant.now().toString());
                json.writeStringField("failure", failure);
                end(json);
                for (RecordedCall call : recorder.calls()) {
                    write(call, json);
                }
            }
        }

        private static void write(RecordedCall call, JsonGenerator json) throws IOException {
            json.writeStartObject();
            json.writeNumberField("number", call.number());
            json.writeStringField("communicator", call.communicator());
            json.writeNumberField("rank", call.rank());
            json.writeNumberField("ranks", call.ranks());
            json.writeNumberField("sequence", call.sequence());
            json.writeStringField("operation", call.operation().toString());
            json.writeNumberField("elements", call.elements());
            json.writeStringField("dtype", call.dtype().toString());
            json.writeStringField("reduction", call.reduction());
            if (call.other() >= 0) {
                json.writeNumberField(call.operation().hasRoot() ? "root" : "peer", call.other());
            }
            json.writeStringField("stream", "0x" + Long.toHexString(call.stream()));
            json.writeBooleanField("captured", call.captured());
            json.writeStringField("entered", call.entered().toString());
            json.writeStringField("enqueued", text(call.enqueued()));
            json.writeStringField("completed", text(call.completed()));
            end(json);
        }

        /** Formats a time; null stays null. */
        private static @Nullable String text(@Nullable Instant time) {
            return time == null ? null : time.toString();
        }

        private static void end(JsonGenerator json) throws IOException {
            json.writeEndObject();
            json.writeRaw('\n');
        }
    }
}
