package dev.chagres.estimate;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import dev.chagres.Device;
import dev.chagres.Event;
import dev.chagres.bindings.CaptureException;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.PassObserver;
import java.io.IOException;
import java.io.OutputStream;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Keeps when each call of a layer began and ended, on the device and on the host, and how much memory its pass held: for a picture of a few steps in
 * Perfetto or Chrome. {@link dev.chagres.pass.PassProfile} has sums, and makes no garbage.
 *
 * <p>Times on the device are of events around what a call enqueues, not of single kernels. Each call takes two events until this is closed.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: the "Trace Event Format" of Chromium, which https://ui.perfetto.dev opens.
 */
public final class PassTrace implements PassObserver, AutoCloseable {
    private static final double MICROS = 1e3;
    private static final double MIB = 1 << 20;
    private static final int ON_DEVICE = 1;
    private static final int ON_HOST = 2;

    private static final class Call {
        private final String layer;
        private final Direction direction;
        private final Event begin;
        private final Event end;
        private final long hostBegin;
        private final long bytesBefore;
        private long hostEnd;
        private long bytesAfter;

        private Call(Layer layer, Direction direction, Pass pass) {
            this.layer = layer.name();
            this.direction = direction;
            begin = pass.device().openEvent();
            end = pass.device().openEvent();
            bytesBefore = pass.scope().usedBytes();
            begin.record(pass.stream());
            hostBegin = System.nanoTime();
        }

        private void end(Pass pass) {
            hostEnd = System.nanoTime();
            end.record(pass.stream());
            bytesAfter = pass.scope().usedBytes();
        }
    }

    private final Device device;
    private final List<Call> calls = new ArrayList<>();
    private final List<Call> open = new ArrayList<>();
    private boolean closed;

    /** Makes an observer for passes on any stream of {@code device}. */
    public PassTrace(Device device) {
        this.device = Checks.given("device", device);
    }

    /**
     * {@inheritDoc}
     *
     * @throws IllegalStateException when this trace is closed
     * @throws CaptureException when the pass is captured, since events of a graph have no times
     */
    @Override
    public void entering(Layer layer, Direction direction, Pass pass) {
        if (closed) {
            throw new IllegalStateException("the pass trace is closed; call pass.forget(trace) before close()");
        }
        if (Inside.capture(pass.stream()) != null) {
            throw new CaptureException(
                    "pass trace: expected a pass that is not captured, since events of a graph have no"
                            + " times; call pass.forget(trace) before Stream.capture");
        }
        open.add(new Call(layer, direction, pass));
    }

    @Override
    public void left(Layer layer, Direction direction, Pass pass, long keptBytes) {
        if (!open.isEmpty()) {
            Call call = open.removeLast();
            call.end(pass);
            calls.add(call);
        }
    }

    @Override
    public void failed(Layer layer, Direction direction, Pass pass) {
        if (!open.isEmpty()) {
            Call call = open.removeLast();
            call.begin.close();
            call.end.close();
        }
    }

    /** Returns how many calls were kept. */
    public int count() {
        return calls.size();
    }

    /**
     * Waits for the device and writes the calls as JSON in UTF-8, which https://ui.perfetto.dev opens; the stream stays open.
     *
     * @throws IOException when the stream throws it
     */
    public void write(OutputStream to) throws IOException {
        device.synchronize();
        JsonGenerator json = new JsonFactory()
                .createGenerator(Checks.given("to", to))
                .disable(JsonGenerator.Feature.AUTO_CLOSE_TARGET);
        json.writeStartObject();
        json.writeArrayFieldStart("traceEvents");
        name(json, "thread_name", ON_DEVICE, "layers on the device");
        name(json, "thread_name", ON_HOST, "their calls on the host");
        Call first = first();
        for (Call call : calls) {
            double begin = first == null ? 0 : call.begin.millisSince(first.begin) * MICROS;
            double micros = call.end.millisSince(call.begin) * MICROS;
            slice(json, call, ON_DEVICE, begin, micros);
            long sinceFirst = first == null ? 0 : call.hostBegin - first.hostBegin;
            slice(json, call, ON_HOST, sinceFirst / MICROS, (call.hostEnd - call.hostBegin) / MICROS);
            held(json, begin, call.bytesBefore);
            held(json, begin + micros, call.bytesAfter);
        }
        json.writeEndArray();
        json.writeStringField("displayTimeUnit", "ms");
        json.writeEndObject();
        json.close();
    }

    /** Returns the call that began first: calls are kept in the order of their ends. */
    private @Nullable Call first() {
        Call first = null;
        for (Call call : calls) {
            first = first == null || call.hostBegin < first.hostBegin ? call : first;
        }
        return first;
    }

    private static void name(JsonGenerator json, String kind, int thread, String name) throws IOException {
        json.writeStartObject();
        json.writeStringField("name", kind);
        json.writeStringField("ph", "M");
        json.writeNumberField("pid", 0);
        json.writeNumberField("tid", thread);
        json.writeObjectFieldStart("args");
        json.writeStringField("name", name);
        json.writeEndObject();
        json.writeEndObject();
    }

    private static void slice(JsonGenerator json, Call call, int thread, double begin, double micros)
            throws IOException {
        json.writeStartObject();
        json.writeStringField("name", call.layer);
        json.writeStringField("cat", call.direction == Direction.FORWARD ? "forward" : "backward");
        json.writeStringField("ph", "X");
        json.writeNumberField("pid", 0);
        json.writeNumberField("tid", thread);
        json.writeNumberField("ts", begin);
        json.writeNumberField("dur", micros);
        json.writeEndObject();
    }

    private static void held(JsonGenerator json, double at, long bytes) throws IOException {
        json.writeStartObject();
        json.writeStringField("name", "memory of the pass");
        json.writeStringField("ph", "C");
        json.writeNumberField("pid", 0);
        json.writeNumberField("ts", at);
        json.writeObjectFieldStart("args");
        json.writeNumberField("MiB", bytes / MIB);
        json.writeEndObject();
        json.writeEndObject();
    }

    /** Returns how many calls were kept. */
    @Override
    public String toString() {
        return "PassTrace(" + device + ", calls=" + calls.size() + ")";
    }

    /** Frees the events. A second call does nothing. */
    @Override
    public void close() {
        closed = true;
        for (Call call : calls) {
            call.begin.close();
            call.end.close();
        }
        for (Call call : open) {
            call.begin.close();
            call.end.close();
        }
        calls.clear();
        open.clear();
    }
}
