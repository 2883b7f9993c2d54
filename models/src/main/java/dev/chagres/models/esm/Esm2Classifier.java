package dev.chagres.models.esm;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.batch.Batch;
import dev.chagres.batch.TokenScores;
import dev.chagres.layer.CrossEntropy;
import dev.chagres.layer.Linear;
import dev.chagres.models.data.EsmVocabulary;
import dev.chagres.models.transformer.TransformerBody;
import dev.chagres.models.transformer.TransformerHead;
import dev.chagres.models.transformer.TransformerModel;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import java.util.Objects;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;

/**
 * An ESM-2 that classifies tokens or sequences: {@code loss = crossEntropy(head(norm(layers(embedding(ids)))), labels)}, with the head of {@link
 * Esm2ClassifierConfig.Task} and the loss of {@link Esm2ClassifierConfig.Problem}.
 *
 * <p>The classes are filled up to a multiple of 16 columns, as products in eight bits want them. Tensor-parallel ranks have the whole head each.
 *
 * <p>Labels are INT32 [T], of which one that is no class leaves its token out. Of regression and classes that may be there together they are
 * FLOAT32 [T, labels], numbers, or 0 and 1: a row that begins with NaN leaves its token out, so that of a sequence all tokens but the first are.
 * The loss of such labels waits for the device, since the host computes it; not that of labels of {@link Targets#table}.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code EsmForTokenClassification} and {@code EsmForSequenceClassification} of transformers 5.17, without dropout.
 */
public final class Esm2Classifier extends TransformerModel {
    private static final int COLUMNS = 16;

    private final Esm2ClassifierConfig config;
    private final Head head;

    /**
     * Makes a model with its first weights.
     *
     * @param dtype type of weights and activations
     * @param seed equal seeds give equal weights
     * @throws IllegalArgumentException when attention does not take the head dimension, or the type is no float
     */
    public Esm2Classifier(Device device, Esm2ClassifierConfig config, DType dtype, long seed) {
        this(device, config, new ModelPlan(), declared -> Parameters.allocate(device, declared, dtype, seed));
    }

    /**
     * Makes a model whose parameters are declared in {@code plan} and get their memory from {@code memory}.
     *
     * @param plan an empty one
     * @throws IllegalArgumentException when attention does not take the head dimension
     */
    public Esm2Classifier(
            Device device, Esm2ClassifierConfig config, ModelPlan plan, Function<ModelPlan, Parameters> memory) {
        this(device, config, null, plan, memory);
    }

    Esm2Classifier(
            Device device,
            Esm2ClassifierConfig config,
            @Nullable Targets targets,
            ModelPlan plan,
            Function<ModelPlan, Parameters> memory) {
        TransformerBody body = config.encoder().body(plan);
        Head declared = new Head(config, targets, plan.group("classifier"));
        super(device, body, declared, memory);
        this.config = config;
        head = declared;
    }

    /** Returns sizes, form, task and classes. */
    public Esm2ClassifierConfig config() {
        return config;
    }

    /**
     * Enqueues the scores of every token. A sequence's are those of its first token, where sequences are classified.
     *
     * @param ids INT32 [T]
     * @return [T, classes rounded up to a multiple of 16], of which the first {@link Esm2ClassifierConfig#labels} columns count
     * @throws IllegalArgumentException when shapes, types or devices do not fit
     */
    public Tensor logits(Tensor ids, Pass pass) {
        return head.logits(hidden(ids, pass), pass);
    }

    /**
     * Returns the {@link #logits} from which the latest loss was computed, which are there until {@link #backward} or {@link Pass#begin()}.
     *
     * @throws IllegalStateException when there was no loss
     */
    public Tensor latestLogits() {
        Tensor logits = head.scored;
        if (logits == null) {
            throw new IllegalStateException("latestLogits: expected a call of loss before");
        }
        return logits;
    }

    /** {@inheritDoc} The head of the masked-language model, which has about as many, is counted in the place of this one. */
    @Override
    public double flops(Batch batch) {
        return config.encoder().flops(batch.tokens(), batch.attendedPairs());
    }

    @Override
    public int padding() {
        return EsmVocabulary.PAD;
    }

    /** The head of a task, and the loss of a problem. */
    private static final class Head implements TransformerHead {
        private final Esm2ClassifierConfig config;
        private final int columns;
        /** Null where tokens are classified. */
        private final @Nullable Linear dense;

        private final Tanh tanh = new Tanh("classifier.tanh");
        private final Linear projection;
        /** Of one class that is chosen. */
        private final @Nullable CrossEntropy crossEntropy;
        /** Of numbers, or classes that may be there together. */
        private final @Nullable TargetLoss targetLoss;
        /** What labels of a trainer's batches stand for; null where they are classes, or tensors of numbers are given. */
        private final @Nullable Targets targets;
        /** Of targets whose table the device has. */
        private TargetTable.@Nullable Loss tableLoss;
        /** The logits of the latest loss. */
        private @Nullable Tensor scored;
        /** The latest loss was that of labels in {@link #tableLoss}. */
        private boolean isOfTable;

        Head(Esm2ClassifierConfig config, @Nullable Targets targets, ModelPlan plan) {
            this.config = config;
            this.targets = targets;
            long hidden = config.encoder().hidden();
            columns = Math.multiplyExact(Math.ceilDiv(config.labels(), COLUMNS), COLUMNS);
            dense = config.task() == Esm2ClassifierConfig.Task.SEQUENCES
                    ? new Linear(hidden, hidden, TransformerBody.WEIGHTS, plan.child("dense"))
                    : null;
            projection = new Linear(hidden, columns, TransformerBody.WEIGHTS, plan.child("projection"));
            boolean single = config.problem() == Esm2ClassifierConfig.Problem.SINGLE_LABEL;
            crossEntropy = single ? new CrossEntropy(config.labels()) : null;
            targetLoss = single ? null : new TargetLoss(config);
        }

        @Override
        public void allocate(Scope scope) {
            tableLoss =
                    targets instanceof TargetTable table ? new TargetTable.Loss(table, config, columns, scope) : null;
        }

        Tensor logits(Tensor hidden, Pass pass) {
            Tensor x = dense == null ? hidden : tanh.forward(dense.forward(hidden, pass), pass);
            return projection.forward(x, pass);
        }

        @Override
        public Tensor loss(Tensor hidden, Tensor labels, Pass pass) {
            Tensor logits = logits(hidden, pass);
            scored = logits;
            isOfTable = tableLoss != null && labels.dtype() == DType.INT32;
            if (tableLoss != null && isOfTable) {
                return tableLoss.forward(logits, labels, pass);
            }
            if (targetLoss != null && targets != null && labels.dtype() == DType.INT32) {
                return targetLoss.forward(logits, labels, targets, pass);
            }
            if (targetLoss != null) {
                return targetLoss.forward(logits, labels, pass);
            }
            return Objects.requireNonNull(crossEntropy).forward(logits, labels, pass);
        }

        @Override
        public Tensor backward(float factor, @Nullable Tensor lossScale, Pass pass) {
            Tensor dlogits;
            if (tableLoss != null && isOfTable) {
                dlogits = tableLoss.backward(factor, lossScale, pass);
            } else if (targetLoss != null) {
                dlogits = targetLoss.backward(factor, lossScale, pass);
            } else {
                dlogits = Objects.requireNonNull(crossEntropy).backward(factor, lossScale, pass);
            }
            Tensor gradient = projection.backward(dlogits, pass);
            return dense == null ? gradient : dense.backward(tanh.backward(gradient, pass), pass);
        }

        @Override
        public @Nullable TokenScores scores() {
            Tensor logits = scored;
            return logits == null || crossEntropy == null ? null : new TokenScores(logits, 0, config.labels());
        }
    }
}
