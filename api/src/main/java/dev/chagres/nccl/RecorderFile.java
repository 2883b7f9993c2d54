package dev.chagres.nccl;

import com.fasterxml.jackson.core.JsonEncoding;
import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import dev.chagres.bindings.ForeignText;
import dev.chagres.internal.FileFailure;
import dev.chagres.internal.FileReplacement;
import java.io.IOException;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.nio.channels.Channels;
import java.nio.channels.ClosedByInterruptException;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.time.Instant;
import org.jspecify.annotations.Nullable;

/**
 * Writes the calls of a {@link FlightRecorder} to a file.
 *
 * <p>Threading: thread-safe.
 */
final class RecorderFile {
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
