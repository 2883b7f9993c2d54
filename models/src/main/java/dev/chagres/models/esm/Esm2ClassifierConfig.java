package dev.chagres.models.esm;

import dev.chagres.Device;
import dev.chagres.batch.LayeredModel;
import dev.chagres.batch.TrainedModel;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.Trainable;
import java.util.Objects;
import java.util.Optional;
import java.util.function.Function;
import java.util.stream.IntStream;
import java.util.stream.Stream;

/**
 * An ESM-2 with a head that classifies. A trainer makes the model of it.
 *
 * <p>Threading: immutable.
 *
 * @param encoder sizes and form
 * @param task what is classified
 * @param labels number of classes or of numbers: at least 2 where one class is chosen, else at least 1
 * @param problem what the scores of a sequence mean, and which loss trains them
 */
public record Esm2ClassifierConfig(Esm2Config encoder, Task task, int labels, Problem problem)
        implements TrainedModel.Factory {
    /** What scores mean: {@code problem_type} of transformers. */
    public enum Problem {
        /** One class is chosen; the loss is the cross-entropy. */
        SINGLE_LABEL,
        /** Each class is there or not; the loss is the mean of the binary cross-entropies. */
        MULTI_LABEL,
        /** Scores are numbers; the loss is the mean of the squared differences. */
        REGRESSION
    }

    /** What is classified. */
    public enum Task {
        /** Each token: {@code logits = classifier(hidden)}, transformers' {@code EsmForTokenClassification}. */
        TOKENS,
        /**
         * Each sequence, by its first token: {@code logits = outProjection(tanh(dense(hidden)))}, transformers' {@code
         * EsmForSequenceClassification}. The label of a sequence is that of its first token; the other tokens have none.
         */
        SEQUENCES
    }

    /**
     * Checks the number of classes.
     *
     * @throws IllegalArgumentException when there are too few, or tokens have another problem than SINGLE_LABEL
     */
    public Esm2ClassifierConfig {
        Objects.requireNonNull(encoder, "encoder");
        Objects.requireNonNull(task, "task");
        Objects.requireNonNull(problem, "problem");
        if (problem != Problem.SINGLE_LABEL && task == Task.TOKENS) {
            throw new IllegalArgumentException("problem: expected SINGLE_LABEL of tokens, got " + problem);
        }
        if (problem == Problem.SINGLE_LABEL && labels < 2) {
            throw new IllegalArgumentException("labels: expected at least 2 classes, got " + labels);
        }
        if (labels < 1) {
            throw new IllegalArgumentException("labels: expected at least 1, got " + labels);
        }
    }

    /**
     * Checks the number of classes, of which one is chosen.
     *
     * @throws IllegalArgumentException when there are fewer than two
     */
    public Esm2ClassifierConfig(Esm2Config encoder, Task task, int labels) {
        this(encoder, task, labels, Problem.SINGLE_LABEL);
    }

    /**
     * Returns what trains the head and the layers from the last one down, with the norm behind them.
     *
     * @param count layers, from 0, where the head alone is trained, to all
     * @throws IllegalArgumentException when there are not as many
     */
    public Trainable lastLayers(int count) {
        if (count < 0 || count > encoder.layers()) {
            throw new IllegalArgumentException("count: expected 0 to " + encoder.layers() + " layers, got " + count);
        }
        Stream<String> trained =
                IntStream.range(encoder.layers() - count, encoder.layers()).mapToObj(i -> "layers." + i);
        return Trainable.only(
                Stream.concat(trained, count == 0 ? Stream.of("classifier") : Stream.of("norm", "classifier"))
                        .toArray(String[]::new));
    }

    /**
     * Returns a factory of the same model whose batches have labels that stand for numbers, so that a trainer trains it. Steps can be
     * captured with {@link Targets#table}; the loss of other targets is computed on the host.
     *
     * @param targets what labels stand for
     * @throws IllegalArgumentException when one class is chosen, whose label is its number, or rows of a table have another number of columns
     */
    public TrainedModel.Factory reading(Targets targets) {
        Objects.requireNonNull(targets, "targets");
        if (problem == Problem.SINGLE_LABEL) {
            throw new IllegalArgumentException("problem: expected REGRESSION or MULTI_LABEL, got SINGLE_LABEL");
        }
        if (targets instanceof TargetTable table && table.rows()[0].length != labels) {
            throw new IllegalArgumentException(
                    "targets: expected rows of " + labels + " numbers, got " + table.rows()[0].length);
        }
        return new TrainedModel.Factory() {
            @Override
            public TrainedModel make(Device device, ModelPlan plan, Function<ModelPlan, Parameters> memory) {
                return new Esm2Classifier(device, Esm2ClassifierConfig.this, targets, plan, memory);
            }

            @Override
            public Optional<LayeredModel.Parts> parts(ModelPlan declared) {
                return Esm2ClassifierConfig.this.parts(declared);
            }
        };
    }

    @Override
    public Esm2Classifier make(Device device, ModelPlan plan, Function<ModelPlan, Parameters> memory) {
        return new Esm2Classifier(device, this, plan, memory);
    }

    @Override
    public Optional<LayeredModel.Parts> parts(ModelPlan declared) {
        return Optional.of(encoder.body().parts(declared, "classifier"));
    }
}
