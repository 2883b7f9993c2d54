package dev.chagres.witness;

import dev.chagres.attention.AttentionMask;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.Bias;
import dev.chagres.layer.CrossAttentionConfig;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.layer.TransformerLayerConfig.BranchOrder;
import dev.chagres.layer.TransformerLayerConfig.NormPlacement;
import dev.chagres.layer.TransformerLayerConfig.ResidualSource;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.pass.SharedInput;
import java.util.List;
import java.util.Random;
import java.util.stream.IntStream;
import org.apache.commons.math3.linear.BlockRealMatrix;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** The gradients of a layer's witness against finite differences, for each of the layer's options. */
@Tag("L0")
class TransformerLayerWitnessTest {
    private static final int HIDDEN = 4;
    private static final int MEMORY = 3;
    private static final List<int[]> QUERIES = List.of(new int[] {0, 1, 2}, new int[] {3, 4});
    private static final List<int[]> KEYS = List.of(new int[] {0}, new int[] {1, 2, 3});

    private final Random random = new Random(2026);

    static List<TransformerLayerConfig> configs() {
        AttentionConfig attention = AttentionConfig.of(1, 8, AttentionMask.causal());
        TransformerLayerConfig encoder = TransformerLayerConfig.encoder(HIDDEN, attention);
        TransformerLayerConfig decoder =
                encoder.withCrossAttention(CrossAttentionConfig.of(HIDDEN, attention.withMask(AttentionMask.none()))
                        .withMemoryColumns(MEMORY));
        return List.of(
                encoder.withBias(Bias.ABSENT),
                encoder.withBranchOrder(BranchOrder.PARALLEL),
                encoder.withResidual(ResidualSource.NORM),
                encoder.withNormPlacement(NormPlacement.OUTPUT),
                encoder.withNormPlacement(NormPlacement.OUTPUT).withResidual(ResidualSource.NORM),
                decoder,
                decoder.withResidual(ResidualSource.NORM).withBias(Bias.ABSENT));
    }

    private RealMatrix normal(long rows, long columns) {
        return Rows.map(new BlockRealMatrix((int) rows, (int) columns), zero -> random.nextGaussian());
    }

    private static List<Parameter> parameters(TransformerLayerConfig config) {
        ModelPlan plan = new ModelPlan();
        if (config.crossAttention() == null) {
            new TransformerLayer(config, plan);
        } else {
            new TransformerLayer(config, new SharedInput("memory"), plan);
        }
        return plan.parameters();
    }

    @ParameterizedTest
    @MethodSource("configs")
    void gradients(TransformerLayerConfig config) {
        Weights weights = new Weights();
        for (Parameter parameter : parameters(config)) {
            boolean matrix = parameter.shape().rank() == 2;
            weights.put(
                    parameter.name(),
                    normal(
                            matrix ? parameter.shape().size(0) : 1,
                            parameter.shape().size(matrix ? 1 : 0)));
        }
        TransformerLayerWitness layer = new TransformerLayerWitness(config, weights, "", QUERIES, KEYS, null);
        layer.keep(IntStream.range(0, layer.sums())
                .mapToObj(i -> normal(5, HIDDEN))
                .toArray(RealMatrix[]::new));
        RealMatrix x = normal(5, HIDDEN);
        RealMatrix memory = normal(4, MEMORY);
        RealMatrix dy = normal(5, HIDDEN);
        layer.forward(x, memory);
        RealMatrix dx = layer.backward(dy);
        FiniteDifferences.check("dx", at -> weighted(layer.forward(at, memory), dy), x, dx);
        if (config.crossAttention() != null) {
            RealMatrix dmemory = layer.crossAttention().memoryGradient();
            FiniteDifferences.check("dmemory", at -> weighted(layer.forward(x, at), dy), memory, dmemory);
        }
        for (String name : weights.names()) {
            RealMatrix value = weights.get(name);
            RealMatrix gradient = weights.gradient(name);
            FiniteDifferences.check(
                    name,
                    at -> {
                        weights.put(name, at);
                        return weighted(layer.forward(x, memory), dy);
                    },
                    value,
                    gradient);
            weights.put(name, value);
        }
    }

    private static double weighted(RealMatrix y, RealMatrix dy) {
        double sum = 0;
        for (double element : Rows.sum(Rows.combine(y, dy, (a, b) -> a * b))) {
            sum += element;
        }
        return sum;
    }
}
