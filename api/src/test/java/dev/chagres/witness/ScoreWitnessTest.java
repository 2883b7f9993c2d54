package dev.chagres.witness;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;

import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences.Padding;
import dev.chagres.conformance.Comparison;
import dev.chagres.conformance.TokenRows;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.te.SoftmaxType;
import java.util.Arrays;
import java.util.SplittableRandom;
import java.util.function.DoubleSupplier;
import java.util.function.UnaryOperator;
import org.apache.commons.math3.linear.BlockRealMatrix;
import org.apache.commons.math3.linear.MatrixUtils;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** What the witness does with scores: gradients against finite differences, values against loops that were written apart. */
@Tag("L0")
class ScoreWitnessTest {
    private static final double[] SLOPES = {0.5, 0.25, -0.125, 1};

    private final SplittableRandom random = new SplittableRandom(20_260_202);

    /** What is done with scores. */
    enum ChangedScores {
        CAP(config -> config.withSoftcap(0.7f)),
        ALIBI_FROM_THE_FIRST_KEY(config -> config.withMask(AttentionMask.causal())),
        ALIBI_FROM_THE_LAST_KEY(config -> config.withMask(AttentionMask.causalBottomRight())),
        BIAS(config -> config),
        BIAS_OF_ALL(config -> config.withMask(AttentionMask.causal())),
        BIAS_BEFORE_THE_SCALE(config -> config),
        MASK(config -> config),
        ONE_MORE(config -> config.withSoftmaxType(SoftmaxType.OFF_BY_ONE)),
        SINKS(config -> config.withSoftmaxType(SoftmaxType.LEARNABLE)),
        ALL(config -> config.withMask(AttentionMask.causal().withWindow(1, 0))
                .withSoftcap(1.5f)
                .withSoftmaxType(SoftmaxType.LEARNABLE)),
        ALL_BEFORE_THE_SCALE(config -> config.withSoftcap(1.5f).withSoftmaxType(SoftmaxType.LEARNABLE));

        private final UnaryOperator<AttentionConfig> change;

        ChangedScores(UnaryOperator<AttentionConfig> change) {
            this.change = change;
        }

        AttentionConfig config() {
            return change.apply(AttentionConfig.of(4, 8, AttentionMask.none()).withKeyHeads(2));
        }

        boolean isAll() {
            return this == ALL || this == ALL_BEFORE_THE_SCALE;
        }

        boolean hasAlibi() {
            return isAll() || this == ALIBI_FROM_THE_FIRST_KEY || this == ALIBI_FROM_THE_LAST_KEY;
        }

        boolean hasMask() {
            return isAll() || this == MASK;
        }

        boolean hasBiasBeforeTheScale() {
            return this == ALL_BEFORE_THE_SCALE || this == BIAS_BEFORE_THE_SCALE;
        }

        boolean hasBias() {
            return isAll() || hasBiasBeforeTheScale() || this == BIAS || this == BIAS_OF_ALL;
        }
    }

    /** A call of attention, and the arrays that its scores are changed by. */
    private final class Call {
        final AttentionWitness attention;
        final ScoreGrid bias;
        final ScoreGrid mask;
        final double[] sinks = {0.3, -0.5, 1.1, 0};

        Call(ChangedScores change, TokenRows queries, TokenRows keys) {
            attention = new AttentionWitness(change.config(), queries.rows(), keys.rows());
            boolean one = change == ChangedScores.BIAS_OF_ALL;
            bias = grid(one ? 1 : 3, one ? 1 : 4, random::nextGaussian);
            mask = grid(3, 1, () -> random.nextInt(3) == 0 ? 1 : 0);
            attention.scores().sinks(() -> sinks);
            if (change.hasAlibi()) {
                attention.scores().alibi(SLOPES);
            }
            if (change.hasMask()) {
                attention.scores().mask(mask);
            }
            if (change.hasBiasBeforeTheScale()) {
                attention.scores().preScaleBias(bias);
            } else if (change.hasBias()) {
                attention.scores().bias(bias);
            }
        }

        private static ScoreGrid grid(int sequences, int heads, DoubleSupplier values) {
            double[] drawn = new double[sequences * heads * 4 * 5];
            Arrays.setAll(drawn, i -> values.getAsDouble());
            return new ScoreGrid(sequences, heads, 4, 5, drawn);
        }
    }

    private RealMatrix normal(int rows, int columns) {
        return Rows.map(new BlockRealMatrix(rows, columns), zero -> random.nextGaussian());
    }

    private static double weighted(RealMatrix y, RealMatrix dy) {
        double sum = 0;
        for (double element : Rows.sum(Rows.combine(y, dy, (a, b) -> a * b))) {
            sum += element;
        }
        return sum;
    }

    @ParameterizedTest
    @EnumSource
    void gradients(ChangedScores change) {
        Call call = new Call(change, TokenRows.packed(3, 0, 1), TokenRows.packed(4, 1, 2));
        AttentionWitness attention = call.attention;
        attention.keep((sequence, head, query, key) -> (query + key + head) % 4 == 0 ? 0 : 1.5);
        RealMatrix q = normal(4, 32);
        RealMatrix k = normal(7, 16);
        RealMatrix v = normal(7, 16);
        RealMatrix dO = normal(4, 32);
        attention.forward(q, k, v);
        attention.backward(dO);
        RealMatrix dq = attention.dq();
        RealMatrix dk = attention.dk();
        RealMatrix dv = attention.dv();
        FiniteDifferences.check("dq", at -> weighted(attention.forward(at, k, v), dO), q, dq);
        FiniteDifferences.check("dk", at -> weighted(attention.forward(q, at, v), dO), k, dk);
        FiniteDifferences.check("dv", at -> weighted(attention.forward(q, k, at), dO), v, dv);
        DoubleSupplier loss = () -> weighted(attention.forward(q, k, v), dO);
        if (change.hasBias()) {
            check(
                    "dbias",
                    loss,
                    call.bias.values(),
                    attention.scores().biasGradient().values());
        }
        if (attention.scores().hasSinks()) {
            check("dsinks", loss, call.sinks, attention.scores().sinksGradient());
        }
    }

    /** Checks the gradient of numbers that {@code loss} reads where they lie. */
    private static void check(String what, DoubleSupplier loss, double[] values, double[] gradient) {
        double[] kept = values.clone();
        FiniteDifferences.check(
                what,
                at -> {
                    System.arraycopy(at.getRow(0), 0, values, 0, values.length);
                    double result = loss.getAsDouble();
                    System.arraycopy(kept, 0, values, 0, values.length);
                    return result;
                },
                MatrixUtils.createRowRealMatrix(kept),
                MatrixUtils.createRowRealMatrix(gradient));
    }

    @ParameterizedTest
    @EnumSource
    void valuesAreThoseOfPlainLoops(ChangedScores change) {
        TokenRows queries = TokenRows.packed(3, 0, 2);
        TokenRows keys = TokenRows.packed(4, 1, 3);
        Call call = new Call(change, queries, keys);
        AttentionConfig config = change.config();
        RealMatrix q = normal(5, 32);
        RealMatrix k = normal(8, 16);
        RealMatrix v = normal(8, 16);
        ScoredAttention plain = new ScoredAttention(
                queries,
                keys,
                config.heads(),
                config.keyHeads(),
                config.mask().type(Padding.NONE),
                config.scale(),
                Comparison.entries(q),
                Comparison.entries(k),
                Comparison.entries(v));
        plain.cap = config.softcap();
        plain.softmax = config.softmaxType();
        plain.sinks = call.sinks;
        plain.windowLeft = config.mask().windowLeft();
        plain.bottomRight = change != ChangedScores.ALIBI_FROM_THE_FIRST_KEY && change != ChangedScores.ALL;
        plain.slopes = change.hasAlibi() ? SLOPES : plain.slopes;
        if (change.hasBias()) {
            plain.bias = call.bias.values();
            plain.biasShape = sizes(call.bias);
            plain.preScale = change.hasBiasBeforeTheScale();
        }
        if (change.hasMask()) {
            plain.mask = new byte[call.mask.values().length];
            for (int i = 0; i < plain.mask.length; i++) {
                plain.mask[i] = (byte) call.mask.values()[i];
            }
            plain.maskShape = sizes(call.mask);
        }
        double[] expected = plain.output(null);
        assertArrayEquals(expected, Comparison.entries(call.attention.forward(q, k, v)), 1e-13);
    }

    private static int[] sizes(ScoreGrid grid) {
        return new int[] {grid.sequences(), grid.heads(), grid.queries(), grid.keys()};
    }
}
