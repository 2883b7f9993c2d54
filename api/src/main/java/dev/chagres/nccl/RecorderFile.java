package dev.chagres.nccl;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.time.Instant;
import org.jspecify.annotations.Nullable;

/**
 * What a {@link FlightRecorder} holds, as a file.
 *
 * <p>Threading: thread-safe.
 */
final class RecorderFile {
    private static final JsonFactory JSON = new JsonFactory();

    private RecorderFile() {}

    /** Writes aside first, so that no reader takes a torso for the whole. */
    static void write(FlightRecorder recorder, Path file, String failure) {
        Path part = file.resolveSibling(file.getFileName() + ".part");
        try {
            try (JsonGenerator json = JSON.createGenerator(Files.newBufferedWriter(part))) {
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
            Files.move(part, file, StandardCopyOption.REPLACE_EXISTING, StandardCopyOption.ATOMIC_MOVE);
        } catch (IOException e) {
            throw new UncheckedIOException(file + ": cannot be written: " + reason(e), e);
        }
    }

    private static String reason(IOException e) {
        return e.getClass().getSimpleName() + ": " + e.getMessage();
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

    /** Null is written as such. */
    private static @Nullable String text(@Nullable Instant time) {
        return time == null ? null : time.toString();
    }

    private static void end(JsonGenerator json) throws IOException {
        json.writeEndObject();
        json.writeRaw('\n');
    }
}
