package dev.chagres.parallel;

import static dev.chagres.parallel.ContextParallelTest.close;
import static dev.chagres.parallel.ContextParallelTest.joined;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.bindings.Provider;
import dev.chagres.conformance.Comparison;
import dev.chagres.internal.Inside;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.Bias;
import dev.chagres.layer.CrossAttention;
import dev.chagres.layer.CrossAttentionConfig;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Recomputed;
import dev.chagres.pass.SharedInput;
import dev.chagres.witness.CrossAttentionWitness;
import dev.chagres.witness.NormWitness;
import dev.chagres.witness.Weights;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.function.UnaryOperator;
import java.util.stream.IntStream;
import org.apache.commons.math3.linear.BlockRealMatrix;
import org.apache.commons.math3.linear.RealMatrix;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/**
 * Two cross-attentions, one behind the other, that read one memory: keys and values come from one product, of which each tensor-parallel rank
 * has the rows of its heads' keys and of its heads' values.
 */
@Tag("L0")
@Tag("L2")
class KeyValueProductTest {
    private static final int HIDDEN = 48;
    private static final int MEMORY = 40;
    private static final int[] SOURCES = {11, 1, 12};
    private static final int[] TARGETS = {9, 14, 7};
    private static final List<String> LAYERS = List.of("first", "second");

    /** What is computed of these inputs. */
    private record Variant(int keyHeads, Bias bias, boolean recomputed, List<String> frozen) {
        AttentionConfig heads() {
            return AttentionConfig.of(6, 8, AttentionMask.none()).withKeyHeads(keyHeads);
        }

        CrossAttentionConfig config() {
            return CrossAttentionConfig.of(HIDDEN, heads())
                    .withMemoryColumns(MEMORY)
                    .withBias(bias);
        }
    }

    private record Gradient(float[] values, @Nullable ParameterSplit split) {}

    private record Result(float[] y, float[] dx, float[] dm, Map<String, Gradient> gradients) {}

    private static float[] drawn(int count, long seed, double scale) {
        SplittableRandom random = new SplittableRandom(seed);
        float[] values = new float[count];
        for (int i = 0; i < count; i++) {
            values[i] = (float) (random.nextGaussian() * scale);
        }
        return values;
    }

    private static float[] weight(String name, long count) {
        return drawn(Math.toIntExact(count), name.hashCode(), name.endsWith("norm.weight") ? 1 : 0.3);
    }

    private static float[] rows(int[] lengths, int columns, long seed) {
        return drawn(IntStream.of(lengths).sum() * columns, seed, 1);
    }

    /** Returns the rows that this rank has between branches. */
    private static Tensor own(Scope scope, TensorParallel ranks, float[] all, int columns) {
        Tensor whole = scope.tensor(DType.FLOAT32, all.length / columns, columns);
        whole.set(scope.stream(), all);
        if (!ranks.isSequenceParallel()) {
            return whole;
        }
        long part = whole.size(0) / ranks.size();
        return scope.view(whole, ranks.rank() * part * columns, part, columns);
    }

    private static float[] part(float[] whole, ParameterSplit split, int count) {
        float[] part = new float[count];
        for (int e = 0; e < count; e++) {
            part[e] = whole[Math.toIntExact(split.element(e))];
        }
        return part;
    }

    /** The layers' parameters in {@code plan}, and what they read. */
    private static final class Model {
        private final SharedInput memory = new SharedInput("memory");
        private final List<Layer> layers = new ArrayList<>();
        private final ModelPlan plan;

        Model(Variant variant, ModelPlan plan) {
            this.plan = plan;
            UnaryOperator<Layer> wrapper = variant.recomputed ? Recomputed::new : UnaryOperator.identity();
            for (String name : LAYERS) {
                layers.add(wrapper.apply(new CrossAttention(variant.config(), memory, plan.group(name))));
            }
            for (String name : variant.frozen) {
                plan.child(name).freeze();
            }
        }

        void fill(Parameters parameters) {
            for (Parameter parameter : parameters.all()) {
                ParameterSplit split = parameter.split();
                Tensor tensor = parameter.weight();
                int count = Math.toIntExact(tensor.count());
                float[] whole = weight(parameter.name(), parameter.wholeShape().count());
                tensor.set(parameters.scope().stream(), split == null ? whole : part(whole, split, count));
            }
            parameters.changed();
        }

        Result run(Device device, Parameters parameters) {
            try (Scope scope = device.openScope();
                    Pass pass = Pass.training(device)) {
                return run(parameters, scope, pass);
            }
        }

        Result run(Parameters parameters, Scope scope, Pass pass) {
            TensorParallel ranks = plan.tensorParallel();
            Sequences sources = Sequences.packed(scope, SOURCES);
            pass.begin(Sequences.packed(scope, TARGETS).withKeys(sources));
            Tensor m = own(scope, ranks, rows(SOURCES, MEMORY, 1), MEMORY);
            Tensor x = own(scope, ranks, rows(TARGETS, HIDDEN, 2), HIDDEN);
            Inside.requireGradient(m, true);
            Inside.requireGradient(x, true);
            memory.forward(m, pass);
            Tensor y = x;
            for (Layer layer : layers) {
                y = layer.forward(y, pass);
            }
            float[] ofY = y.toFloats(pass.stream());
            Tensor dy = own(scope, ranks, rows(TARGETS, HIDDEN, 3), HIDDEN);
            for (Layer layer : layers.reversed()) {
                dy = layer.backward(dy, pass);
            }
            float[] ofX = dy.toFloats(pass.stream());
            float[] ofM = memory.backward(pass).toFloats(pass.stream());
            parameters.completeGradients();
            Map<String, Gradient> gradients = new LinkedHashMap<>();
            for (Parameter parameter : parameters.all()) {
                if (!parameter.isFrozen() && parameter.hasMemory()) {
                    gradients.put(
                            parameter.name(),
                            new Gradient(parameter.gradient().toFloats(pass.stream()), parameter.split()));
                }
            }
            return new Result(ofY, ofX, ofM, gradients);
        }
    }

    private static RealMatrix matrix(float[] values, int columns) {
        RealMatrix matrix = new BlockRealMatrix(values.length / columns, columns);
        for (int i = 0; i < values.length; i++) {
            matrix.setEntry(i / columns, i % columns, values[i]);
        }
        return matrix;
    }

    private static float[] floats(RealMatrix matrix) {
        double[] entries = Comparison.entries(matrix);
        float[] values = new float[entries.length];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) entries[i];
        }
        return values;
    }

    private static List<int[]> tokens(int[] lengths) {
        List<int[]> all = new ArrayList<>();
        int begin = 0;
        for (int length : lengths) {
            all.add(IntStream.range(begin, begin + length).toArray());
            begin += length;
        }
        return all;
    }

    /** Computes it in double precision. */
    private static Result witness(Variant variant) {
        Weights weights = new Weights();
        ModelPlan plan = new ModelPlan();
        Model model = new Model(new Variant(variant.keyHeads, variant.bias, false, List.of()), plan);
        assertEquals(LAYERS.size(), model.layers.size());
        for (Parameter parameter : plan.parameters()) {
            long[] sizes = parameter.wholeShape().sizes();
            int columns = Math.toIntExact(sizes[sizes.length - 1]);
            weights.put(
                    parameter.name(),
                    matrix(weight(parameter.name(), parameter.wholeShape().count()), columns));
        }
        CrossAttentionConfig config = variant.config();
        List<NormWitness> norms = new ArrayList<>();
        List<CrossAttentionWitness> attentions = new ArrayList<>();
        for (String name : LAYERS) {
            norms.add(new NormWitness(config.norm(), weights, name + ".norm."));
            attentions.add(new CrossAttentionWitness(
                    config.attention(), weights, name + ".", tokens(TARGETS), tokens(SOURCES)));
        }
        RealMatrix m = matrix(rows(SOURCES, MEMORY, 1), MEMORY);
        RealMatrix y = matrix(rows(TARGETS, HIDDEN, 2), HIDDEN);
        for (int i = 0; i < norms.size(); i++) {
            y = attentions.get(i).forward(norms.get(i).forward(y), m);
        }
        RealMatrix dx = matrix(rows(TARGETS, HIDDEN, 3), HIDDEN);
        RealMatrix dm = m.scalarMultiply(0);
        for (int i = norms.size() - 1; i >= 0; i--) {
            dx = norms.get(i).backward(attentions.get(i).backward(dx));
            dm = dm.add(attentions.get(i).memoryGradient());
        }
        Map<String, Gradient> gradients = new LinkedHashMap<>();
        for (String name : weights.names()) {
            gradients.put(name, new Gradient(floats(weights.gradient(name)), null));
        }
        return new Result(floats(y), floats(dx), floats(dm), gradients);
    }

    private static double tolerance() {
        // TF32 products on GPUs, in two attentions one behind the other.
        return Provider.current() == Provider.CUDA ? 2e-2 : 1e-4;
    }

    private static void compare(Result expected, List<Result> parts, boolean joins) {
        double tolerance = tolerance();
        for (Result part : joins ? parts.subList(0, 1) : parts) {
            close(expected.y, joins ? joined(parts.stream().map(Result::y).toList()) : part.y, tolerance, "y");
            close(expected.dx, joins ? joined(parts.stream().map(Result::dx).toList()) : part.dx, tolerance, "dx");
            close(expected.dm, joins ? joined(parts.stream().map(Result::dm).toList()) : part.dm, tolerance, "dm");
        }
        for (Result part : parts) {
            part.gradients.forEach((name, gradient) -> {
                float[] whole = expected.gradients.get(name).values;
                float[] own = gradient.split == null ? whole : part(whole, gradient.split, gradient.values.length);
                if (name.endsWith("key_value.bias")) {
                    // The gradient of the keys' bias is 0: rounding leaves something relative to what cancels.
                    int keys = own.length / 2;
                    assertArrayEquals(
                            Arrays.copyOf(own, keys),
                            Arrays.copyOf(gradient.values, keys),
                            Provider.current() == Provider.CUDA ? 0.1f : 2e-4f,
                            name);
                    close(
                            Arrays.copyOfRange(own, keys, own.length),
                            Arrays.copyOfRange(gradient.values, keys, own.length),
                            tolerance,
                            name);
                } else {
                    close(own, gradient.values, tolerance, name);
                }
            });
        }
    }

    private static Variant variant(int keyHeads, Bias bias, boolean recomputed, String frozen) {
        return new Variant(keyHeads, bias, recomputed, "none".equals(frozen) ? List.of() : List.of(frozen));
    }

    @ParameterizedTest
    @CsvSource({
        "6, PRESENT, false, none",
        "3, PRESENT, true, none",
        "1, ABSENT, false, none",
        "3, PRESENT, false, first.key_value",
        "2, ABSENT, true, second"
    })
    void oneRank(int keyHeads, Bias bias, boolean recomputed, String frozen) {
        Variant variant = variant(keyHeads, bias, recomputed, frozen);
        try (Device device = Device.open()) {
            Model model = new Model(variant, new ModelPlan());
            try (Parameters parameters = Parameters.allocate(device, model.plan, DType.FLOAT32, 1)) {
                model.fill(parameters);
                compare(witness(variant), List.of(model.run(device, parameters)), false);
            }
        }
    }

    @ParameterizedTest
    @CsvSource({
        "2, false, 6, PRESENT, false, none",
        "3, false, 3, PRESENT, false, none",
        "3, false, 6, ABSENT, true, none",
        "2, true, 2, PRESENT, false, none",
        "3, true, 3, PRESENT, true, none",
        "3, true, 6, ABSENT, false, none",
        "2, true, 6, PRESENT, true, first.key_value",
        "3, false, 3, ABSENT, false, second.key_value"
    })
    void tensorParallelRanks(
            int ranks, boolean sequenceParallel, int keyHeads, Bias bias, boolean recomputed, String frozen) {
        DevicesNeeded.assume(ranks);
        Variant variant = variant(keyHeads, bias, recomputed, frozen);
        List<Result> parts = Ranks.local(ranks).run(rank -> {
            TensorParallel of = TensorParallel.of(rank.communicator());
            Model model = new Model(variant, new ModelPlan(sequenceParallel ? of.withSequenceParallel() : of));
            try (Parameters parameters = Parameters.allocate(rank.device(), model.plan, DType.FLOAT32, 1)) {
                model.fill(parameters);
                Parameter keyValue = parameters.get("first.key_value.weight");
                assertEquals(2L * keyHeads * 8 / ranks, keyValue.weight().size(0));
                return model.run(rank.device(), parameters);
            }
        });
        compare(witness(variant), parts, sequenceParallel);
    }
}
