package dev.chagres.recipe;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.chagres.DType;
import dev.chagres.Graph;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.bindings.CaptureException;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.layer.Linear;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.WeightStorage;
import dev.chagres.pass.Pass;
import java.util.Arrays;
import java.util.stream.Stream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Weights that a capture casts are cast at launches alone. */
@Tag("L0")
@Tag("L1")
class CapturedCastsTest {
    private static final int SIZE = 32;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    static Stream<Recipe> recipes() {
        return Stream.of(DelayedScaling.standard(), Float8CurrentScaling.standard(), Float8BlockScaling.standard());
    }

    static float[] waves(float factor) {
        float[] values = new float[SIZE * SIZE];
        for (int i = 0; i < values.length; i++) {
            values[i] = factor * (float) Math.sin(i);
        }
        return values;
    }

    /** A layer whose weights change, and what it computes. */
    private static final class Model implements AutoCloseable {
        private final ModelPlan plan = new ModelPlan();
        private final Linear layer = new Linear(SIZE, SIZE, Initializer.normal(0.5f), plan.group("layer"));
        private final Parameters parameters = Parameters.allocate(open.device(), plan, DType.BFLOAT16, 1);
        private final Quantizers quantizers;
        private final Pass pass = Pass.training(open.device());
        private final Scope scope = open.device().openScope();
        private final Tensor x = scope.tensor(DType.BFLOAT16, SIZE, SIZE);

        Model(Recipe recipe) {
            quantizers = Quantizers.allocate(parameters, recipe);
            pass.autocast(quantizers);
            x.set(open.stream(), waves(1));
        }

        private float[] forward() {
            return layer.forward(x, pass.begin()).toFloats(open.stream());
        }

        private void change(float factor) {
            layer.weight().weight().set(open.stream(), waves(factor));
            parameters.changed();
        }

        @Override
        public void close() {
            scope.close();
            pass.close();
            quantizers.close();
            parameters.close();
        }
    }

    @ParameterizedTest
    @MethodSource("recipes")
    void aCaptureThatFailsLeavesNoCast(Recipe recipe) {
        try (Model model = new Model(recipe)) {
            float[] before = model.forward();
            model.change(0.3f);
            model.pass.end();
            IllegalStateException stop = new IllegalStateException("stop");
            assertSame(
                    stop,
                    assertThrows(
                            IllegalStateException.class,
                            () -> open.stream().capture(() -> {
                                model.layer.forward(model.x, model.pass.begin());
                                throw stop;
                            })));
            float[] actual = model.forward();
            model.parameters.changed(); // casts all anew
            assertArrayEquals(model.forward(), actual);
            assertFalse(Arrays.equals(before, actual));
        }
    }

    /** Before the first launch there is no cast, and after it one of what the weights were then. */
    @ParameterizedTest
    @MethodSource("recipes")
    void whatAGraphCastsIsOfItsLaunches(Recipe recipe) {
        try (Model model = new Model(recipe)) {
            model.forward();
            model.change(0.3f);
            Tensor y = model.scope.tensor(DType.BFLOAT16, SIZE, SIZE);
            model.pass.end();
            try (Graph graph = open.stream()
                    .capture(() -> y.copyFrom(open.stream(), model.layer.forward(model.x, model.pass.begin())))) {
                float[] actual = model.forward();
                model.parameters.changed();
                float[] expected = model.forward();
                assertArrayEquals(expected, actual);
                graph.launch();
                assertArrayEquals(expected, y.toFloats(open.stream()));
                model.change(-0.7f);
                graph.launch();
                float[] launched = y.toFloats(open.stream());
                assertArrayEquals(model.forward(), launched);
                assertFalse(Arrays.equals(expected, launched));
            }
        }
    }

    /** Two layers whose weights are in eight bits alone, and whose biases are trained: backward reads the second one's transpose. */
    private static final class Frozen implements AutoCloseable {
        private final ModelPlan plan = new ModelPlan();
        private final Linear first = new Linear(SIZE, SIZE, Initializer.normal(0.5f), plan.group("first"));
        private final Linear second = new Linear(SIZE, SIZE, Initializer.normal(0.5f), plan.group("second"));
        private final Parameters parameters;
        private final Quantizers quantizers;
        private final Pass pass = Pass.training(open.device());
        private final Scope scope = open.device().openScope();
        private final Tensor x = scope.tensor(DType.BFLOAT16, SIZE, SIZE);

        Frozen() {
            first.weight().freeze();
            second.weight().freeze();
            parameters = Parameters.allocate(open.device(), plan, DType.BFLOAT16, 1, WeightStorage.QUANTIZED_ONLY);
            quantizers = Quantizers.allocate(parameters, Float8CurrentScaling.standard());
            x.set(open.stream(), waves(1));
        }

        private void step(Pass in) {
            in.autocast(quantizers);
            in.begin();
            second.forward(first.forward(x, in), in);
            first.backward(second.backward(x, in), in);
        }

        private float[] gradients() {
            step(pass);
            return parameters.gradients().toFloats(open.stream());
        }

        @Override
        public void close() {
            scope.close();
            pass.close();
            quantizers.close();
            parameters.close();
        }
    }

    @Test
    void aTransposeIsMadeBeforeACapture() {
        float[] expected;
        try (Frozen model = new Frozen()) {
            expected = model.gradients();
        }
        try (Frozen model = new Frozen();
                Frozen other = new Frozen()) {
            other.step(model.pass); // so that it has memory
            model.pass.end();
            assertThrown(
                    CaptureException.class,
                    "second.weight: expected a backward call before the capture, for the first one makes the transpose"
                            + " that all read; run the same work once before the capture",
                    () -> open.stream().capture(() -> model.step(model.pass)));
            assertArrayEquals(expected, model.gradients());
        }
    }

    /** The micro-batch began, and the weight was cast, before the capture: the graph casts it all the same. */
    @ParameterizedTest
    @MethodSource("recipes")
    void aGraphCastsWhatWasCastBeforeItsCapture(Recipe recipe) {
        try (Model model = new Model(recipe)) {
            Pass evaluation = Pass.evaluation(open.device());
            evaluation.autocast(model.quantizers);
            Tensor y = model.scope.tensor(DType.BFLOAT16, SIZE, SIZE);
            evaluation.begin();
            model.layer.forward(model.x, evaluation);
            model.layer.forward(model.x, evaluation);
            evaluation.end();
            evaluation.begin();
            model.layer.forward(model.x, evaluation);
            try (Graph graph =
                    open.stream().capture(() -> y.copyFrom(open.stream(), model.layer.forward(model.x, evaluation)))) {
                model.change(0.3f);
                graph.launch();
                float[] launched = y.toFloats(open.stream());
                assertArrayEquals(
                        model.layer.forward(model.x, evaluation.begin()).toFloats(open.stream()), launched);
            }
            evaluation.close();
        }
    }
}
