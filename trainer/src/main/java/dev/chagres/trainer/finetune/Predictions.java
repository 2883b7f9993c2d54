package dev.chagres.trainer.finetune;

import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.batch.Batch;
import dev.chagres.batch.LayeredModel;
import dev.chagres.batch.ModelInput;
import dev.chagres.batch.TokenScores;
import dev.chagres.batch.TrainedModel;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import java.util.Locale;
import java.util.Optional;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;

/**
 * Counts of which class was predicted for which, over all labels that an evaluation of any rank has seen.
 *
 * <p>Threading: thread-safe.
 */
final class Predictions {
    private final int classes;
    /** By label, then by prediction. */
    private long[] counts;

    Predictions(int classes) {
        this.classes = classes;
        counts = new long[classes * classes];
    }

    private synchronized void add(int label, int predicted) {
        counts[label * classes + predicted]++;
    }

    /** Returns the metrics of what was counted, and begins anew. */
    synchronized Metrics take() {
        Metrics metrics = Metrics.of(counts, classes);
        counts = new long[classes * classes];
        return metrics;
    }

    /**
     * How well predictions fit labels.
     *
     * <p>Threading: immutable.
     *
     * <p>Source: {@code accuracy_score}, {@code f1_score} with macro averages and {@code matthews_corrcoef} of scikit-learn.
     *
     * @param accuracy part of the labels that are predicted
     * @param macroF1 mean over the classes that occur of {@code 2 tp / (2 tp + fp + fn)}
     * @param matthews correlation of labels and predictions, from -1 to 1; 0 where either has one class alone
     */
    record Metrics(double accuracy, double macroF1, double matthews) {
        /** Computes them of counts by label, then by prediction. */
        static Metrics of(long[] counts, int classes) {
            double[] labels = new double[classes];
            double[] predicted = new double[classes];
            double right = 0;
            double all = 0;
            for (int i = 0; i < classes; i++) {
                for (int j = 0; j < classes; j++) {
                    double count = counts[i * classes + j];
                    labels[i] += count;
                    predicted[j] += count;
                    all += count;
                    right += i == j ? count : 0;
                }
            }
            double f1 = 0;
            int occurring = 0;
            double both = 0;
            double labelSquares = 0;
            double predictedSquares = 0;
            for (int i = 0; i < classes; i++) {
                if (labels[i] + predicted[i] > 0) {
                    f1 += 2 * counts[i * classes + i] / (labels[i] + predicted[i]);
                    occurring++;
                }
                both += labels[i] * predicted[i];
                labelSquares += labels[i] * labels[i];
                predictedSquares += predicted[i] * predicted[i];
            }
            double spread = Math.sqrt((all * all - predictedSquares) * (all * all - labelSquares));
            return new Metrics(right / all, f1 / occurring, spread == 0 ? 0 : (right * all - both) / spread);
        }

        @Override
        public String toString() {
            return String.format(
                    Locale.ROOT, "accuracy %.4f, macro F1 %.4f, Matthews %.4f", accuracy, macroF1, matthews);
        }
    }

    /** Returns a factory of the same model, whose evaluations are counted here. */
    TrainedModel.Factory counting(TrainedModel.Factory factory) {
        return new TrainedModel.Factory() {
            @Override
            public TrainedModel make(Device device, ModelPlan plan, Function<ModelPlan, Parameters> memory) {
                return new Counting(factory.make(device, plan, memory));
            }

            @Override
            public Optional<LayeredModel.Parts> parts(ModelPlan declared) {
                return factory.parts(declared);
            }
        };
    }

    /** A model that counts what it predicts where somebody asks for its scores, as evaluation alone does. */
    private final class Counting implements TrainedModel {
        private final TrainedModel model;
        private @Nullable ModelInput input;

        private Counting(TrainedModel model) {
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
            TokenScores scores = model.scores();
            ModelInput present = input;
            if (scores != null && present != null) {
                count(scores, present.labels());
            }
            return scores;
        }

        private void count(TokenScores scores, Tensor labels) {
            var stream = model.parameters().scope().stream();
            float[] logits = scores.logits().toFloats(stream);
            int[] given = labels.toInts(stream);
            int columns = Math.toIntExact(scores.logits().size(1));
            for (int i = 0; i < given.length; i++) {
                if (given[i] != Batch.IGNORED) {
                    int best = 0;
                    for (int j = 1; j < classes; j++) {
                        best = logits[i * columns + j] > logits[i * columns + best] ? j : best;
                    }
                    add(given[i], best);
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
