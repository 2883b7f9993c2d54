package dev.chagres.recipe;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.TokenRows;
import dev.chagres.conformance.Tolerance;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.witness.TransformerLayerWitness;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** A layer in eight bits over sequences that break others, and over numbers that are none, under every recipe. */
@Tag("L0")
@Tag("L1")
class RecipeLengthsConformance {
    private static final Tolerance FORWARD = new Tolerance("layer in eight bits, forward", 6e-2, 0.6);
    private static final Tolerance BACKWARD = new Tolerance("layer in eight bits, backward", 1.6e-1, 3);
    private static final int HIDDEN = 64;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    record Case(Recipe recipe, TokenRows tokens) {}

    static List<Recipe> recipes() {
        return RecipeLinearConformance.recipes();
    }

    static List<Case> cases() {
        List<Integer> giantAndTiny = new ArrayList<>(List.of(700));
        giantAndTiny.addAll(Collections.nCopies(40, 1));
        giantAndTiny.addAll(List.of(2, 3));
        List<Case> cases = new ArrayList<>();
        for (Recipe recipe : recipes()) {
            for (int tokens = 1; tokens <= 7; tokens++) {
                cases.add(new Case(recipe, TokenRows.packed(tokens)));
            }
            cases.add(new Case(recipe, TokenRows.packed(1, 2, 3, 4, 5, 6, 7)));
            cases.add(new Case(recipe, TokenRows.packed(24, 24, 24, 24)));
            cases.add(new Case(recipe, TokenRows.packed(giantAndTiny.toArray(Integer[]::new))));
        }
        return cases;
    }

    /** A layer with weights, its witness in double precision and a pass that computes by a recipe. */
    private static final class Trained implements AutoCloseable {
        private final TransformerLayerConfig config =
                TransformerLayerConfig.encoder(HIDDEN, AttentionConfig.of(2, 32, AttentionMask.none()));
        private final TransformerLayer layer;
        private final Parameters parameters;
        private final Quantizers quantizers;
        private final TransformerLayerWitness witness;
        private final Pass pass;
        private final TokenRows tokens;

        Trained(Case c) {
            tokens = c.tokens;
            ModelPlan plan = new ModelPlan();
            layer = new TransformerLayer(config, plan);
            parameters = Parameters.allocate(open.device(), plan, DType.BFLOAT16, 1);
            witness = new TransformerLayerWitness(config, open.draw(parameters), tokens.rows(), null);
            quantizers = Quantizers.allocate(parameters, c.recipe);
            pass = open.pass();
            pass.autocast(quantizers);
        }

        Tensor forward(RealMatrix x) {
            pass.begin(tokens.sequences(open.scope()));
            return layer.forward(open.tensor(DType.BFLOAT16, x), pass);
        }

        Tensor backward(RealMatrix dy) {
            return layer.backward(open.tensor(DType.BFLOAT16, dy), pass);
        }

        void step(RealMatrix x, RealMatrix dy) {
            forward(x);
            backward(dy);
            parameters.nextStep();
        }

        RealMatrix drawn() {
            return open.normal(DType.BFLOAT16, tokens.tokens(), HIDDEN, 1);
        }

        @Override
        public void close() {
            pass.noAutocast();
            parameters.close();
        }
    }

    @ParameterizedTest
    @MethodSource("cases")
    void lengths(Case c) {
        try (Trained trained = new Trained(c)) {
            RealMatrix x = trained.drawn();
            RealMatrix dy = trained.drawn();
            trained.step(x, dy);
            open.assertClose("y", trained.witness.forward(x), trained.forward(x), FORWARD);
            open.assertClose("dx", trained.witness.backward(dy), trained.backward(dy), BACKWARD);
        }
    }

    @Test
    void noTokensAreRefused() {
        try (Trained trained = new Trained(new Case(DelayedScaling.standard(), TokenRows.packed()))) {
            trained.pass.begin(trained.tokens.sequences(open.scope()));
            Tensor nothing = open.unwritten(DType.BFLOAT16, 0, HIDDEN);
            assertThrown(
                    IllegalArgumentException.class,
                    "sequences: expected at least one token, got THD of 0 sequences, 0 tokens; leave an empty batch out",
                    () -> trained.layer.forward(nothing, trained.pass));
        }
    }

    @ParameterizedTest
    @MethodSource("recipes")
    void zerosGiveNumbers(Recipe recipe) {
        try (Trained trained = new Trained(new Case(recipe, TokenRows.packed(5, 12)))) {
            RealMatrix x = trained.drawn();
            RealMatrix zeros = x.scalarMultiply(0);
            for (int i = 0; i < 3; i++) {
                trained.forward(zeros);
                for (float value : open.read(trained.backward(zeros))) {
                    assertEquals(0, value);
                }
                trained.parameters.nextStep();
                assertScalesAreUsable(trained);
            }
            assertComputes(trained, x);
        }
    }

    /** A number that is none, or infinite, spoils its own sequence alone, and no later step. */
    @ParameterizedTest
    @MethodSource("recipes")
    void whatIsNoNumberSpoilsNoLaterStep(Recipe recipe) {
        for (double spoil : new double[] {Double.NaN, Double.POSITIVE_INFINITY, Double.NEGATIVE_INFINITY}) {
            try (Trained trained = new Trained(new Case(recipe, TokenRows.packed(9, 16)))) {
                RealMatrix x = trained.drawn();
                RealMatrix dy = trained.drawn();
                trained.step(x, dy);
                RealMatrix spoiled = x.copy();
                spoiled.setEntry(3, 5, spoil);
                float[] y = open.read(trained.forward(spoiled));
                boolean lost = false;
                for (int i = 0; i < y.length; i++) {
                    boolean other = i >= 9 * HIDDEN;
                    assertTrue(!other || Float.isFinite(y[i]), spoil + ": y[" + i + "] is " + y[i]);
                    lost |= !other && !Float.isFinite(y[i]);
                }
                assertTrue(lost, spoil + " is to be seen in its own sequence");
                trained.backward(dy);
                trained.parameters.nextStep();
                assertScalesAreUsable(trained);
                assertComputes(trained, x);
            }
        }
    }

    /** Magnitudes that grow a thousandfold from one step to the next saturate; the scales then follow. */
    @Test
    void magnitudesThatOutgrowDelayedScalesSaturate() {
        try (Trained trained = new Trained(new Case(DelayedScaling.standard(), TokenRows.packed(9, 16)))) {
            RealMatrix x = trained.drawn();
            RealMatrix dy = trained.drawn();
            trained.step(x, dy);
            RealMatrix large = dy.scalarMultiply(1000);
            trained.forward(x);
            for (float value : open.read(trained.backward(large))) {
                assertTrue(Float.isFinite(value), "dx has " + value);
            }
            trained.parameters.nextStep();
            settle(trained, x, large);
            trained.forward(x);
            trained.witness.forward(x);
            open.assertClose("dx", trained.witness.backward(large), trained.backward(large), BACKWARD);
        }
    }

    /** Each step's magnitudes are right as far as the places before it did not saturate. */
    private static void settle(Trained trained, RealMatrix x, RealMatrix dy) {
        for (int i = 0; i < 6; i++) {
            trained.step(x, dy);
        }
    }

    private static void assertComputes(Trained trained, RealMatrix x) {
        settle(trained, x, trained.drawn());
        open.assertClose("y", trained.witness.forward(x), trained.forward(x), FORWARD);
    }

    private static void assertScalesAreUsable(Trained trained) {
        trained.quantizers.state().tensors().forEach((name, tensor) -> {
            for (float value : open.read(tensor)) {
                assertTrue(Float.isFinite(value) || name.endsWith("amax_history"), name + " has " + value);
                assertFalse(name.endsWith(".scale") && value <= 0, name + " has " + value);
            }
        });
    }
}
