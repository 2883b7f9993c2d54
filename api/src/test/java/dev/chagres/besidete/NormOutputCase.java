package dev.chagres.besidete;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.besidete.LayerCase.Precision;
import dev.chagres.layer.Bias;
import dev.chagres.layer.LayerNormLinear;
import dev.chagres.layer.LayerNormMlp;
import dev.chagres.layer.MlpConfig;
import dev.chagres.layer.NormConfig;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import dev.chagres.pass.Pass;
import dev.chagres.recipe.BackwardOverride;
import dev.chagres.recipe.Quantizers;
import dev.chagres.recipe.Recipe;
import dev.chagres.te.Activation;
import dev.chagres.te.Normalization.Gamma;
import java.nio.file.Path;
import java.util.List;
import java.util.SplittableRandom;
import java.util.random.RandomGenerator;
import org.jspecify.annotations.Nullable;

/**
 * A norm and what follows it where the norm's output has another reader, beside TE's modules with {@code return_layernorm_output}.
 *
 * @param precision of the products' factors
 * @param recipe of the products, null in BF16
 * @param module which module
 * @param mlp norm and sizes; a {@code LINEAR} has its inner columns as outputs
 * @param tokens rows of x
 * @param seed of weights and inputs
 */
record NormOutputCase(Precision precision, @Nullable Recipe recipe, Module module, MlpConfig mlp, int tokens, long seed)
        implements DrawnCase {
    /** TE's modules. */
    enum Module {
        LINEAR("LayerNormLinear"),
        MLP("LayerNormMLP");

        private final String teName;

        Module(String teName) {
            this.teName = teName;
        }
    }

    /** Precisions take turns. */
    static NormOutputCase draw(Module module, int turn, RandomGenerator random) {
        Precision precision = Precision.values()[(turn + 2 * module.ordinal()) % Precision.values().length];
        return draw(precision, precision.recipe(), module, random);
    }

    /** Draws one under a recipe whose backward computes otherwise: of the modules with a norm TE has that for this one alone. */
    static NormOutputCase draw(Precision precision, Recipe recipe, RandomGenerator random) {
        return draw(precision, recipe, Module.LINEAR, random);
    }

    private static NormOutputCase draw(
            Precision precision, @Nullable Recipe recipe, Module module, RandomGenerator random) {
        LayerCase drawn = LayerCases.draw(precision, random);
        while (drawn.config().mlp().activation() == Activation.CLAMPED_SWIGLU) {
            drawn = LayerCases.draw(precision, random);
        }
        return new NormOutputCase(
                precision, recipe, module, drawn.config().mlp(), drawn.keys().tokens(), random.nextLong());
    }

    @Override
    public List<String> options() {
        Recipe present = recipe;
        return present == null || present.backwardOverride() == BackwardOverride.NONE
                ? List.of("returned norm of " + module.teName, "returned norm in " + precision)
                : List.of(present.getClass().getSimpleName() + " override " + present.backwardOverride());
    }

    @Override
    public void write(Device device, Path file) {
        SplittableRandom random = new SplittableRandom(seed);
        ModelPlan plan = new ModelPlan();
        Forward layer = layer(plan);
        try (Scope scope = device.openScope();
                Pass pass = Pass.training(device);
                Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 1);
                Quantizers quantizers = recipe == null ? null : Quantizers.allocate(parameters, recipe)) {
            LayerWriter.draw(parameters, mlp.norm().gamma() == Gamma.ZERO_CENTERED, scope, random);
            long hidden = mlp.hidden();
            long outputs = module == Module.LINEAR ? mlp.inner() : hidden;
            Tensor x = normal(scope, random, hidden);
            Tensor dy = normal(scope, random, outputs);
            Tensor dnormed = normal(scope, random, hidden);
            Tensor normed = scope.like(x);
            if (quantizers != null) {
                pass.autocast(quantizers);
                pass.begin();
                layer.step(x, normed, dy, dnormed, pass);
                parameters.completeGradients();
                parameters.nextStep();
            }
            pass.begin();
            Tensor[] results = layer.step(x, normed, dy, dnormed, pass);
            State.Builder state = new State.Builder()
                    .tensor("x", x)
                    .tensor("dy", dy)
                    .tensor("dnormed", dnormed)
                    .tensor("y", results[0])
                    .tensor("normed", normed)
                    .tensor("dx", results[1]);
            DrawnCase.addTo(state, parameters);
            DrawnCase.save(device, file, state, constructor(), call());
        }
    }

    private Tensor normal(Scope scope, SplittableRandom random, long columns) {
        return DrawnCase.tensor(scope, DType.BFLOAT16, DrawnCase.normal(random, tokens * columns, 1), tokens, columns);
    }

    private interface Forward {
        /** Returns y and dx. */
        Tensor[] step(Tensor x, Tensor normed, Tensor dy, Tensor dnormed, Pass pass);
    }

    private Forward layer(ModelPlan plan) {
        return switch (module) {
            case LINEAR -> {
                LayerNormLinear layer =
                        new LayerNormLinear(mlp.norm(), mlp.inner(), mlp.bias(), Initializer.zeros(), plan);
                yield (x, normed, dy, dnormed, pass) ->
                        new Tensor[] {layer.forwardWithNorm(x, normed, pass), layer.backwardWithNorm(dy, dnormed, pass)
                        };
            }
            case MLP -> {
                LayerNormMlp layer = new LayerNormMlp(mlp, plan);
                yield (x, normed, dy, dnormed, pass) ->
                        new Tensor[] {layer.forwardWithNorm(x, normed, pass), layer.backwardWithNorm(dy, dnormed, pass)
                        };
            }
        };
    }

    private String constructor() {
        return TeArguments.json(out -> {
            out.writeStringField("class", module.teName);
            if (module == Module.LINEAR) {
                out.writeNumberField("in_features", mlp.hidden());
                out.writeNumberField("out_features", mlp.inner());
            } else {
                out.writeNumberField("hidden_size", mlp.hidden());
                out.writeNumberField("ffn_hidden_size", mlp.inner());
                out.writeStringField("activation", TeArguments.word(mlp.activation()));
            }
            NormConfig norm = mlp.norm();
            out.writeNumberField("eps", norm.epsilon());
            out.writeStringField("normalization", TeArguments.word(norm.kind()));
            out.writeBooleanField("zero_centered_gamma", norm.gamma() == Gamma.ZERO_CENTERED);
            out.writeBooleanField("bias", mlp.bias() == Bias.PRESENT);
        });
    }

    private String call() {
        return TeArguments.json(out -> {
            out.writeStringField("kind", "norm-output");
            out.writeStringField("precision", precision.word());
            TeRecipe.write(out, recipe);
            out.writeNumberField("seed", seed);
            TeArguments.numbers(out, "steps", recipe == null ? List.of(1) : List.of(1, 1));
            TeArguments.words(out, "options", options());
        });
    }
}
