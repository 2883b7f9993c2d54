package dev.chagres.estimate;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.jr.ob.JSON;
import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.bindings.Provider;
import dev.chagres.estimate.KernelTimes.Row;
import dev.chagres.layer.Linear;
import dev.chagres.ops.ActivityRecord;
import dev.chagres.ops.ActivityRecord.Kind;
import dev.chagres.ops.ActivityRecord.Recording;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.PassObserver;
import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

/** What is recorded, and what follows from made-up records of two devices. */
class KernelTraceTest {
    private static final long MILLI = 1_000_000;

    private static ActivityRecord range(String name, long number, long inside, long begin, long end) {
        return new ActivityRecord(name, Kind.RANGE, begin * MILLI, end * MILLI, inside, number, 0, 1);
    }

    private static ActivityRecord kernel(String name, int device, long inside, long begin, long end) {
        return new ActivityRecord(name, Kind.KERNEL, begin * MILLI, end * MILLI, inside, 0, device, 7);
    }

    /** Device 0: 100 ms, of which 30 compute, 10 both, 20 a collective alone. Device 1: the same span, computing alone. */
    private static KernelTimes madeUp() {
        List<ActivityRecord> records = List.of(
                range("layers.0", 1, 0, 0, 10),
                range("layers.0.mlp", 2, 1, 2, 8),
                range("open", 3, 0, 9, 0),
                kernel("gemm", 0, 2, 100, 120),
                kernel("gemm", 0, 2, 120, 130),
                kernel("norm", 0, 1, 125, 140), // beside the second product
                kernel("ncclDevKernel_AllReduce", 0, 0, 130, 160),
                kernel("norm", 0, 1, 190, 200),
                kernel("gemm", 1, 2, 100, 200));
        return new KernelTimes(
                KernelTrace.Source.CUPTI,
                "told",
                new Recording(records, 2),
                List.of(new KernelTimes.Memory(0, 5 * MILLI, 1 << 20)));
    }

    @Test
    void addsUpKernelsByNameAndByLayer() {
        KernelTimes times = madeUp();
        assertEquals(6, times.count());
        assertEquals(2, times.dropped());
        List<Row> rows = times.slowest(2);
        assertEquals(2, rows.size());
        assertEquals(new Row("gemm", 3, 130, 130.0 / 185), rows.getFirst());
        assertEquals(new Row("ncclDevKernel_AllReduce", 1, 30, 30.0 / 185), rows.get(1));
        assertEquals(
                List.of("layers.0.mlp", "(outside of layers)", "layers.0"),
                times.layers().stream().map(Row::name).toList());
        assertEquals(25, times.layers().get(2).millis(), 1e-9);
    }

    @Test
    void collectivesAreExposedWhereNothingElseRuns() {
        KernelTimes times = madeUp();
        assertTrue(times.hasCollectives());
        // Device 0 waits 30 of 100 ms, and runs the collective alone from 140 to 160; device 1 computes.
        assertEquals(20.0 / 200, times.exposedCommunication(), 1e-12);
        assertEquals(170.0 / 200, times.busy(), 1e-12);
        KernelTimes none = new KernelTimes(KernelTrace.Source.HOST, "told", new Recording(List.of(), 0), List.of());
        assertEquals(0, none.busy());
        assertEquals(0, none.exposedCommunication());
        assertEquals(List.of(), none.slowest(3));
    }

    @Test
    void theTraceHasEveryKernelUnderItsDevice() throws Exception {
        var json = new ByteArrayOutputStream();
        madeUp().write(json);
        List<?> events = (List<?>)
                JSON.std.mapFrom(json.toString(StandardCharsets.UTF_8)).get("traceEvents");
        Map<?, ?> second = events.stream()
                .map(event -> (Map<?, ?>) event)
                .filter(event -> event.get("name").equals("gemm"))
                .skip(1)
                .findFirst()
                .orElseThrow();
        assertEquals(1, second.get("pid"));
        assertEquals(120_000.0, ((Number) second.get("ts")).doubleValue());
        assertEquals(10_000.0, ((Number) second.get("dur")).doubleValue());
        assertEquals(Map.of("layer", "layers.0.mlp"), second.get("args"));
        assertEquals(
                3,
                events.stream()
                        .filter(event -> ((Map<?, ?>) event).get("ph").equals("M"))
                        .count());
        assertTrue(
                events.stream().anyMatch(event -> ((Map<?, ?>) event).get("ph").equals("C")), "memory");
        assertFalse(
                events.stream()
                        .anyMatch(event -> ((Map<?, ?>) event).get("name").equals("open")),
                "open range");
    }

    @Test
    void recordsLayersWhereNoGpuRuns() {
        ModelPlan plan = new ModelPlan();
        Layer layer = new Linear(64, 32, Initializer.normal(0.1f), plan.group("layer"));
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.FLOAT32, 1);
                Pass pass = Pass.training(device)) {
            // @start region="kernels"
            KernelTimes times;
            try (KernelTrace trace = KernelTrace.begin();
                    KernelTrace.Observer observer = trace.observer()) {
                pass.observe(observer);
                pass.begin();
                Tensor x = pass.scope().tensor(DType.FLOAT32, 32, 64);
                x.zero(device.stream());
                layer.backward(layer.forward(x, pass), pass);
                pass.forget(observer);
                device.synchronize(); // what is not done is not recorded
                times = trace.end();
            }
            for (KernelTimes.Row row : times.slowest(10)) {
                System.out.printf("%s %.3f ms, %.1f %%%n", row.name(), row.millis(), 100 * row.share());
            }
            // @end
            assertEquals(0, times.dropped());
            List<String> names = times.layers().stream().map(Row::name).sorted().toList();
            if (Provider.current() == Provider.REFERENCE) {
                assertEquals(List.of("layer", "layer backward"), names);
                assertEquals(KernelTrace.Source.HOST, times.source());
                assertTrue(times.slowest(1).getFirst().millis() > 0, times.toString());
            }
            assertEquals(4, times.memory().size());
            assertEquals(parameters.dtype(), DType.FLOAT32);
        }
    }

    @Test
    void observersKeepNothingOnceTheTraceHasEnded() {
        Layer layer = new Linear(64, 32, Initializer.normal(0.1f), new ModelPlan().group("layer"));
        try (Device device = Device.open();
                Pass pass = Pass.evaluation(device);
                KernelTrace trace = KernelTrace.begin();
                KernelTrace.Observer observer = trace.observer()) {
            pass.begin();
            observer.entering(layer, PassObserver.Direction.FORWARD, pass);
            observer.left(layer, PassObserver.Direction.FORWARD, pass, 0);
            assertEquals(2, observer.looks());
            assertEquals(2, trace.end().memory().size());
            assertEquals(0, observer.looks());
            observer.entering(layer, PassObserver.Direction.FORWARD, pass);
            observer.left(layer, PassObserver.Direction.FORWARD, pass, 0);
            assertEquals(0, observer.looks());
            assertEquals(2, trace.end().memory().size());
        }
    }

    @Test
    void oneRecordingAtATime() {
        try (KernelTrace first = KernelTrace.begin()) {
            assertTrue(first.isRecording());
            assertEquals(
                    "recording of kernels: ops_activity_begin: a recording runs already; expected ops_activity_end before",
                    assertThrows(IllegalStateException.class, KernelTrace::begin)
                            .getMessage());
            assertEquals(first.end(), first.end());
            assertFalse(first.isRecording());
        }
        KernelTrace.begin().close();
    }
}
