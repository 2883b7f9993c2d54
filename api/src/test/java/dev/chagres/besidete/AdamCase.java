package dev.chagres.besidete;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.layer.Bias;
import dev.chagres.layer.Linear;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.AdamW.Config;
import dev.chagres.optim.AdamW.Masters;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import dev.chagres.te.MultiTensor.BiasCorrection;
import dev.chagres.te.MultiTensor.WeightDecay;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import java.util.random.RandomGenerator;

/**
 * Some steps of Adam beside {@code te.optimizers.FusedAdam}.
 *
 * @param dtype of the weight
 * @param config numbers of the method
 * @param rows of the weight
 * @param columns of the weight
 * @param seed of weight and gradients
 */
record AdamCase(DType dtype, Config config, int rows, int columns, long seed) implements DrawnCase {
    private static final int STEPS = 5;
    private static final float RATE = 0.01f;

    /** Combinations of the options take turns. */
    static AdamCase draw(int turn, RandomGenerator random) {
        DType dtype = turn % 4 == 3 ? DType.FLOAT32 : DType.BFLOAT16;
        Config config = new Config(0.9f, random.nextBoolean() ? 0.999f : 0.95f, 1e-8f, 0.1f)
                .withDecayMode(turn / 4 % 2 == 0 ? WeightDecay.L2 : WeightDecay.DECOUPLED)
                .withMomentDType(turn % 2 == 1 && turn % 3 != 2 || turn % 6 == 0 ? DType.BFLOAT16 : DType.FLOAT32)
                .withBiasCorrection(turn / 2 % 3 == 0 ? BiasCorrection.NO : BiasCorrection.YES)
                .withMasters(turn % 2 == 0 ? Masters.REMAINDER : Masters.FLOAT32);
        return new AdamCase(dtype, config, 1 + random.nextInt(60), 1 + random.nextInt(60), random.nextLong());
    }

    @Override
    public List<String> options() {
        List<String> options = new ArrayList<>(List.of(
                "Adam of " + dtype,
                "Adam with decay " + config.decayMode(),
                "Adam with moments of " + config.momentDType(),
                "Adam with bias correction " + config.biasCorrection()));
        if (dtype != DType.FLOAT32) {
            options.add("Adam with masters " + config.masters());
        }
        return options;
    }

    @Override
    public void write(Device device, Path file) {
        SplittableRandom random = new SplittableRandom(seed);
        ModelPlan plan = new ModelPlan();
        Parameter weight = new Linear(columns, rows, Bias.ABSENT, Initializer.zeros(), plan).weight();
        try (Scope scope = device.openScope();
                Parameters parameters = Parameters.allocate(device, plan, dtype, 1)) {
            weight.weight().set(scope.stream(), DrawnCase.normal(random, (long) rows * columns, 1));
            parameters.changed();
            State.Builder state = new State.Builder().tensor("x", DrawnCase.copy(weight.weight(), scope));
            try (AdamW adam = new AdamW(parameters, config)) {
                for (int step = 0; step < STEPS; step++) {
                    Tensor gradient = gradient(scope, random);
                    state.tensor("gradient." + step, gradient);
                    parameters.completeGradients();
                    weight.gradient().set(scope.stream(), gradient.toFloats(scope.stream()));
                    adam.step(RATE);
                }
                state.tensor("y", weight.weight());
                DrawnCase.save(device, file, state, constructor(), call());
            }
        }
    }

    /** TE wants gradients of the weight's type: ours, in FP32, get the rounded numbers. */
    private Tensor gradient(Scope scope, SplittableRandom random) {
        return DrawnCase.tensor(scope, dtype, DrawnCase.normal(random, (long) rows * columns, 1), rows, columns);
    }

    private String constructor() {
        return TeArguments.json(out -> TeArguments.adam(out, config, RATE, dtype));
    }

    private String call() {
        return TeArguments.json(out -> {
            out.writeStringField("kind", "adam");
            out.writeStringField("precision", dtype == DType.FLOAT32 ? "fp32" : "bf16");
            out.writeNumberField("seed", seed);
            out.writeNumberField("steps", STEPS);
            TeArguments.words(out, "options", options());
        });
    }
}
