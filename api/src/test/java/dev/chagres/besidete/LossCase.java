package dev.chagres.besidete;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.layer.CrossEntropy;
import dev.chagres.parameter.State;
import dev.chagres.pass.Pass;
import java.nio.file.Path;
import java.util.List;
import java.util.SplittableRandom;
import java.util.random.RandomGenerator;

/**
 * Cross-entropy beside {@code te.parallel_cross_entropy}.
 *
 * @param dtype of the logits
 * @param tokens rows of the logits
 * @param classes columns
 * @param labelSmoothing 0 for none
 * @param over whether there is a loss for each token, or their mean
 * @param seed of logits and labels
 */
record LossCase(DType dtype, int tokens, int classes, float labelSmoothing, Over over, long seed) implements DrawnCase {
    /** What a loss is of. */
    enum Over {
        MEAN,
        EACH_TOKEN
    }

    private static final int IGNORED = -100;
    private static final int IGNORED_ONE_IN = 5;
    private static final float DEVIATION = 3;

    /** Combinations of the options take turns. */
    static LossCase draw(int turn, RandomGenerator random) {
        return new LossCase(
                turn % 2 == 0 ? DType.BFLOAT16 : DType.FLOAT32,
                1 + random.nextInt(200),
                2 + random.nextInt(3000),
                turn / 5 % 2 == 0 ? 0.1f : 0,
                (turn + 1) / 2 % 2 == 0 ? Over.EACH_TOKEN : Over.MEAN,
                random.nextLong());
    }

    @Override
    public List<String> options() {
        return List.of(
                "cross-entropy of " + dtype,
                labelSmoothing > 0 ? "cross-entropy with label smoothing" : "cross-entropy without label smoothing",
                "cross-entropy, loss of " + over);
    }

    @Override
    public void write(Device device, Path file) {
        SplittableRandom random = new SplittableRandom(seed);
        try (Scope scope = device.openScope();
                Pass pass = Pass.training(device)) {
            float[] values = DrawnCase.normal(random, (long) tokens * classes, DEVIATION);
            Tensor x = DrawnCase.tensor(scope, dtype, values, tokens, classes);
            Tensor logits = DrawnCase.tensor(scope, dtype, values, tokens, classes);
            Tensor labels = scope.tensor(DType.INT32, tokens);
            labels.set(scope.stream(), labels(random));
            Tensor dy = DrawnCase.tensor(scope, DType.FLOAT32, DrawnCase.normal(random, tokens, 1), tokens);
            CrossEntropy loss = new CrossEntropy(classes).withLabelSmoothing(labelSmoothing);
            pass.begin();
            State.Builder state =
                    new State.Builder().tensor("x", x).tensor("labels", labels).tensor("dy", dy);
            if (over == Over.MEAN) {
                state.tensor("y", loss.forward(logits, labels, pass)).tensor("dx", loss.backward(pass));
            } else {
                state.tensor("y", loss.tokenLosses(logits, labels, pass)).tensor("dx", loss.backward(dy, pass));
            }
            DrawnCase.save(device, file, state, constructor(), call());
        }
    }

    private int[] labels(RandomGenerator random) {
        int[] labels = new int[tokens];
        for (int i = 0; i < tokens; i++) {
            labels[i] = i > 0 && random.nextInt(IGNORED_ONE_IN) == 0 ? IGNORED : random.nextInt(classes);
        }
        return labels;
    }

    private String constructor() {
        return TeArguments.json(out -> {
            out.writeNumberField("label_smoothing", labelSmoothing);
            out.writeBooleanField("reduce_loss", over == Over.MEAN);
            out.writeNumberField("ignore_idx", IGNORED);
        });
    }

    private String call() {
        return TeArguments.json(out -> {
            out.writeStringField("kind", "loss");
            out.writeStringField("precision", dtype == DType.FLOAT32 ? "fp32" : "bf16");
            out.writeNumberField("seed", seed);
            TeArguments.words(out, "options", options());
        });
    }
}
