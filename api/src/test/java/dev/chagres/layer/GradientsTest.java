package dev.chagres.layer;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Recomputed;
import dev.chagres.sharding.SmallModel;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.Consumer;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Gradients know their step: micro-batches, tied and frozen parameters, abandoned steps. */
@Tag("L0")
@Tag("L1")
class GradientsTest {
    private static final UnaryOperator<Layer> PLAIN = UnaryOperator.identity();

    /** Four micro-batches with unequal numbers of labels equal one batch. */
    @Test
    void microBatchesAddUpToTheMeanOfAllLabelledTokens() {
        int[][] lengths = {{7, 1}, {12}, {5, 9}, {2, 3}};
        int[][][] parts = new int[4][][];
        int[] allLengths = new int[7];
        int[][] whole = {new int[39], new int[39]};
        int sequence = 0;
        int token = 0;
        for (int i = 0; i < 4; i++) {
            parts[i] = SmallModel.batch(i, lengths[i]);
            for (int length : lengths[i]) {
                allLengths[sequence++] = length;
            }
            for (int side = 0; side < 2; side++) {
                System.arraycopy(parts[i][side], 0, whole[side], token, parts[i][side].length);
            }
            token += parts[i][0].length;
        }
        int labelled = (int) Arrays.stream(whole[1]).filter(label -> label >= 0).count();
        try (Device device = Device.open();
                SmallModel model = SmallModel.plain(device, DType.FLOAT32);
                Pass pass = Pass.training(device)) {
            Tensor scores = model.logits(pass, whole[0], allLengths);
            Tensor loss = model.crossEntropy.forward(scores, model.ints(pass.scope(), whole[1]), pass);
            float expectedLoss = loss.toFloats(device.stream())[0];
            model.backward(pass);
            List<float[]> expected = model.gradients();
            model.parameters.forgetGradients();

            Tensor all = model.ints(model.inputs, labelled);
            float sum = 0;
            for (int i = 0; i < 4; i++) {
                Tensor part = model.logits(pass, parts[i][0], lengths[i]);
                Tensor share = model.crossEntropy.forward(part, model.ints(pass.scope(), parts[i][1]), all, pass);
                sum += share.toFloats(device.stream())[0];
                model.backward(pass);
            }
            assertEquals(expectedLoss, sum, 1e-6 * expectedLoss);
            assertClose(expected, model.gradients(), tolerance());
        }
    }

    /** TF32 products on a GPU group the sums otherwise. */
    private static double tolerance() {
        return dev.chagres.bindings.Provider.current() == dev.chagres.bindings.Provider.CUDA ? 3e-3 : 1e-6;
    }

    private static void assertClose(List<float[]> expected, List<float[]> actual, double tolerance) {
        double difference = 0;
        double square = 0;
        for (int i = 0; i < expected.size(); i++) {
            for (int j = 0; j < expected.get(i).length; j++) {
                difference += Math.pow(expected.get(i)[j] - actual.get(i)[j], 2);
                square += Math.pow(expected.get(i)[j], 2);
            }
        }
        assertTrue(square > 0);
        assertTrue(Math.sqrt(difference / square) < tolerance, "relative difference " + Math.sqrt(difference / square));
    }

    record Frozen(String what, Consumer<ModelPlan> freezing, List<String> prefixes) {
        @Override
        public String toString() {
            return what;
        }
    }

    static List<Frozen> frozen() {
        return List.of(
                new Frozen(
                        "the bottom",
                        plan -> freeze(plan, "embedding", "layers.0", "layers.1"),
                        List.of("embedding", "layers.0", "layers.1")),
                new Frozen("the middle", plan -> freeze(plan, "layers.1", "layers.2"), List.of("layers.1", "layers.2")),
                new Frozen(
                        "norms",
                        plan -> plan.parameters().stream()
                                .filter(p -> p.name().contains("norm"))
                                .forEach(Parameter::freeze),
                        List.of("*norm")),
                new Frozen(
                        "attention",
                        plan -> plan.parameters().stream()
                                .filter(p -> p.name().contains("attention"))
                                .forEach(Parameter::freeze),
                        List.of("*attention")),
                new Frozen("everything", ModelPlan::freeze, List.of("")));
    }

    private static void freeze(ModelPlan plan, String... names) {
        for (String name : names) {
            plan.child(name).freeze();
        }
    }

    private static boolean isFrozen(Frozen frozen, String name) {
        return frozen.prefixes.stream()
                .anyMatch(prefix ->
                        prefix.startsWith("*") ? name.contains(prefix.substring(1)) : name.startsWith(prefix));
    }

    @ParameterizedTest
    @MethodSource("frozen")
    void whatIsNotFrozenHasTheSameGradients(Frozen frozen) {
        for (UnaryOperator<Layer> wrapper : List.<UnaryOperator<Layer>>of(PLAIN, Recomputed::new)) {
            try (Device device = Device.open();
                    SmallModel all = SmallModel.plain(device, DType.FLOAT32);
                    SmallModel some = new SmallModel(device, DType.FLOAT32, 0, wrapper, frozen.freezing);
                    Pass pass = Pass.training(device)) {
                SmallModel.Step expected = all.step(pass);
                long keptByAll = pass.scope().usedBytes();
                SmallModel.Step actual = some.step(pass);
                assertArrayEquals(expected.logits(), actual.logits());
                assertTrue(some.parameters.gradients().count()
                        < all.parameters.gradients().count());
                int compared = 0;
                for (int i = 0; i < expected.gradients().size(); i++) {
                    Parameter parameter = all.parameters.all().get(i);
                    float[] gradient = actual.gradients().get(i);
                    if (isFrozen(frozen, parameter.name())) {
                        assertEquals(0, gradient.length, parameter.name());
                    } else {
                        assertArrayEquals(expected.gradients().get(i), gradient, parameter.name());
                        compared++;
                    }
                }
                assertEquals(frozen.what.equals("everything"), compared == 0);
                if (frozen.what.equals("the bottom") || frozen.what.equals("everything")) {
                    assertTrue(pass.scope().usedBytes() < keptByAll, "what learns nothing keeps nothing");
                }
            }
        }
    }

    @Test
    void aFrozenParameterRefusesItsGradientByName() {
        try (Device device = Device.open();
                SmallModel model = new SmallModel(
                        device,
                        DType.FLOAT32,
                        0,
                        PLAIN,
                        plan -> plan.child("embedding").freeze())) {
            Parameter table = model.embedding.weight();
            assertEquals(
                    "parameter embedding.weight is frozen: it has no gradient",
                    assertThrows(IllegalStateException.class, table::gradient).getMessage());
            assertEquals(
                    "parameter embedding.weight has memory already: freeze it before Parameters.allocate, which lays the"
                            + " gradients out",
                    assertThrows(IllegalStateException.class, table::freeze).getMessage());
        }
    }

    /** The decoder's weight is the embedding's table: freezing the decoder's bias leaves the table's two shares. */
    @Test
    void aTiedWeightHasBothShares() {
        try (Device device = Device.open();
                SmallModel tied = SmallModel.plain(device, DType.FLOAT32);
                SmallModel halfFrozen = new SmallModel(
                        device,
                        DType.FLOAT32,
                        0,
                        PLAIN,
                        plan -> plan.child("head").child("decoder").freeze());
                Pass pass = Pass.training(device)) {
            tied.step(pass);
            halfFrozen.step(pass);
            float[] expected = tied.embedding.weight().gradient().toFloats(device.stream());
            float[] actual = halfFrozen.embedding.weight().gradient().toFloats(device.stream());
            for (int i = 0; i < expected.length; i++) {
                assertEquals(expected[i], actual[i], 1e-5, "element " + i);
            }
        }
    }

    @Test
    void anUntouchedParameterHasGradientZeroAndStillDecays() {
        try (Device device = Device.open();
                SmallModel model = SmallModel.plain(device, DType.FLOAT32);
                AdamW optimizer = new AdamW(model.parameters, AdamW.Config.standard());
                Pass pass = Pass.training(device)) {
            GradientNorm norm = new GradientNorm(model.parameters, 1);
            Parameter untouched = model.parameters.get("layers.2.mlp.fc1.weight");
            model.step(pass);
            norm.compute();
            optimizer.step(1e-3f, norm);
            float[] before = untouched.weight().toFloats(device.stream());
            // A step that leaves the layers out.
            int[][] batch = SmallModel.batch(5, 6);
            pass.begin(Sequences.packed(model.inputs, 6));
            Tensor x = model.embedding.forward(model.ints(pass.scope(), batch[0]), pass);
            model.crossEntropy.forward(model.head.forward(x, pass), model.ints(pass.scope(), batch[1]), pass);
            model.embedding.backward(model.head.backward(model.crossEntropy.backward(pass), pass), pass);
            assertFalse(untouched.hasGradient());
            norm.compute();
            for (float value : untouched.gradient().toFloats(device.stream())) {
                assertEquals(0, value);
            }
            optimizer.step(1e-3f, norm);
            float[] after = untouched.weight().toFloats(device.stream());
            assertFalse(Arrays.equals(before, after), "momentum and decay move it");
            assertEquals(2, model.parameters.step());
        }
    }

    private static void assertEqualGradients(List<float[]> expected, List<float[]> actual) {
        for (int i = 0; i < expected.size(); i++) {
            assertArrayEquals(expected.get(i), actual.get(i), "gradient " + i);
        }
    }

    /** A backward call that fails leaves nothing of its step behind. */
    @Test
    void aFailedStepIsForgottenWhenThePassBeginsAgain() {
        try (Device device = Device.open();
                SmallModel model = SmallModel.plain(device, DType.FLOAT32);
                Pass pass = Pass.training(device)) {
            List<float[]> expected = model.step(pass).gradients();
            model.parameters.nextStep();
            Layer failing = new Layer("failing") {
                @Override
                protected void run(Tensor x, Tensor y, Pass p) {
                    y.copyFrom(p.stream(), x);
                }

                @Override
                protected void gradient(Tensor dy, Tensor dx, Pass p) {
                    throw new UnsupportedOperationException("on purpose");
                }
            };
            int[][] batch = SmallModel.batch(9, SmallModel.LENGTHS);
            pass.begin();
            pass.sequences(Sequences.packed(pass.scope(), SmallModel.LENGTHS));
            Tensor x = failing.forward(model.embedding.forward(model.ints(pass.scope(), batch[0]), pass), pass);
            Tensor scores = model.head.forward(model.layers.forward(x, pass), pass);
            model.crossEntropy.forward(scores, model.ints(pass.scope(), batch[1]), pass);
            Tensor dx = model.layers.backward(model.head.backward(model.crossEntropy.backward(pass), pass), pass);
            assertThrows(UnsupportedOperationException.class, () -> failing.backward(dx, pass));
            assertEquals(
                    "embedding: a backward call of this pass has failed, so its gradients are incomplete; call"
                            + " pass.begin(), which discards them, and repeat the step",
                    assertThrows(IllegalStateException.class, () -> model.embedding.backward(dx, pass))
                            .getMessage());
            List<float[]> actual = model.step(pass).gradients();
            assertEqualGradients(expected, actual);
        }
    }

    /** A look-up's backward that fails once it has begun, too. */
    @Test
    void aFailedLookUpIsForgottenWhenThePassBeginsAgain() {
        try (Device device = Device.open();
                SmallModel model = SmallModel.plain(device, DType.FLOAT32);
                Pass pass = Pass.training(device)) {
            List<float[]> expected = model.step(pass).gradients();
            model.parameters.nextStep();
            pass.begin();
            pass.sequences(Sequences.packed(pass.scope(), 2));
            model.embedding.forward(model.ints(pass.scope(), 1, 2), pass);
            Tensor gradient = model.embedding.weight().gradient();
            Tensor overlapping = pass.scope().view(gradient, 0, 2, gradient.size(1));
            assertThrows(IllegalArgumentException.class, () -> model.embedding.backward(overlapping, pass));
            assertEquals(
                    "embedding: a backward call of this pass has failed, so its gradients are incomplete; call"
                            + " pass.begin(), which discards them, and repeat the step",
                    assertThrows(
                                    IllegalStateException.class,
                                    () -> model.embedding.forward(model.ints(pass.scope(), 1, 2), pass))
                            .getMessage());
            pass.begin();
            assertFalse(model.embedding.weight().hasGradient());
            List<float[]> actual = model.step(pass).gradients();
            assertEqualGradients(expected, actual);
        }
    }

    @Test
    void twoPassesInterleavedEqualTwoInARow() {
        try (Device device = Device.open();
                SmallModel model = new SmallModel(device, DType.FLOAT32, 0.2f, PLAIN, plan -> {});
                Pass one = Pass.training(device);
                Pass other = Pass.training(device)) {
            int[][] first = SmallModel.batch(1, 9, 3);
            int[][] second = SmallModel.batch(2, 6);
            forward(model, one, first, 0, 9, 3);
            model.backward(one);
            forward(model, one, second, 1, 6);
            model.backward(one);
            List<float[]> expected = new ArrayList<>(model.gradients());
            model.parameters.forgetGradients();
            forward(model, one, first, 0, 9, 3);
            forward(model, other, second, 1, 6);
            model.backward(one);
            model.backward(other);
            List<float[]> actual = model.gradients();
            assertEqualGradients(expected, actual);
        }
    }

    /** All gradients of the micro-batch are there: one call too many takes none of them, nor those of micro-batches before. */
    @Test
    void aBackwardCallTooManyLosesNothing() {
        try (Device device = Device.open();
                SmallModel model = SmallModel.plain(device, DType.FLOAT32);
                Pass pass = Pass.training(device)) {
            int[][] batch = SmallModel.batch(1, 9, 3);
            List<List<float[]>> sums = new ArrayList<>();
            for (int callsTooMany = 0; callsTooMany < 2; callsTooMany++) {
                for (int microBatch = 0; microBatch < 2; microBatch++) {
                    forward(model, pass, batch, microBatch, 9, 3);
                    model.backward(pass);
                    for (int i = 0; i < callsTooMany; i++) {
                        Tensor dy = pass.scope().tensor(DType.FLOAT32, 12, SmallModel.HIDDEN);
                        assertThrows(IllegalStateException.class, () -> model.layers.backward(dy, pass));
                        assertThrows(IllegalStateException.class, () -> model.embedding.backward(dy, pass));
                        assertThrows(IllegalStateException.class, () -> model.crossEntropy.backward(pass));
                    }
                }
                sums.add(model.gradients());
                model.parameters.forgetGradients();
            }
            for (int i = 0; i < sums.getFirst().size(); i++) {
                assertArrayEquals(sums.get(0).get(i), sums.get(1).get(i), "gradient " + i);
            }
        }
    }

    private static void forward(SmallModel model, Pass pass, int[][] batch, int microBatch, int... lengths) {
        pass.begin();
        pass.seed(42, 7, microBatch);
        pass.sequences(Sequences.packed(pass.scope(), lengths));
        Tensor x = model.embedding.forward(model.ints(pass.scope(), batch[0]), pass);
        Tensor scores = model.head.forward(model.layers.forward(x, pass), pass);
        model.crossEntropy.forward(scores, model.ints(pass.scope(), batch[1]), pass);
    }
}
