package dev.chagres.besidete;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.attention.Sequences;
import dev.chagres.conformance.TokenRows;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.optim.AdamW;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import dev.chagres.pass.Pass;
import dev.chagres.pass.SharedInput;
import dev.chagres.recipe.Quantizers;
import dev.chagres.recipe.Recipe;
import dev.chagres.te.Normalization.Gamma;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Objects;
import java.util.SplittableRandom;
import org.jspecify.annotations.Nullable;

/** Computes forward and backward of a layer and writes weights, inputs and results as safetensors. */
final class LayerWriter {
    private static final float WEIGHT = 0.06f;
    private static final float VECTOR = 0.1f;
    private static final int POSITIONS = 1024;
    private static final String MASTER = ".master";
    /** How layers are trained; without decay, which TE has for norms and biases, too. */
    static final AdamW.Config ADAM = new AdamW.Config(0.9f, 0.95f, 1e-8f, 0);
    /** Rate of the steps of {@link #ADAM}. */
    static final float RATE = 1e-3f;

    private final Device device;
    private final LayerCase drawn;
    private final SharedInput memory = new SharedInput("memory");
    private final ModelPlan plan = new ModelPlan();
    private final TransformerLayer layer;

    private LayerWriter(Device device, LayerCase drawn) {
        this.device = device;
        this.drawn = drawn;
        layer = drawn.decodes()
                ? new TransformerLayer(drawn.config(), memory, plan)
                : new TransformerLayer(drawn.config(), plan);
    }

    static void write(Device device, LayerCase drawn, Path file) {
        new LayerWriter(device, drawn).write(file);
    }

    private void write(Path file) {
        SplittableRandom random = new SplittableRandom(drawn.seed());
        Recipe recipe = drawn.recipe();
        try (Scope scope = device.openScope();
                Pass pass = Pass.training(device);
                Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 1);
                Quantizers quantizers = recipe == null ? null : Quantizers.allocate(parameters, recipe);
                AdamW adam = drawn.course().updates() == 0 ? null : new AdamW(parameters, ADAM)) {
            Inputs inputs = inputs(parameters, scope, random);
            ScoreTensors scores = ScoreTensors.draw(drawn, layer, scope, random);
            rotate(scope);
            if (quantizers != null) {
                pass.autocast(quantizers);
            }
            State.Builder state = new State.Builder();
            if (adam == null) {
                DrawnCase.addTo(state, parameters);
            } else {
                for (Parameter parameter : parameters.all()) {
                    state.tensor("weight." + parameter.name(), DrawnCase.copy(parameter.weight(), scope));
                }
                adam.state().tensors().forEach((name, tensor) -> {
                    if (name.endsWith(MASTER)) {
                        state.tensor("master." + name.substring(0, name.length() - MASTER.length()), tensor);
                    }
                });
            }
            Step last = steps(inputs, scores, pass, parameters, adam, scope);
            state.tensor("x", inputs.x)
                    .tensor("dy", inputs.dy)
                    .tensor("y", last.y)
                    .tensor("dx", last.dx);
            scores.addTo(state, last.dbias);
            if (drawn.decodes()) {
                state.tensor("memory", inputs.memory).tensor("dmemory", last.dmemory);
            }
            DrawnCase.save(device, file, state, TeArguments.constructor(drawn), TeArguments.call(drawn));
        }
    }

    /** Computes all steps and returns the last. */
    private Step steps(
            Inputs inputs, ScoreTensors scores, Pass pass, Parameters parameters, @Nullable AdamW adam, Scope scope) {
        Step last = null;
        for (int i = 0; i < drawn.steps().size(); i++) {
            if (last != null && adam == null) {
                parameters.completeGradients();
                parameters.nextStep();
            }
            last = step(inputs.times(drawn.steps().get(i), drawn.gradients().get(i), scope), scores, pass);
            if (adam != null) {
                adam.step(RATE);
            }
        }
        return Objects.requireNonNull(last);
    }

    private void rotate(Scope scope) {
        if (drawn.rotary() != null) {
            RotaryEmbedding rotary = RotaryEmbedding.of(scope, POSITIONS, drawn.rotary());
            layer.rotate(rotary);
            if (drawn.decodes()) {
                layer.crossAttention().rotate(rotary); // as TE does
            }
        }
    }

    private record Inputs(Sequences sequences, Tensor x, Tensor dy, Tensor memory) {
        /** Returns the same with x and memory times a power of two, and dy times another. */
        Inputs times(int factor, int jump, Scope scope) {
            return new Inputs(sequences, times(x, factor, scope), times(dy, jump, scope), times(memory, factor, scope));
        }

        private static Tensor times(Tensor tensor, int factor, Scope scope) {
            if (factor == 1) {
                return tensor;
            }
            float[] values = tensor.toFloats(scope.stream());
            for (int i = 0; i < values.length; i++) {
                values[i] *= factor;
            }
            Tensor product = scope.like(tensor);
            product.set(scope.stream(), values);
            return product;
        }
    }

    private record Step(
            Tensor y, Tensor dx, Tensor dmemory, @Nullable Tensor dbias) {}

    private Step step(Inputs inputs, ScoreTensors scores, Pass pass) {
        pass.begin(scores.mask(inputs.sequences));
        memory.forward(inputs.memory, pass);
        scores.forward(pass);
        Tensor y = layer.forward(inputs.x, pass);
        Tensor dx = layer.backward(inputs.dy, pass);
        Tensor dbias = scores.backward(pass);
        return new Step(y, dx, memory.backward(pass), dbias);
    }

    /** Draws weights. */
    static void draw(Parameters parameters, boolean centered, Scope scope, SplittableRandom random) {
        for (Parameter parameter : parameters.all()) {
            String name = parameter.name();
            boolean gamma = name.endsWith("norm.weight");
            boolean matrix = parameter.shape().rank() == 2;
            float[] values = DrawnCase.normal(random, parameter.shape().count(), matrix ? WEIGHT : VECTOR);
            boolean aroundOne =
                    gamma && (!centered || name.endsWith("q_norm.weight") || name.endsWith("k_norm.weight"));
            for (int i = 0; aroundOne && i < values.length; i++) {
                values[i] += 1;
            }
            parameter.weight().set(scope.stream(), values);
        }
        parameters.changed();
    }

    /** Weights, inputs and the gradient of y, which is 0 for padding. */
    private Inputs inputs(Parameters parameters, Scope scope, SplittableRandom random) {
        draw(parameters, drawn.config().norm().gamma() == Gamma.ZERO_CENTERED, scope, random);
        TokenRows rows = drawn.tokens();
        int hidden = Math.toIntExact(drawn.config().hidden());
        float[] dy = DrawnCase.normal(random, (long) rows.tokens() * hidden, 1);
        for (int row : rows.paddingRows()) {
            Arrays.fill(dy, row * hidden, (row + 1) * hidden, 0);
        }
        Sequences sequences = started(rows, scope);
        return new Inputs(
                drawn.decodes() ? sequences.withKeys(drawn.keys().sequences(scope)) : sequences,
                tensor(scope, rows.tokens(), hidden, DrawnCase.normal(random, (long) rows.tokens() * hidden, 1)),
                tensor(scope, rows.tokens(), hidden, dy),
                tensor(
                        scope,
                        drawn.keys().tokens(),
                        hidden,
                        DrawnCase.normal(random, (long) drawn.keys().tokens() * hidden, 1)));
    }

    private Sequences started(TokenRows rows, Scope scope) {
        Sequences sequences = rows.sequences(scope);
        if (drawn.start() == 0) {
            return sequences;
        }
        int[] starts = new int[rows.lengths().size()];
        Arrays.fill(starts, drawn.start());
        return sequences.startingAt(scope, starts);
    }

    private static Tensor tensor(Scope scope, int rows, int columns, float[] values) {
        return DrawnCase.tensor(scope, DType.BFLOAT16, values, rows, columns);
    }
}
