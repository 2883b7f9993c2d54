package dev.chagres.conformance;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.conformance.TransformerLayerPair.Case;
import dev.chagres.conformance.TransformerLayerPair.Position;
import dev.chagres.conformance.TransformerLayerPair.Residuals;
import dev.chagres.internal.memory.Turns;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.Bias;
import dev.chagres.layer.MlpConfig;
import dev.chagres.layer.NormConfig.Kind;
import dev.chagres.layer.QkNorm;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.pass.Pass;
import dev.chagres.te.QkvFormat;
import java.util.ArrayList;
import java.util.List;
import org.apache.commons.math3.linear.BlockRealMatrix;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;

/** {@code TransformerLayer}, and with it {@code MultiheadAttention}, against double precision. */
@Tag("L0")
@Tag("L1")
class TransformerLayerConformance {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)) {
            TokenRows packed = TokenRows.packed(17, 1, 0, 65, 16);
            for (Residuals residuals : Residuals.values()) {
                cases.add(new Case(dtype, Kind.LAYER_NORM, 48, 16, packed, Position.ROTARY, residuals));
                cases.add(new Case(dtype, Kind.RMS_NORM, 48, 16, packed, Position.NONE, residuals));
                // Rows of no multiple of 16 bytes: the sums are not fused with the norms.
                cases.add(new Case(dtype, Kind.LAYER_NORM, 35, 8, packed, Position.ROTARY, residuals));
            }
            for (Kind kind : Kind.values()) {
                cases.add(new Case(dtype, kind, 48, 16, packed, Position.ROTARY, Residuals.DROP_PATH, Bias.ABSENT));
            }
            cases.add(
                    new Case(dtype, Kind.LAYER_NORM, 48, 16, packed, Position.ROTARY, Residuals.PLAIN).withKeyHeads(1));
            cases.add(new Case(dtype, Kind.RMS_NORM, 35, 8, packed, Position.NONE, Residuals.DROPOUT).withKeyHeads(1));
            cases.add(new Case(dtype, Kind.LAYER_NORM, 64, 32, TokenRows.packed(1), Position.ROTARY, Residuals.PLAIN));
            cases.add(new Case(
                    dtype, Kind.LAYER_NORM, 64, 64, TokenRows.packed(128, 129), Position.ROTARY, Residuals.PLAIN));
            for (QkNorm.Kind norm : List.of(QkNorm.Kind.RMS_NORM, QkNorm.Kind.LAYER_NORM, QkNorm.Kind.L2)) {
                Case one = new Case(dtype, Kind.RMS_NORM, 48, 16, packed, Position.ROTARY, Residuals.PLAIN);
                cases.add(one.withQkNorm(QkNorm.of(norm)));
                cases.add(one.withKeyHeads(1).withQkNorm(QkNorm.of(norm).withPlace(QkNorm.Place.BEFORE_ROTATION)));
                TokenRows dense = TokenRows.padded(QkvFormat.SBHD, 17, 17, 17);
                cases.add(new Case(dtype, Kind.LAYER_NORM, 35, 8, dense, Position.NONE, Residuals.PLAIN)
                        .withQkNorm(QkNorm.of(norm).withEpsilon(0.1f)));
            }
            for (QkvFormat format : new QkvFormat[] {QkvFormat.BSHD, QkvFormat.SBHD}) {
                TokenRows full = TokenRows.padded(format, 33, 33, 33);
                cases.add(new Case(dtype, Kind.LAYER_NORM, 48, 16, full, Position.ROTARY, Residuals.PLAIN));
                cases.add(new Case(dtype, Kind.LAYER_NORM, 48, 16, full, Position.ROTARY, Residuals.DROP_PATH));
                cases.add(new Case(dtype, Kind.LAYER_NORM, 48, 16, full, Position.ROTARY, Residuals.PLAIN)
                        .withKeyHeads(1));
            }
        }
        return cases;
    }

    @ParameterizedTest
    @MethodSource("cases")
    void forwardAndBackward(Case c) {
        try (TransformerLayerPair pair = new TransformerLayerPair(open, c)) {
            RealMatrix x = pair.draw();
            RealMatrix dy = pair.draw();
            pair.keep();
            Tensor input = pair.tensor(x);
            Pass pass = pair.begin();
            Tensor y = pair.layer.forward(input, pass);
            Tolerance tolerance = Tolerances.layer(c.dtype());
            open.assertClose("y", pair.witness.forward(x), y, tolerance);
            RealMatrix expected = pair.witness.backward(dy);
            Tensor gradient = pair.tensor(dy);
            Tensor dx = pair.layer.backward(gradient, pass);
            open.assertClose("dx", expected, dx, tolerance);
            assertGradients(pair, 1);
            assertArrayEquals(open.read(pair.tensor(dy)), open.read(gradient), "dy stays as it was");
            pair.layer.forward(input, pair.begin());
            pair.layer.backward(gradient, gradient, pass);
            open.assertClose("dx in place", expected, gradient, tolerance);
            assertGradients(pair, 2);
        }
    }

    private static void assertGradients(TransformerLayerPair pair, int times) {
        pair.parameters.all().forEach(parameter -> {
            RealMatrix expected = pair.weights.gradient(parameter.name()).scalarMultiply(times);
            // Over all tokens and heads, sums whose terms cancel: their noise grows with the number.
            boolean ofHeads =
                    parameter.name().contains("q_norm") || parameter.name().contains("k_norm");
            // The key's bias moves all scores of a query alike: its gradient is 0, and what is computed is noise.
            open.assertClose(
                    "gradient of " + parameter.name(),
                    Comparison.entries(expected),
                    open.read(parameter.gradient()),
                    (ofHeads ? 4 : 0.1) * times,
                    Tolerances.layer(pair.c.dtype()));
        });
    }

    static List<DType> floats() {
        return List.of(DType.FLOAT32, DType.BFLOAT16);
    }

    /** The same sequences packed and padded give the same rows and gradients. */
    @ParameterizedTest
    @MethodSource("floats")
    void packingChangesNothing(DType dtype) {
        TokenRows packed = TokenRows.packed(17, 1, 33, 20);
        for (QkvFormat format : new QkvFormat[] {QkvFormat.BSHD, QkvFormat.SBHD}) {
            TokenRows padded = TokenRows.padded(format, 33, 17, 1, 33, 20);
            Case first = new Case(dtype, Kind.LAYER_NORM, 48, 16, packed, Position.ROTARY, Residuals.PLAIN);
            Case second = new Case(dtype, Kind.LAYER_NORM, 48, 16, padded, Position.ROTARY, Residuals.PLAIN);
            try (TransformerLayerPair one = new TransformerLayerPair(open, first);
                    TransformerLayerPair other = new TransformerLayerPair(open, second)) {
                other.parameters.weights().copyFrom(open.stream(), one.parameters.weights());
                RealMatrix x = one.draw();
                RealMatrix dy = one.draw();
                Pass pass = open.pass().begin(one.sequences);
                Tensor y = one.layer.forward(one.tensor(x), pass);
                Tensor dx = one.layer.backward(one.tensor(dy), pass);
                pass.sequences(other.sequences);
                Tensor yAgain = other.layer.forward(one.tensor(spread(x, packed, padded)), pass);
                Tensor dxAgain = other.layer.backward(one.tensor(spread(dy, packed, padded)), pass);
                assertSameRows("y", first, second, y, yAgain);
                assertSameRows("dx", first, second, dx, dxAgain);
                open.assertClose(
                        "gradients",
                        doubles(open.read(one.parameters.gradients())),
                        other.parameters.gradients(),
                        Tolerances.layer(dtype));
            }
        }
    }

    private static void assertSameRows(String what, Case first, Case second, Tensor expected, Tensor actual) {
        open.assertClose(
                what,
                doubles(first.tokens().entries(open.read(expected), first.hidden())),
                second.tokens().entries(open.read(actual), second.hidden()),
                0,
                Tolerances.layer(first.dtype()));
    }

    private static double[] doubles(float[] values) {
        double[] doubles = new double[values.length];
        for (int i = 0; i < values.length; i++) {
            doubles[i] = values[i];
        }
        return doubles;
    }

    /** Returns the rows of {@code from} where {@code to} has them; padding is 0. */
    private static RealMatrix spread(RealMatrix x, TokenRows from, TokenRows to) {
        RealMatrix spread = new BlockRealMatrix(to.tokens(), x.getColumnDimension());
        for (int sequence = 0; sequence < from.rows().size(); sequence++) {
            for (int position = 0; position < from.rows().get(sequence).length; position++) {
                spread.setRowVector(
                        to.rows().get(sequence)[position],
                        x.getRowVector(from.rows().get(sequence)[position]));
            }
        }
        return spread;
    }

    @ParameterizedTest
    @EnumSource(Residuals.class)
    void aSteadyStepMakesNoGarbageAndRepeatsItsObjects(Residuals residuals) {
        Case c = new Case(DType.BFLOAT16, Kind.LAYER_NORM, 48, 16, TokenRows.packed(9, 7), Position.ROTARY, residuals);
        try (TransformerLayerPair pair = new TransformerLayerPair(open, c)) {
            Tensor x = pair.tensor(pair.draw());
            Tensor dy = pair.tensor(pair.draw());
            Pass pass = pair.begin();
            Tensor first = pair.layer.forward(x, pass);
            Tensor dx = pair.layer.backward(dy, pass);
            Runnable forwardAndBackward = () -> {
                pass.begin(pair.sequences);
                pair.layer.forward(x, pass);
                pair.layer.backward(dy, pass);
            };
            Allocation.assertNone("a layer forward and backward", forwardAndBackward, 50);
            int repeated = 0;
            for (int step = 0; step < Turns.COUNT; step++) {
                pass.begin(pair.sequences);
                Tensor y = pair.layer.forward(x, pass);
                Tensor gradient = pair.layer.backward(dy, pass);
                assertEquals(y == first, gradient == dx);
                repeated += y == first ? 1 : 0;
            }
            assertEquals(1, repeated, "steps, of as many as objects take turns, that return the first step's object");
        }
    }

    @Test
    void theSameCallGivesTheSameBitsForward() {
        Case c = new Case(
                DType.BFLOAT16,
                Kind.LAYER_NORM,
                48,
                16,
                TokenRows.packed(65, 64, 33),
                Position.ROTARY,
                Residuals.PLAIN);
        try (TransformerLayerPair pair = new TransformerLayerPair(open, c)) {
            Tensor x = pair.tensor(pair.draw());
            Pass pass = pair.begin();
            float[] first = open.read(pair.layer.forward(x, pass));
            assertArrayEquals(first, open.read(pair.layer.forward(x, pass)));
        }
    }

    /** A NaN in one sequence leaves the others alone. */
    @Test
    void nanStaysInItsSequence() {
        Case c = new Case(
                DType.BFLOAT16, Kind.LAYER_NORM, 48, 16, TokenRows.packed(5, 7, 3), Position.ROTARY, Residuals.PLAIN);
        try (TransformerLayerPair pair = new TransformerLayerPair(open, c)) {
            RealMatrix x = pair.draw();
            x.setEntry(6, 10, Double.NaN);
            float[] y = open.read(pair.layer.forward(pair.tensor(x), pair.begin()));
            for (int row = 0; row < 15; row++) {
                assertEquals(row >= 5 && row < 12, Float.isNaN(y[row * 48]), "row " + row);
            }
        }
    }

    @Test
    void refusesHalvesThatDoNotFit() {
        AttentionConfig attention = AttentionConfig.of(2, 16, AttentionMask.none());
        assertThrown(
                IllegalArgumentException.class,
                "mlp: expected 32 columns as the norm, got 48",
                () -> TransformerLayerConfig.encoder(32, attention).withMlp(MlpConfig.gelu(48)));
        TransformerLayer layer = new TransformerLayer(TransformerLayerConfig.encoder(32, attention), new ModelPlan());
        RotaryEmbedding rotary = RotaryEmbedding.of(open.scope(), 8, 8);
        assertThrown(
                IllegalArgumentException.class,
                "rotary: expected head dimension 16, got 8",
                () -> layer.rotate(rotary));
        assertTrue(rotary.positions() == 8);
    }
}
