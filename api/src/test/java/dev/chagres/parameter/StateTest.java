package dev.chagres.parameter;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.CrossEntropy;
import dev.chagres.layer.Dropout;
import dev.chagres.layer.Embedding;
import dev.chagres.layer.Linear;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.pass.Pass;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.function.Consumer;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** What must be saved to go on exactly, and that it is enough. */
@Tag("L0")
@Tag("L1")
class StateTest {
    private static final int VOCABULARY = 16;
    private static final int HIDDEN = 32;
    private static final int TOKENS = 24;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /** A small model that trains, with dropout and clipped gradients. */
    private static final class Training implements AutoCloseable {
        private final Device device;
        private final Embedding embedding;
        private final TransformerLayer layer;
        private final Linear head;
        private final CrossEntropy crossEntropy = new CrossEntropy(VOCABULARY);
        private final Parameters parameters;
        private final AdamW optimizer;
        private final GradientNorm norm;
        private final Pass pass;

        Training(Device device, DType dtype, long seed, Consumer<ModelPlan> change) {
            this.device = device;
            ModelPlan plan = new ModelPlan();
            Initializer weights = Initializer.normal(0.1f);
            embedding = new Embedding(VOCABULARY, HIDDEN, weights, plan.group("embedding"));
            layer = new TransformerLayer(
                    TransformerLayerConfig.encoder(HIDDEN, AttentionConfig.of(2, 16, AttentionMask.none()))
                            .withHiddenDropout(Dropout.of(0.1f)),
                    plan.group("layers.0"));
            head = Linear.tied(embedding.weight(), plan.group("head"));
            plan.declareAs(DType.FLOAT32, "temperature", Initializer.ones(), 5);
            change.accept(plan);
            parameters = Parameters.allocate(device, plan, dtype, seed);
            optimizer = new AdamW(parameters, AdamW.Config.standard());
            norm = new GradientNorm(parameters, 1);
            pass = Pass.training(device);
        }

        State state() {
            return State.of(parameters.state(), optimizer.state());
        }

        /** Takes the step that the number of steps names, and returns the loss. */
        float step() {
            long step = parameters.step();
            SplittableRandom random = new SplittableRandom(step);
            pass.begin();
            pass.seed(77, step, 0);
            pass.sequences(Sequences.packed(pass.scope(), 7, 12, 5));
            Tensor ids = pass.scope().tensor(DType.INT32, TOKENS);
            Tensor labels = pass.scope().like(ids);
            ids.set(device.stream(), random.ints(TOKENS, 0, VOCABULARY).toArray());
            labels.set(device.stream(), random.ints(TOKENS, -2, VOCABULARY).toArray());
            Tensor logits = head.forward(layer.forward(embedding.forward(ids, pass), pass), pass);
            float loss = crossEntropy.forward(logits, labels, pass).toFloats(device.stream())[0];
            embedding.backward(layer.backward(head.backward(crossEntropy.backward(pass), pass), pass), pass);
            norm.compute();
            optimizer.step(1e-2f, norm);
            return loss;
        }

        @Override
        public void close() {
            pass.close();
            optimizer.close();
            parameters.close();
        }
    }

    private static Map<String, float[]> save(State state) {
        Map<String, float[]> saved = new LinkedHashMap<>();
        state.tensors().forEach((name, tensor) -> saved.put(name, open.read(tensor)));
        return saved;
    }

    private static Map<String, Long> saveNumbers(State state) {
        Map<String, Long> saved = new LinkedHashMap<>();
        state.numbers()
                .forEach((name, number) -> saved.put(name, number.reader().getAsLong()));
        return saved;
    }

    private static void load(State state, Map<String, float[]> tensors, Map<String, Long> numbers) {
        assertEquals(List.copyOf(tensors.keySet()), List.copyOf(state.tensors().keySet()));
        state.tensors().forEach((name, tensor) -> tensor.set(open.stream(), tensors.get(name)));
        state.numbers().forEach((name, number) -> number.writer().accept(numbers.get(name)));
        state.loaded();
    }

    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void loadedInMidRunItGoesOnWithTheSameBits(DType dtype) {
        goOn(dtype, plan -> {}, Training::state);
    }

    /** The optimizer's part may come first: what it loads is not taken from rounded weights again. */
    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "BFLOAT16"})
    void theOrderOfPartsDoesNotMatter(DType dtype) {
        goOn(dtype, plan -> {}, training -> State.of(training.optimizer.state(), training.parameters.state()));
    }

    @Test
    void frozenWeightsAreSavedAndHaveNoMoments() {
        goOn(DType.BFLOAT16, plan -> plan.child("layers.0").child("mlp").freeze(), training -> {
            State state = training.state();
            assertEquals(true, state.tensors().containsKey("layers.0.mlp.fc1.weight"));
            assertEquals(false, state.tensors().containsKey("layers.0.mlp.fc1.weight.exp_avg"));
            assertEquals(false, state.tensors().containsKey("layers.0.mlp.fc1.weight.master"));
            return state;
        });
    }

    private interface Saving {
        State of(Training training);
    }

    private static void goOn(DType dtype, Consumer<ModelPlan> change, Saving saving) {
        Map<String, float[]> tensors;
        Map<String, Long> numbers;
        List<Float> losses = new ArrayList<>();
        Map<String, float[]> last;
        try (Training training = new Training(open.device(), dtype, 1, change)) {
            for (int i = 0; i < 5; i++) {
                training.step();
            }
            tensors = save(saving.of(training));
            numbers = saveNumbers(saving.of(training));
            for (int i = 0; i < 4; i++) {
                losses.add(training.step());
            }
            last = save(saving.of(training));
        }
        assertEquals(5, numbers.get("step"));
        assertEquals(5, numbers.get("optimizer.step"));
        try (Training fresh = new Training(open.device(), dtype, 2, change)) {
            // What it has done before leaves no trace, not even half a step.
            fresh.step();
            fresh.step();
            fresh.parameters.all().stream().filter(p -> !p.isFrozen()).forEach(Parameter::nextGradient);
            load(saving.of(fresh), tensors, numbers);
            for (float loss : losses) {
                assertEquals(loss, fresh.step());
            }
            Map<String, float[]> actual = save(saving.of(fresh));
            last.forEach((name, values) -> assertArrayEquals(values, actual.get(name), name));
            assertEquals(9, fresh.parameters.step());
            assertEquals(9, fresh.optimizer.step());
        }
        // The masters matter: without them the weights go on from what was rounded.
        if (dtype != DType.FLOAT32) {
            try (Training fresh = new Training(open.device(), dtype, 2, change)) {
                load(saving.of(fresh), tensors, numbers);
                fresh.parameters.changed();
                for (int i = 0; i < 4; i++) {
                    fresh.step();
                }
                assertNotEquals(
                        java.util.Arrays.hashCode(last.get("head.bias.master")),
                        java.util.Arrays.hashCode(save(saving.of(fresh)).get("head.bias.master")));
            }
        }
    }

    @Test
    void namesAreThoseOfTheParameters() {
        ModelPlan plan = new ModelPlan();
        plan.child("a").declare("weight", Initializer.ones(), 2, 3);
        plan.declareAs(DType.FLOAT32, "norm", Initializer.ones(), 4);
        plan.declare("frozen", Initializer.ones(), 5).freeze();
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.BFLOAT16, 1);
                AdamW optimizer = new AdamW(parameters, AdamW.Config.standard())) {
            State weights = parameters.state();
            assertEquals(
                    List.of("a.weight", "norm", "frozen"),
                    List.copyOf(weights.tensors().keySet()));
            assertSame(parameters.get("a.weight").weight(), weights.tensors().get("a.weight"));
            assertEquals(List.of("step"), List.copyOf(weights.numbers().keySet()));
            State state = optimizer.state();
            assertEquals("""
                    a.weight.master Tensor FLOAT32[2, 3]
                    a.weight.exp_avg Tensor FLOAT32[2, 3]
                    a.weight.exp_avg_sq Tensor FLOAT32[2, 3]
                    norm.exp_avg Tensor FLOAT32[4]
                    norm.exp_avg_sq Tensor FLOAT32[4]
                    optimizer.step 0
                    """, state.toString());
            parameters.nextStep();
            assertEquals(1, weights.numbers().get("step").reader().getAsLong(), "numbers are read when asked");
            assertEquals(5 + 3 + 2 - 2, State.of(weights, state).tensors().size());
            assertThrown(
                    IllegalArgumentException.class,
                    "name: expected one of its own, got a.weight a second time",
                    () -> State.of(weights, parameters.state()));
            assertThrows(
                    UnsupportedOperationException.class, () -> weights.tensors().clear());
            assertThrows(
                    UnsupportedOperationException.class, () -> weights.numbers().clear());
        }
    }

    @Test
    void aNameIsTakenOnceAndActionsRunInTheirOrder() {
        Tensor tensor = open.scope().tensor(DType.FLOAT32, 3);
        long[] number = {4};
        List<String> done = new ArrayList<>();
        State.Builder builder = new State.Builder()
                .tensor("x", tensor)
                .number("n", () -> number[0], value -> number[0] = value, 9)
                .lastAfterLoading(() -> done.add("last"))
                .afterLoading(() -> done.add("first"))
                .afterLoading(() -> done.add("second"));
        String text = "name: expected one of its own, got %s a second time";
        assertThrown(
                IllegalArgumentException.class,
                text.formatted("x"),
                () -> builder.number("x", () -> 1, value -> {}, 9));
        assertThrown(IllegalArgumentException.class, text.formatted("n"), () -> builder.tensor("n", tensor));
        assertThrown(NullPointerException.class, "tensor: expected a value, got null", () -> builder.tensor("y", null));
        assertThrown(
                NullPointerException.class, "name: expected a value, got null", () -> builder.tensor(null, tensor));
        assertThrown(
                NullPointerException.class,
                "reader: expected a value, got null",
                () -> builder.number("y", null, value -> {}, 9));
        assertThrown(
                IllegalArgumentException.class,
                "may: expected ANY for a tensor of INT32, got POSITIVE",
                () -> builder.tensor("y", open.scope().tensor(DType.INT32, 3), State.Values.POSITIVE));
        assertThrown(
                NullPointerException.class, "may: expected a value, got null", () -> builder.tensor("y", tensor, null));
        State state = builder.build();
        assertEquals(State.Values.ANY, state.values("x"));
        assertThrown(IllegalArgumentException.class, "name: expected that of a tensor, got n", () -> state.values("n"));
        assertEquals("x Tensor FLOAT32[3]\nn 4\n", state.toString());
        state.numbers().get("n").writer().accept(9);
        assertEquals(9, number[0]);
        assertEquals(List.of(), done);
        state.loaded();
        assertEquals(List.of("first", "second", "last"), done);
        done.clear();
        State.of(
                        state,
                        new State.Builder()
                                .afterLoading(() -> done.add("other"))
                                .build())
                .loaded();
        assertEquals(List.of("first", "second", "other", "last"), done, "what is last waits for every part");
    }
}
