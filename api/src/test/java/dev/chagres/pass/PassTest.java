package dev.chagres.pass;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.bindings.Provider;
import dev.chagres.layer.ActivationLayer;
import dev.chagres.ops.ProductPlan;
import dev.chagres.pass.PassObserver.Direction;
import dev.chagres.sharding.SmallModel;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

/** The order of calls, what dies when, and what observers hear. */
@Tag("L0")
@Tag("L1")
class PassTest {
    private static String refusal(Executable call) {
        return String.valueOf(assertThrows(IllegalStateException.class, call).getMessage());
    }

    @Test
    void backwardOutOfOrderNamesBothLayers() {
        try (Device device = Device.open();
                SmallModel model = SmallModel.plain(device, DType.FLOAT32);
                Pass pass = Pass.training(device)) {
            int[][] batch = SmallModel.batch(3, SmallModel.LENGTHS);
            Tensor scores = model.logits(pass, batch[0], SmallModel.LENGTHS);
            Tensor dh = pass.scope().tensor(DType.FLOAT32, 25, SmallModel.HIDDEN);
            assertEquals(
                    "backward of layers was called, but the last forward was of head; call backward in the reverse order of"
                            + " forward",
                    refusal(() -> model.layers.backward(dh, pass)));
            assertEquals(
                    "backward of embedding was called, but the last forward was of head; call backward in the reverse order"
                            + " of forward",
                    refusal(() -> model.embedding.backward(dh, pass)));
            // Nothing was lost: the right order still works.
            Tensor dscores = pass.scope().like(scores);
            dscores.zero(device.stream());
            model.layers.backward(model.head.backward(dscores, pass), pass);
            assertEquals(
                    "backward of layers was called, but the last forward was of embedding; call backward in the reverse"
                            + " order of forward",
                    refusal(() -> model.layers.backward(dh, pass)));
        }
    }

    /** The reference has one kernel for a product, so that both plans give the same bits there, and close ones on GPUs. */
    @Test
    void productsAreComputedByThePassesPlan() {
        try (Device device = Device.open();
                SmallModel model = SmallModel.plain(device, DType.FLOAT32);
                Pass pass = Pass.training(device)) {
            int[][] batch = SmallModel.batch(3, SmallModel.LENGTHS);
            assertEquals(ProductPlan.FIRST, pass.productPlan());
            float[] first = model.logits(pass, batch[0], SmallModel.LENGTHS).toFloats(device.stream());
            pass.productPlan(ProductPlan.MEASURED);
            float[] measured = model.logits(pass, batch[0], SmallModel.LENGTHS).toFloats(device.stream());
            assertEquals(ProductPlan.MEASURED, pass.productPlan());
            assertArrayEquals(first, measured, device.provider() == Provider.REFERENCE ? 0 : 0.02f);
            assertThrown(NullPointerException.class, "plan: expected a value, got null", () -> pass.productPlan(null));
        }
    }

    @Test
    void explanationsNameThePlan() {
        try (Device device = Device.open();
                SmallModel model = SmallModel.plain(device, DType.FLOAT32);
                Pass pass = Pass.training(device)) {
            pass.begin(Sequences.packed(model.inputs, 5));
            Tensor x = pass.scope().tensor(DType.FLOAT32, 5, SmallModel.HIDDEN);
            String first = model.layers.explain(x, pass);
            assertTrue(first.contains("ops_matrix_product, the first kernel of cuBLASLt's heuristic"), first);
            pass.productPlan(ProductPlan.MEASURED);
            String measured = model.layers.explain(x, pass);
            assertTrue(measured.contains("the fastest of cuBLASLt's kernels, as measured"), measured);
        }
    }

    @Test
    void aHeadWithoutBackwardIsNamed() {
        try (Device device = Device.open();
                SmallModel model = SmallModel.plain(device, DType.FLOAT32);
                Pass pass = Pass.training(device)) {
            SharedInput trunk = new SharedInput("trunk");
            Layer other = new ActivationLayer("other head", dev.chagres.te.Activation.SILU);
            pass.begin(Sequences.packed(model.inputs, 5));
            int[][] batch = SmallModel.batch(1, 5);
            Tensor x = model.embedding.forward(model.ints(pass.scope(), batch[0]), pass);
            Tensor h = trunk.forward(model.layers.forward(x, pass), pass);
            other.forward(h, pass);
            Tensor scores = model.head.forward(h, pass);
            Tensor dscores = pass.scope().like(scores);
            dscores.zero(device.stream());
            trunk.backward(model.head, dscores, pass);
            assertEquals(
                    "backward of trunk was called, but the last forward was of other head; call backward in the reverse order"
                            + " of forward",
                    refusal(() -> trunk.backward(pass)));
        }
    }

    @Test
    void callsOutsideAMicroBatchAreRefused() {
        try (Device device = Device.open();
                SmallModel model = SmallModel.plain(device, DType.FLOAT32)) {
            Pass pass = Pass.training(device);
            Tensor x = model.inputs.tensor(DType.FLOAT32, 5, SmallModel.HIDDEN);
            assertEquals(
                    "layers: the pass was not begun; call pass.begin() or begin(sequences) first",
                    refusal(() -> model.layers.forward(x, pass)));
            pass.begin();
            assertEquals(
                    "the pass has no sequences: call begin(sequences) or sequences(…) before a layer that attends",
                    refusal(() -> model.layers.forward(x, pass)));
            assertEquals(
                    "backward of layers was called, but no forward call waits for its backward; call forward first, while the"
                            + " pass saves",
                    refusal(() -> model.layers.backward(x, pass)));
            pass.close();
            pass.close();
            assertEquals(
                    "the training pass on stream of device 0 is closed; make another with Pass.training(stream)",
                    refusal(() -> model.layers.forward(x, pass)));
        }
    }

    @Test
    void sequencesOfThePassItselfAreMadeAfterItBegan() {
        try (Device device = Device.open();
                Pass pass = Pass.training(device).begin()) {
            Sequences own = Sequences.packed(pass.scope(), 5);
            assertEquals(
                    "sequences: their offsets were in the pass's memory, which begin() has reused; call pass.begin()"
                            + " first, then pass.sequences(…) with those of pass.scope()",
                    refusal(() -> pass.begin(own)));
            pass.begin();
            pass.sequences(Sequences.packed(pass.scope(), 5));
            assertEquals(5, pass.sequences().tokens());
        }
    }

    /** The head's gradients are written when a call below it is refused; the next micro-batch begins without them. */
    @Test
    void gradientsOfARefusedMicroBatchAreForgotten() {
        for (String refused : List.of("nothing", "wrong dy", "null", "wrong order", "repeated")) {
            try (Device device = Device.open();
                    SmallModel model = SmallModel.plain(device, DType.FLOAT32);
                    Pass pass = Pass.training(device)) {
                int[][] batch = SmallModel.batch(3, SmallModel.LENGTHS);
                model.logits(pass, batch[0], SmallModel.LENGTHS);
                if (!refused.equals("nothing")) {
                    Tensor scores = model.logits(pass, batch[0], SmallModel.LENGTHS);
                    Tensor dy = model.head.backward(scores, pass);
                    switch (refused) {
                        case "wrong dy" ->
                            assertThrows(
                                    RuntimeException.class,
                                    () -> model.layers.backward(pass.scope().tensor(DType.FLOAT32, 3, 32), pass));
                        case "wrong order" ->
                            assertThrows(RuntimeException.class, () -> model.embedding.backward(dy, pass));
                        case "repeated" -> {
                            assertThrows(
                                    RuntimeException.class,
                                    () -> model.layers.backward(pass.scope().tensor(DType.FLOAT32, 3, 32), pass));
                            model.embedding.backward(model.layers.backward(dy, pass), pass);
                        }
                        default -> assertThrows(NullPointerException.class, () -> model.layers.backward(null, pass));
                    }
                }
                pass.begin();
                boolean kept = model.parameters.all().stream()
                        .anyMatch(parameter -> parameter.name().startsWith("head") && parameter.hasGradient());
                assertEquals(refused.equals("repeated"), kept, refused);
            }
        }
    }

    @Test
    void whatThePassHandedOutDiesWhenItBeginsAgain() {
        try (Device device = Device.open();
                SmallModel model = SmallModel.plain(device, DType.FLOAT32);
                Pass pass = Pass.training(device)) {
            int[][] batch = SmallModel.batch(3, SmallModel.LENGTHS);
            Tensor scores = model.logits(pass, batch[0], SmallModel.LENGTHS);
            assertTrue(scores.isLive());
            pass.begin();
            assertFalse(scores.isLive());
            assertEquals(
                    "tensor FLOAT32[25, 24] of scope of device 0 is closed: the scope was restarted since",
                    refusal(() -> scores.toFloats(device.stream())));
        }
    }

    /** An input in a scope of the user's that is restarted before backward. */
    @Test
    void anInputThatLostItsMemoryIsNoticed() {
        try (Device device = Device.open();
                SmallModel model = SmallModel.plain(device, DType.FLOAT32);
                Pass pass = Pass.training(device);
                Scope own = device.openScope()) {
            Tensor x = own.tensor(DType.FLOAT32, 5, SmallModel.HIDDEN);
            x.zero(device.stream());
            pass.begin(Sequences.packed(model.inputs, 5));
            Tensor y = model.layers.forward(x, pass);
            own.restart();
            own.tensor(DType.FLOAT32, 5, SmallModel.HIDDEN);
            assertEquals(
                    "the input has lost its memory since forward: its scope was restarted or closed; run forward again",
                    refusal(() -> model.layers.backward(y, pass)));
        }
    }

    @Test
    void aHeadWithoutSavingKeepsNothing() {
        try (Device device = Device.open();
                SmallModel model = SmallModel.plain(device, DType.FLOAT32);
                Pass pass = Pass.training(device)) {
            int[][] batch = SmallModel.batch(3, SmallModel.LENGTHS);
            SmallModel.Step expected = model.step(pass);
            model.parameters.forgetGradients();
            pass.begin();
            pass.sequences(Sequences.packed(pass.scope(), SmallModel.LENGTHS));
            Tensor x = model.embedding.forward(model.ints(pass.scope(), batch[0]), pass);
            Tensor h = model.layers.forward(x, pass);
            try (Pass.SavingSwitch off = pass.withoutSaving()) {
                assertFalse(pass.isSaving());
                assertArrayEquals(expected.logits(), model.head.forward(h, pass).toFloats(device.stream()));
                assertEquals(
                        "saving is switched off already; close what withoutSaving returned first",
                        refusal(pass::withoutSaving));
            }
            assertTrue(pass.isSaving());
            model.crossEntropy.forward(model.head.forward(h, pass), model.ints(pass.scope(), batch[1]), pass);
            model.backward(pass);
            List<float[]> actual = model.gradients();
            for (int i = 0; i < actual.size(); i++) {
                assertArrayEquals(expected.gradients().get(i), actual.get(i));
            }
        }
    }

    /** A refused call leaves the pass as it was. */
    @Test
    void badInputLosesNothing() {
        try (Device device = Device.open();
                SmallModel model = SmallModel.plain(device, DType.FLOAT32);
                Pass pass = Pass.training(device)) {
            SmallModel.Step expected = model.step(pass);
            model.parameters.forgetGradients();
            int[][] batch = SmallModel.batch(3, SmallModel.LENGTHS);
            Tensor scores = model.logits(pass, batch[0], SmallModel.LENGTHS);
            Tensor narrow = pass.scope().tensor(DType.FLOAT32, 25, 8);
            Tensor few = pass.scope().tensor(DType.FLOAT32, 3, SmallModel.HIDDEN);
            assertThrows(IllegalArgumentException.class, () -> model.head.forward(narrow, pass));
            assertThrows(IllegalArgumentException.class, () -> model.layers.forward(few, pass));
            assertThrows(IllegalArgumentException.class, () -> model.head.backward(narrow, pass));
            assertThrows(NullPointerException.class, () -> model.head.forward(null, pass));
            model.crossEntropy.forward(scores, model.ints(pass.scope(), batch[1]), pass);
            assertThrows(IllegalArgumentException.class, () -> model.crossEntropy.backward(Float.NaN, pass));
            model.backward(pass);
            List<float[]> actual = model.gradients();
            for (int i = 0; i < actual.size(); i++) {
                assertArrayEquals(expected.gradients().get(i), actual.get(i));
            }
        }
    }

    @Test
    void seedStepAndMicroBatchFixTheDraws() {
        try (Device device = Device.open();
                SmallModel model = new SmallModel(device, DType.FLOAT32, 0.3f, layer -> layer, plan -> {});
                Pass pass = Pass.training(device)) {
            float[] first = seeded(model, pass, 1, 2, 3);
            assertArrayEquals(first, seeded(model, pass, 1, 2, 3));
            assertFalse(Arrays.equals(first, seeded(model, pass, 2, 2, 3)));
            assertFalse(Arrays.equals(first, seeded(model, pass, 1, 3, 3)));
            assertFalse(Arrays.equals(first, seeded(model, pass, 1, 2, 4)));
        }
    }

    private static float[] seeded(SmallModel model, Pass pass, long seed, long step, long microBatch) {
        pass.begin(Sequences.packed(model.inputs, 8));
        pass.seed(seed, step, microBatch);
        int[][] batch = SmallModel.batch(1, 8);
        Tensor x = model.embedding.forward(model.ints(pass.scope(), batch[0]), pass);
        return model.layers.forward(x, pass).toFloats(model.device.stream());
    }

    @Test
    void observersHearEveryLayerAndTheBytesItKeeps() {
        try (Device device = Device.open();
                SmallModel model = SmallModel.plain(device, DType.FLOAT32);
                Pass pass = Pass.training(device)) {
            List<String> heard = new ArrayList<>();
            long[] bytes = {0};
            PassObserver observer = new PassObserver() {
                @Override
                public void entering(Layer layer, Direction direction, Pass p) {
                    heard.add("> " + layer.name() + " " + direction);
                }

                @Override
                public void left(Layer layer, Direction direction, Pass p, long keptBytes) {
                    heard.add("< " + layer.name() + " " + direction);
                    bytes[0] += layer == model.layers ? keptBytes : 0;
                }
            };
            pass.observe(observer);
            model.step(pass);
            assertEquals("> layers FORWARD", heard.get(0));
            assertEquals("> layers.0 FORWARD", heard.get(1));
            assertTrue(heard.contains("> layers.3 BACKWARD"));
            assertTrue(bytes[0] > 0);
            int count = heard.size();
            pass.forget(observer);
            model.parameters.forgetGradients();
            model.step(pass);
            assertEquals(count, heard.size());
        }
    }

    @Test
    void aClosedPassIsNamed() {
        try (Device device = Device.open()) {
            Pass training = Pass.training(device);
            Pass evaluation = Pass.evaluation(device);
            training.begin();
            training.close();
            evaluation.close();
            String text = "the training pass on stream of device 0 is closed; make another with Pass.training(stream)";
            assertThrown(IllegalStateException.class, text, training::begin);
            assertThrown(IllegalStateException.class, text, training::end);
            assertThrown(IllegalStateException.class, text, () -> training.seed(1, 2, 3));
            assertThrown(
                    IllegalStateException.class,
                    "the evaluation pass on stream of device 0 is closed; make another with Pass.evaluation(stream)",
                    evaluation::begin);
        }
    }
}
