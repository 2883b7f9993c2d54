package dev.chagres.trainer.finetune;

import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.batch.Batch;
import dev.chagres.batch.LayeredModel;
import dev.chagres.batch.ModelInput;
import dev.chagres.batch.TokenScores;
import dev.chagres.batch.TrainedModel;
import dev.chagres.models.esm.Esm2Classifier;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import java.util.Optional;
import java.util.Set;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;

/**
 * What was predicted for all labels that an evaluation of any rank has seen.
 *
 * <p>Threading: thread-safe.
 */
abstract class Predictions {
    /**
     * Adds a prediction.
     *
     * @param scores with those of this token from {@code start} on
     */
    abstract void add(float[] scores, int start, int label);

    /** Returns which metrics {@link #take} has. */
    abstract Set<Metric> metrics();

    /** Returns the metrics of what was added, and begins anew. */
    abstract Metrics take();

    /** Returns a factory of the same classifier, whose evaluations are added here. */
    final TrainedModel.Factory counting(TrainedModel.Factory factory) {
        return new TrainedModel.Factory() {
            @Override
            public TrainedModel make(Device device, ModelPlan plan, Function<ModelPlan, Parameters> memory) {
                return new Counting((Esm2Classifier) factory.make(device, plan, memory));
            }

            @Override
            public Optional<LayeredModel.Parts> parts(ModelPlan declared) {
                return factory.parts(declared);
            }
        };
    }

    /** A model that counts what it predicts where somebody asks for its scores, as evaluation alone does. */
    private final class Counting implements TrainedModel {
        private final Esm2Classifier model;
        private @Nullable ModelInput input;

        private Counting(Esm2Classifier model) {
            this.model = model;
        }

        @Override
        public Parameters parameters() {
            return model.parameters();
        }

        @Override
        public Tensor loss(ModelInput next, Pass pass) {
            input = next;
            return model.loss(next, pass);
        }

        @Override
        public void backward(float factor, @Nullable Tensor lossScale, Pass pass) {
            model.backward(factor, lossScale, pass);
        }

        @Override
        public @Nullable TokenScores scores() {
            ModelInput present = input;
            if (present != null) {
                count(model.latestLogits(), present.labels());
            }
            return model.scores();
        }

        private void count(Tensor scores, Tensor labels) {
            var stream = model.parameters().scope().stream();
            float[] all = scores.toFloats(stream);
            int[] given = labels.toInts(stream);
            int columns = Math.toIntExact(scores.size(1));
            for (int i = 0; i < given.length; i++) {
                if (given[i] != Batch.IGNORED) {
                    add(all, i * columns, given[i]);
                }
            }
        }

        @Override
        public double flops(Batch batch) {
            return model.flops(batch);
        }

        @Override
        public int padding() {
            return model.padding();
        }

        @Override
        public void close() {
            model.close();
        }
    }
}
