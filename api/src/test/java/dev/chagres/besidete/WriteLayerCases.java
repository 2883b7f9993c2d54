package dev.chagres.besidete;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.Alibi;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.attention.Sequences;
import dev.chagres.besidete.LayerCase.Precision;
import dev.chagres.besidete.LayerCase.Scores;
import dev.chagres.conformance.TokenRows;
import dev.chagres.io.Safetensors;
import dev.chagres.layer.FanOut;
import dev.chagres.layer.Pass;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.model.ModelPlan;
import dev.chagres.model.Parameter;
import dev.chagres.model.Parameters;
import dev.chagres.model.State;
import dev.chagres.recipe.Quantizers;
import dev.chagres.recipe.Recipe;
import dev.chagres.te.Normalization.Gamma;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Map;
import java.util.SplittableRandom;

/**
 * Draws layers, computes forward and backward, and writes a safetensors file each, with weights, inputs and results, for {@code
 * compare_with_te.py}.
 *
 * <pre>WriteLayerCases FOLDER SEED FIRST COUNT [STRIDE]</pre>
 *
 * writes the cases FIRST, FIRST + STRIDE … below COUNT: several processes can share the work.
 */
final class WriteLayerCases {
    /** Half of the cases are BF16. */
    private static final Precision[] PRECISIONS = {
        Precision.BF16,
        Precision.FP8_DELAYED,
        Precision.BF16,
        Precision.FP8_CURRENT,
        Precision.BF16,
        Precision.FP8_BLOCK
    };

    private static final float WEIGHT = 0.06f;
    private static final float VECTOR = 0.1f;

    private WriteLayerCases() {}

    /** Writes the cases. */
    public static void main(String... arguments) throws IOException {
        Path folder = Files.createDirectories(Path.of(arguments[0]));
        long seed = Long.parseLong(arguments[1]);
        int first = Integer.parseInt(arguments[2]);
        int count = Integer.parseInt(arguments[3]);
        int stride = arguments.length > 4 ? Integer.parseInt(arguments[4]) : 1;
        try (Device device = Device.open()) {
            for (int number = first; number < count; number += stride) {
                LayerCase drawn =
                        LayerCases.draw(PRECISIONS[number % PRECISIONS.length], new SplittableRandom(seed + number));
                write(device, drawn, folder.resolve("%04d.safetensors".formatted(number)));
            }
        }
        System.out.println("cases " + first + " of " + count + " by " + stride + " are written");
    }

    private static void write(Device device, LayerCase drawn, Path file) {
        ModelPlan plan = new ModelPlan();
        FanOut memory = new FanOut("memory");
        TransformerLayer layer = drawn.decodes()
                ? new TransformerLayer(drawn.config(), memory, plan)
                : new TransformerLayer(drawn.config(), plan);
        SplittableRandom random = new SplittableRandom(drawn.seed());
        Recipe recipe = drawn.precision().recipe();
        try (Scope scope = device.openScope();
                Pass pass = Pass.training(device);
                Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 1);
                Quantizers quantizers = recipe == null ? null : Quantizers.allocate(parameters, recipe)) {
            Inputs inputs = inputs(drawn, parameters, scope, random);
            if (drawn.scores() == Scores.ALIBI) {
                layer.alibi(Alibi.of(scope, drawn.config().attention().heads()));
            }
            if (drawn.rotary() != null) {
                RotaryEmbedding rotary = RotaryEmbedding.of(scope, 1024, drawn.rotary());
                layer.rotate(rotary);
                if (drawn.decodes()) {
                    layer.crossAttention().rotate(rotary); // as TE does
                }
            }
            if (quantizers != null) {
                pass.autocast(quantizers);
                step(inputs, layer, memory, pass); // delayed scaling learns its scales
                parameters.completeGradients();
                parameters.nextStep();
            }
            Step step = step(inputs, layer, memory, pass);
            State.Builder state = new State.Builder();
            state.tensor("x", inputs.x)
                    .tensor("dy", inputs.dy)
                    .tensor("y", step.y)
                    .tensor("dx", step.dx);
            if (drawn.decodes()) {
                state.tensor("memory", inputs.memory).tensor("dmemory", step.dmemory);
            }
            for (Parameter parameter : parameters.all()) {
                state.tensor("weight." + parameter.name(), parameter.weight());
                state.tensor("gradient." + parameter.name(), parameter.gradient());
            }
            Safetensors.save(
                    file,
                    state.build(),
                    device.stream(),
                    Map.of("layer", TeArguments.constructor(drawn), "call", TeArguments.call(drawn)));
        }
    }

    private record Inputs(Sequences sequences, Tensor x, Tensor dy, Tensor memory) {}

    private record Step(Tensor y, Tensor dx, Tensor dmemory) {}

    private static Step step(Inputs inputs, TransformerLayer layer, FanOut memory, Pass pass) {
        pass.begin(inputs.sequences);
        memory.forward(inputs.memory, pass);
        Tensor y = layer.forward(inputs.x, pass);
        Tensor dx = layer.backward(inputs.dy, pass);
        return new Step(y, dx, memory.backward(pass));
    }

    /** Weights, inputs and the gradient of y, which is 0 for padding. */
    private static Inputs inputs(LayerCase drawn, Parameters parameters, Scope scope, SplittableRandom random) {
        boolean centered = drawn.config().norm().gamma() == Gamma.ZERO_CENTERED;
        for (Parameter parameter : parameters.all()) {
            String name = parameter.name();
            boolean gamma = name.endsWith("norm.weight");
            boolean matrix = parameter.shape().rank() == 2;
            float[] values = normal(random, parameter.shape().count(), matrix ? WEIGHT : VECTOR);
            boolean aroundOne =
                    gamma && (!centered || name.endsWith("q_norm.weight") || name.endsWith("k_norm.weight"));
            for (int i = 0; aroundOne && i < values.length; i++) {
                values[i] += 1;
            }
            parameter.weight().set(scope.stream(), values);
        }
        parameters.changed();
        TokenRows rows = drawn.tokens();
        int hidden = Math.toIntExact(drawn.config().hidden());
        float[] dy = normal(random, (long) rows.tokens() * hidden, 1);
        for (int row : rows.paddingRows()) {
            Arrays.fill(dy, row * hidden, (row + 1) * hidden, 0);
        }
        Sequences sequences = rows.sequences(scope);
        return new Inputs(
                drawn.decodes() ? sequences.withKeys(drawn.keys().sequences(scope)) : sequences,
                tensor(scope, rows.tokens(), hidden, normal(random, (long) rows.tokens() * hidden, 1)),
                tensor(scope, rows.tokens(), hidden, dy),
                tensor(
                        scope,
                        drawn.keys().tokens(),
                        hidden,
                        normal(random, (long) drawn.keys().tokens() * hidden, 1)));
    }

    private static Tensor tensor(Scope scope, int rows, int columns, float[] values) {
        Tensor tensor = scope.tensor(DType.BFLOAT16, rows, columns);
        tensor.set(scope.stream(), values);
        return tensor;
    }

    private static float[] normal(SplittableRandom random, long count, float deviation) {
        float[] values = new float[Math.toIntExact(count)];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) (random.nextGaussian() * deviation);
        }
        return values;
    }
}
