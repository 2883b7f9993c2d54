package dev.chagres.trainer;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.batch.Batch;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.ModelInput;
import dev.chagres.batch.SequencePacker;
import dev.chagres.batch.TokenScores;
import dev.chagres.batch.TrainedModel;
import dev.chagres.batch.UploadRing;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.pass.Pass;
import dev.chagres.recipe.Quantizers;
import dev.chagres.trainer.callback.Evaluation;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;

/**
 * Losses of held-out batches on one rank, in a pass that neither draws random numbers nor records amaxes. Scores are read back in pieces, so
 * that the host never holds all of them.
 *
 * <p>Threading: the device's thread.
 */
final class ModelEvaluation implements AutoCloseable {
    /** The most scores that are read back at once. */
    private static final int PIECE = 1 << 22;

    private final Device device;
    private final Stream stream;
    private final TrainedModel model;
    private final RankShare ranks;
    private final Pass pass;
    /** Of pieces of scores. */
    private final Scope scope;

    private final Map<BatchShape, UploadRing> uploads = new HashMap<>();
    private double loss;
    private long correct;
    private boolean scored;
    private int labelled;

    /**
     * What a rank knows of a batch.
     *
     * @param loss sum of the losses of the labelled tokens that are this rank's
     * @param correct how many of them have the largest score at their label; -1 where the model tells no scores
     */
    record Sums(double loss, long correct) {}

    /**
     * Makes what evaluations of any shape share.
     *
     * @param quantizers null where products are computed in the model's type
     */
    ModelEvaluation(Device device, TrainedModel model, RankShare ranks, @Nullable Quantizers quantizers) {
        this.device = device;
        this.model = model;
        this.ranks = ranks;
        stream = device.stream();
        scope = device.openScope();
        PipelineGradients pipeline = ranks.pipeline();
        pass = pipeline == null ? Pass.evaluation(device) : pipeline.evaluationPass();
        ranks.follow(pass);
        if (quantizers != null) {
            pass.autocast(quantizers);
        }
    }

    /**
     * Evaluates a whole set of held-out data.
     *
     * @param steps that were made
     * @param goesOn whether to go on, asked before each batch
     * @param failed is told what reading the data throws
     * @return null when it ended early, or reading failed
     */
    static Evaluation.@Nullable Result evaluate(
            Training model,
            Evaluation evaluation,
            int steps,
            BooleanSupplier goesOn,
            Consumer<RuntimeException> failed) {
        model.beginEvaluation();
        Evaluation.Result result = sums(model, evaluation, steps, goesOn, failed);
        model.endEvaluation();
        return result;
    }

    private static Evaluation.@Nullable Result sums(
            Training model,
            Evaluation evaluation,
            int steps,
            BooleanSupplier goesOn,
            Consumer<RuntimeException> failed) {
        long began = System.nanoTime();
        BatchShape one = evaluation.microBatch();
        int together = Math.min(model.evaluatedTogether(), Integer.MAX_VALUE / one.tokensPerStep());
        var shape = new BatchShape(one.layout(), one.tokensPerStep() * together, one.context(), together);
        var batch = new Batch(shape);
        double loss = 0;
        long correct = 0;
        long labelled = 0;
        long sequences = 0;
        try (var packer = new SequencePacker(shape, evaluation.open())) {
            while (true) {
                Boolean filled = fill(packer, batch, failed);
                if (!model.agree(filled != null && goesOn.getAsBoolean()) || filled == null) {
                    return null;
                }
                if (!filled) {
                    break;
                }
                Sums sums = model.evaluate(batch);
                loss += sums.loss();
                correct = correct < 0 || sums.correct() < 0 ? -1 : correct + sums.correct();
                labelled += batch.labelled();
                for (int i = 0; i < batch.microBatches(); i++) {
                    sequences += batch.microBatch(i).realSequences();
                }
            }
        }
        return new Evaluation.Result(
                steps,
                loss / labelled,
                correct < 0 ? Double.NaN : (double) correct / labelled,
                labelled,
                sequences,
                (System.nanoTime() - began) / 1e9);
    }

    /** Null where it fails. */
    private static @Nullable Boolean fill(SequencePacker packer, Batch batch, Consumer<RuntimeException> failed) {
        try {
            return packer.fill(batch);
        } catch (RuntimeException e) {
            failed.accept(e);
            return null;
        }
    }

    /** Computes those of a batch's micro-batches that are this rank's, and waits for them. */
    Sums compute(Batch batch) {
        UploadRing ring = uploads.computeIfAbsent(
                batch.shape(),
                shape -> UploadRing.ofPart(
                        device, shape, 1, model.parameters().access().contextParallel()));
        loss = 0;
        correct = 0;
        scored = true;
        labelled = batch.labelled();
        ring.upload(batch);
        PipelineGradients pipeline = ranks.pipeline();
        if (pipeline == null) {
            computeWhole(ring);
        } else {
            pipeline.evaluate(ring, ranks, this::take);
        }
        stream.synchronize();
        return new Sums(loss, scored ? correct : -1);
    }

    private void computeWhole(UploadRing ring) {
        ModelInput input;
        int microBatch = 0;
        do {
            pass.begin();
            input = ring.next(pass.scope());
            boolean own = ranks.isOwn(microBatch);
            if (own || ranks.helps(microBatch, input)) {
                pass.sequences(input.sequences());
                Tensor mean = model.loss(input, pass);
                if (own) {
                    take(mean, input);
                }
            }
            microBatch++;
        } while (!input.isLast());
        pass.end();
    }

    /** Adds a micro-batch's loss, the mean over its labelled tokens. */
    private void take(Tensor mean, ModelInput input) {
        loss += mean.toFloats(stream)[0] * input.share() * labelled;
        TokenScores scores = model.scores();
        if (scores == null) {
            scored = false;
        } else {
            correct += correct(scores, input.labels().toInts(stream));
        }
    }

    private long correct(TokenScores scores, int[] labels) {
        int columns = (int) scores.logits().size(1);
        int rows = Math.max(1, PIECE / Math.max(1, columns));
        long sum = 0;
        for (int first = 0; first < labels.length; first += rows) {
            int count = Math.min(rows, labels.length - first);
            sum += correct(scores, labels, first, count);
        }
        return sum;
    }

    /** The three largest scores of each token: at classes before its label, at those behind it, and its own. */
    private long correct(TokenScores scores, int[] labels, int first, int count) {
        int columns = (int) scores.logits().size(1);
        scope.restart();
        float[] logits = scope.view(scores.logits(), (long) first * columns, count, columns)
                .toFloats(stream);
        var largest = new float[3 * count];
        Arrays.fill(largest, Float.NEGATIVE_INFINITY);
        int own = Math.clamp(scores.classes() - scores.first(), 0, columns);
        for (int i = 0; i < count; i++) {
            long label = labels[first + i] - scores.first();
            for (int j = 0; j < own; j++) {
                int place = (j < label ? 0 : j > label ? count : 2 * count) + i;
                largest[place] = Math.max(largest[place], logits[i * columns + j]);
            }
        }
        float[] of = overRanks(largest);
        long sum = 0;
        for (int i = 0; i < count; i++) {
            int label = labels[first + i];
            boolean known = label >= 0 && label < scores.classes();
            sum += known && of[2 * count + i] > of[i] && of[2 * count + i] >= of[count + i] ? 1 : 0;
        }
        return sum;
    }

    /** Ranks that split the classes have some scores each. */
    private float[] overRanks(float[] largest) {
        TensorParallel split = model.parameters().tensorParallel();
        if (!split.isSplit()) {
            return largest;
        }
        Tensor all = scope.tensor(DType.FLOAT32, largest.length);
        all.set(stream, largest);
        split.max(all, stream);
        return all.toFloats(stream);
    }

    @Override
    public void close() {
        uploads.values().forEach(UploadRing::close);
        scope.close();
        if (ranks.pipeline() == null) {
            pass.close();
        }
    }
}
