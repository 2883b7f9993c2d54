package dev.chagres.pass;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.bindings.CaptureException;
import dev.chagres.bindings.OpsException;
import dev.chagres.bindings.Provider;
import dev.chagres.conformance.Allocation;
import dev.chagres.layer.FailingLayer;
import dev.chagres.layer.FailingLayer.Fails;
import dev.chagres.ops.Range;
import dev.chagres.sharding.SmallModel;
import java.util.ArrayList;
import java.util.List;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** The observers that measure and that name ranges. */
@Tag("L0")
@Tag("L1")
class ObserversTest {
    private static SmallModel model(Device device, UnaryOperator<Layer> wrapper) {
        return new SmallModel(device, DType.FLOAT32, 0, wrapper, plan -> {});
    }

    private static List<String> lines(List<PassProfile.Row> rows) {
        return rows.stream()
                .map(row -> "  ".repeat(row.depth()) + row.layer() + " " + row.forwards() + " " + row.backwards())
                .toList();
    }

    private static void assertNoRangeOpen() {
        assertThrows(OpsException.class, Range::pop);
    }

    @Test
    void aProfileHasARowForEachLayerInItsPlace() {
        try (Device device = Device.open();
                SmallModel model = model(device, UnaryOperator.identity());
                Pass pass = Pass.training(device);
                PassProfile profile = new PassProfile(device)) {
            long[] kept = new long[1];
            pass.observe(profile);
            pass.observe(new PassObserver() {
                @Override
                public void entering(Layer layer, Direction direction, Pass observed) {}

                @Override
                public void left(Layer layer, Direction direction, Pass observed, long keptBytes) {
                    if (layer.name().equals("layers.2")) {
                        kept[0] = Math.max(kept[0], keptBytes);
                    }
                }
            });
            for (int i = 0; i < 3; i++) {
                model.step(pass);
                model.parameters.forgetGradients();
            }
            List<PassProfile.Row> rows = profile.rows();
            assertEquals(
                    List.of(
                            "layers 3 3",
                            "  layers.0 3 3",
                            "    layers.0.attention 3 3",
                            "    layers.0.mlp 3 3",
                            "  layers.1 3 3",
                            "    layers.1.attention 3 3",
                            "    layers.1.mlp 3 3",
                            "  layers.2 3 3",
                            "    layers.2.attention 3 3",
                            "    layers.2.mlp 3 3",
                            "  layers.3 3 3",
                            "    layers.3.attention 3 3",
                            "    layers.3.mlp 3 3",
                            "head 3 3",
                            "  head.norm 3 3",
                            "  head.dense 3 3",
                            "  head.gelu 3 3",
                            "  head.decoder 3 3"),
                    lines(rows));
            assertTrue(kept[0] > 0);
            assertEquals(kept[0], rows.get(7).keptBytes());
            checkTimes(rows);
            assertEquals("PassProfile(device 0, calls=0)", profile.toString());
            profile.clear();
            assertEquals(List.of(), profile.rows());
            model.step(pass);
            assertEquals("layers 1 1", lines(profile.rows()).getFirst());
        }
    }

    /** Events of a graph have no times. */
    @Test
    void aProfileRefusesACapturedPass() {
        try (Device device = Device.open();
                Scope scope = device.openScope();
                Pass pass = Pass.training(device);
                PassProfile profile = new PassProfile(device)) {
            Layer layer = FailingLayer.copying(Fails.NEVER);
            Tensor x = scope.tensor(DType.FLOAT32, 4, 4);
            pass.observe(profile);
            layer.forward(x, pass.begin());
            profile.clear();
            pass.begin();
            assertThrown(
                    CaptureException.class,
                    "pass profile: expected a pass that is not captured, since events of a graph have no times; call"
                            + " pass.forget(profile) before Stream.capture",
                    () -> device.stream().capture(() -> layer.forward(x, pass)));
            assertEquals(List.of(), profile.rows());
            layer.forward(x, pass.begin());
            assertEquals(List.of("failing 1 0"), lines(profile.rows()));
        }
    }

    /** A layer takes at least the time of those inside it. */
    private static void checkTimes(List<PassProfile.Row> rows) {
        double forward = 0;
        double backward = 0;
        double hostForward = 0;
        double hostBackward = 0;
        for (PassProfile.Row row : List.of(rows.get(1), rows.get(4), rows.get(7), rows.get(10))) {
            assertTrue(row.forwardMillis() > 0 && row.backwardMillis() > 0, row.toString());
            assertTrue(row.hostForwardMillis() > 0 && row.hostBackwardMillis() > 0, row.toString());
            forward += row.forwardMillis();
            backward += row.backwardMillis();
            hostForward += row.hostForwardMillis();
            hostBackward += row.hostBackwardMillis();
        }
        PassProfile.Row all = rows.getFirst();
        assertTrue(all.forwardMillis() > 0.99 * forward, all.forwardMillis() + " of " + forward);
        assertTrue(all.backwardMillis() > 0.99 * backward, all.backwardMillis() + " of " + backward);
        assertTrue(all.hostForwardMillis() > hostForward, all.hostForwardMillis() + " of " + hostForward);
        assertTrue(all.hostBackwardMillis() > hostBackward, all.hostBackwardMillis() + " of " + hostBackward);
    }

    @Test
    void recomputationShowsAsForwardCalls() {
        try (Device device = Device.open();
                SmallModel model = model(device, Recomputed::new);
                Pass pass = Pass.training(device);
                PassProfile profile = new PassProfile(device)) {
            pass.observe(profile);
            model.step(pass);
            List<PassProfile.Row> rows = profile.rows();
            assertEquals(
                    List.of("layers 1 1", "  layers.0 1 1", "    layers.0 2 1"),
                    lines(rows).subList(0, 3));
            assertTrue(rows.get(2).keptBytes() > rows.get(1).keptBytes());
        }
    }

    @Test
    void theTableIsAlignedAndIndented() {
        try (Device device = Device.open();
                SmallModel model = model(device, UnaryOperator.identity());
                Pass pass = Pass.evaluation(device);
                PassProfile profile = new PassProfile(device)) {
            assertEquals(
                    "layer   calls  forward ms  backward ms  host forward ms  host backward ms   kept MiB",
                    profile.table());
            pass.observe(profile);
            model.logits(pass, SmallModel.batch(3, SmallModel.LENGTHS)[0], SmallModel.LENGTHS);
            String[] lines = profile.table().split(System.lineSeparator());
            assertEquals(19, lines.length);
            for (String line : lines) {
                assertEquals(lines[0].length(), line.length(), line);
            }
            assertTrue(lines[1].matches("layers +1 +[0-9.]+ +0\\.000 +[0-9.]+ +0\\.000 +0\\.000"), lines[1]);
            assertTrue(lines[2].startsWith("  layers.0  "), lines[2]);
        }
    }

    @Test
    void theEndOfAFailedCallIsToldToo() {
        try (Device device = Device.open();
                Pass pass = Pass.training(device);
                PassProfile profile = new PassProfile(device);
                ProfilerRanges ranges = new ProfilerRanges()) {
            FailingLayer failing = FailingLayer.copying(Fails.NEVER);
            Layer layers = new Sequential("layers", failing);
            pass.observe(profile);
            pass.observe(ranges);
            for (int i = 0; i < 2; i++) {
                pass.begin();
                Tensor x = pass.scope().tensor(DType.FLOAT32, 3, 4);
                failing.fails(Fails.FORWARD);
                assertThrows(IllegalStateException.class, () -> layers.forward(x, pass));
                assertNoRangeOpen();
                failing.fails(Fails.NEVER);
                Tensor y = layers.forward(x, pass);
                failing.fails(Fails.BACKWARD);
                assertThrows(IllegalStateException.class, () -> layers.backward(y, pass));
                assertNoRangeOpen();
                failing.fails(Fails.NEVER);
            }
            assertEquals(List.of("layers 2 2", "  failing 2 2"), lines(run(pass, layers, profile)));
            assertNoRangeOpen();
        }
    }

    /** Two whole steps after those that failed, alone in the profile. */
    private static List<PassProfile.Row> run(Pass pass, Layer layers, PassProfile profile) {
        profile.clear();
        for (int i = 0; i < 2; i++) {
            pass.begin();
            Tensor x = pass.scope().tensor(DType.FLOAT32, 3, 4);
            layers.backward(layers.forward(x, pass), pass);
        }
        return profile.rows();
    }

    /** The first of two hears of the end when the second cannot begin. */
    @Test
    void anObserverThatFailsLeavesNothingOpen() {
        try (Device device = Device.open();
                Pass pass = Pass.training(device);
                ProfilerRanges ranges = new ProfilerRanges();
                PassProfile closed = new PassProfile(device)) {
            closed.close();
            pass.observe(ranges);
            pass.observe(closed);
            pass.begin();
            Tensor x = pass.scope().tensor(DType.FLOAT32, 3, 4);
            Layer layer = FailingLayer.copying(Fails.NEVER);
            assertEquals(
                    "the pass profile is closed; call pass.forget(profile) before close()",
                    assertThrows(IllegalStateException.class, () -> layer.forward(x, pass))
                            .getMessage());
            assertNoRangeOpen();
            pass.forget(closed);
            ranges.close();
            assertEquals(
                    "the profiler ranges are closed; call pass.forget(ranges) before close()",
                    assertThrows(IllegalStateException.class, () -> layer.forward(x, pass))
                            .getMessage());
            assertNoRangeOpen();
        }
    }

    @Test
    void observingMayBeginAndEndInsideACall() {
        try (Device device = Device.open();
                Pass pass = Pass.training(device);
                PassProfile profile = new PassProfile(device);
                ProfilerRanges ranges = new ProfilerRanges()) {
            Layer begins = FailingLayer.copying(Fails.NEVER);
            List<PassObserver> observers = new ArrayList<>(List.of(profile, ranges));
            Layer outer = new Sequential("outer", begins);
            pass.observe(new PassObserver() {
                @Override
                public void entering(Layer layer, Direction direction, Pass observed) {
                    if (layer == begins) {
                        observers.forEach(observed::observe);
                        observers.clear();
                    }
                }

                @Override
                public void left(Layer layer, Direction direction, Pass observed, long keptBytes) {}
            });
            pass.begin();
            Tensor x = pass.scope().tensor(DType.FLOAT32, 3, 4);
            Tensor y = outer.forward(x, pass);
            outer.backward(y, pass);
            assertNoRangeOpen();
            assertEquals(List.of("failing 1 0", "outer 0 1", "  failing 0 1"), lines(profile.rows()));
        }
    }

    @Test
    void aProfileMeasuresItsOwnDevice() {
        Assumptions.assumeTrue(Provider.current() == Provider.REFERENCE, "needs two devices; the reference has eight");
        try (Device first = Device.open(0);
                Device second = Device.open(1);
                PassProfile profile = new PassProfile(first);
                Pass pass = Pass.training(second)) {
            pass.observe(profile);
            pass.begin();
            Tensor x = pass.scope().tensor(DType.FLOAT32, 3, 4);
            String text = String.valueOf(assertThrows(
                            IllegalArgumentException.class,
                            () -> FailingLayer.copying(Fails.NEVER).forward(x, pass))
                    .getMessage());
            assertTrue(text.startsWith("stream: expected one of " + first + ", got "), text);
            assertEquals(List.of(), profile.rows());
        }
    }

    @Test
    void stepsThatRepeatMakeNoGarbage() {
        try (Device device = Device.open();
                SmallModel model = model(device, UnaryOperator.identity());
                Pass pass = Pass.training(device);
                PassProfile profile = new PassProfile(device);
                ProfilerRanges ranges = new ProfilerRanges()) {
            Sequences sequences = Sequences.packed(model.inputs, 9, 4);
            Tensor ids = model.ints(model.inputs, SmallModel.batch(1, 13)[0]);
            pass.observe(profile);
            pass.observe(ranges);
            Allocation.assertNone(
                    "an observed step",
                    () -> {
                        pass.begin(sequences);
                        Tensor y = model.layers.forward(model.embedding.forward(ids, pass), pass);
                        model.embedding.backward(model.layers.backward(y, pass), pass);
                        model.parameters.nextStep();
                    },
                    150);
        }
    }
}
