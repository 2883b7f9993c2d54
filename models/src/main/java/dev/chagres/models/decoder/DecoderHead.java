package dev.chagres.models.decoder;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Shape;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.batch.TokenScores;
import dev.chagres.layer.Bias;
import dev.chagres.layer.Linear;
import dev.chagres.models.transformer.TransformerBody;
import dev.chagres.models.transformer.TransformerHead;
import dev.chagres.ops.CrossEntropy.Factors;
import dev.chagres.ops.VocabularyCrossEntropy;
import dev.chagres.parallel.ParameterSplit;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.pass.ContextPool;
import dev.chagres.pass.Pass;
import dev.chagres.pass.PassObserver.Direction;
import dev.chagres.pass.SavedContext;
import dev.chagres.pass.SavedTensor;
import dev.chagres.recipe.Quantizers;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * {@code loss = crossEntropy(x W^T, labels)}, all tokens at once or some after others: then there are never more logits than those of these
 * tokens, and backward computes them again.
 *
 * <p>Each token's log-sum-exp is computed for itself, and the losses of all tokens are summed at the end, so the bits do not depend on how
 * many tokens are computed at once. The product is computed in the model's type, whatever the recipe is.
 *
 * <p>Threading: the device's thread.
 */
final class DecoderHead implements TransformerHead {
    private static final class Call extends SavedContext {
        private final SavedTensor hidden = new SavedTensor("the hidden states");
        private final SavedTensor labels = new SavedTensor("the labels");
        private final SavedTensor logSumExp = new SavedTensor("the log-sum-exp");
        private final SavedTensor counted = new SavedTensor("the number of labelled tokens");
        /** Empty where backward computes them again. */
        private final SavedTensor logits = new SavedTensor("the logits");

        private final Factors factors = Factors.one();
    }

    private final Linear linear;
    private final DecoderSizes sizes;
    private final VocabularyCrossEntropy crossEntropy;
    private final TensorParallel ranks;
    private final int lossTokens;
    private final ContextPool<Call> saved = new ContextPool<>(this, Call::new);
    /** Those of the latest loss; null if they were not kept. */
    private @Nullable Tensor scored;

    DecoderHead(DecoderConfig config, Parameter table, ModelPlan plan) {
        ranks = plan.tensorParallel();
        lossTokens = config.lossTokens();
        ModelPlan group = plan.group("head");
        sizes = config.sizes();
        Parameter weight = config.form().head() == DecoderForm.Head.TIED ? table : declare(sizes, group);
        linear = Linear.tied(weight, Bias.ABSENT, group);
        long columns = sizes.paddedVocabulary();
        long first = Math.min(ranks.begin(columns, ranks.rank()), sizes.vocabulary());
        long end = Math.min(ranks.begin(columns, ranks.rank() + 1), sizes.vocabulary());
        crossEntropy = new VocabularyCrossEntropy(first, end - first, sizes.vocabulary(), 0);
    }

    /** Declares this rank's rows, as an embedding divides its table. */
    private static Parameter declare(DecoderSizes sizes, ModelPlan plan) {
        long rows = sizes.paddedVocabulary();
        TensorParallel ranks = plan.tensorParallel();
        Shape whole = Shape.of(rows, sizes.hidden());
        return ranks.isSplit()
                ? plan.declare(
                        "weight",
                        TransformerBody.WEIGHTS,
                        new ParameterSplit(whole, 0, List.of(rows), ranks.rank(), ranks.size()))
                : plan.declare("weight", TransformerBody.WEIGHTS, rows, sizes.hidden());
    }

    /** Enqueues the scores of all tokens. */
    Tensor logits(Tensor hidden, Pass pass) {
        Quantizers recipe = pass.quantizers();
        boolean calibrates = pass.isCalibrating();
        pass.noAutocast();
        try {
            return linear.forward(hidden, pass);
        } finally {
            restore(recipe, calibrates, pass);
        }
    }

    private static void restore(@Nullable Quantizers recipe, boolean calibrates, Pass pass) {
        if (recipe != null && calibrates) {
            pass.calibrate(recipe);
        } else if (recipe != null) {
            pass.autocast(recipe);
        }
    }

    @Override
    public @Nullable TokenScores scores() {
        Tensor logits = scored;
        return logits == null
                ? null
                : new TokenScores(logits, ranks.begin(sizes.paddedVocabulary(), ranks.rank()), sizes.vocabulary());
    }

    @Override
    public Tensor loss(Tensor hidden, Tensor labels, Pass pass) {
        pass.ensureBegun(this);
        scored = null;
        long tokens = hidden.size(0);
        boolean divided = lossTokens > 0 && tokens > lossTokens;
        Tensor logits = divided ? null : logits(hidden, pass);
        Scope kept = pass.kept();
        Tensor logSumExp = kept.tensor(DType.FLOAT32, tokens);
        Tensor counted = kept.tensor(DType.INT32, 1);
        Tensor loss = pass.temporary().tensor(DType.FLOAT32, 1);
        Scope before = pass.enter();
        try {
            Tensor sums = pass.temporary().tensor(DType.FLOAT32, crossEntropy.sumRows(), tokens);
            if (logits == null) {
                sumParts(hidden, labels, logSumExp, sums, pass);
            } else {
                sum(logits, labels, logSumExp, sums, pass.stream());
            }
            crossEntropy.loss(logSumExp, sums, labels, null, null, loss, counted, pass.stream());
        } finally {
            pass.leave(before);
        }
        scored = logits;
        save(hidden, labels, logSumExp, counted, logits, pass);
        return loss;
    }

    private void save(
            Tensor hidden, Tensor labels, Tensor logSumExp, Tensor counted, @Nullable Tensor logits, Pass pass) {
        Call call = saved.push(pass);
        if (call == null) {
            return;
        }
        call.hidden.set(hidden);
        call.labels.set(labels);
        call.logSumExp.set(logSumExp);
        call.counted.set(counted);
        if (logits == null) {
            call.logits.clear();
        } else {
            call.logits.set(logits);
        }
    }

    /** Enqueues the largest logit and the sums of each token. */
    private void sum(Tensor logits, Tensor labels, Tensor maximum, Tensor sums, Stream stream) {
        crossEntropy.maximum(logits, maximum, stream);
        ranks.max(maximum, stream);
        crossEntropy.sums(logits, labels, maximum, sums, stream);
        ranks.sum(sums, stream);
    }

    private void sumParts(Tensor hidden, Tensor labels, Tensor maximum, Tensor sums, Pass pass) {
        boolean done = false;
        pass.calls().begin(Direction.FORWARD);
        try {
            boolean saving = pass.isSaving();
            if (saving) {
                try (Pass.SavingSwitch off = pass.withoutSaving()) {
                    sumEach(hidden, labels, maximum, sums, pass);
                }
            } else {
                sumEach(hidden, labels, maximum, sums, pass);
            }
            pass.calls().end(Direction.FORWARD);
            done = true;
        } finally {
            if (!done) {
                pass.calls().fail();
            }
        }
    }

    private void sumEach(Tensor hidden, Tensor labels, Tensor maximum, Tensor sums, Pass pass) {
        Scope scope = pass.temporary();
        Stream stream = pass.stream();
        Tensor buffer = buffer(hidden, scope);
        long tokens = hidden.size(0);
        for (long first = 0; first < tokens; first += lossTokens) {
            long count = Math.min(lossTokens, tokens - first);
            Tensor logits = rows(buffer, 0, count, scope);
            product(rows(hidden, first, count, scope), logits, pass);
            try (Scope part = scope.open()) {
                Tensor partSums = part.tensor(DType.FLOAT32, sums.size(0), count);
                sum(logits, part.view(labels, first, count), part.view(maximum, first, count), partSums, stream);
                for (long row = 0; row < sums.size(0); row++) {
                    part.view(sums, row * tokens + first, count)
                            .copyFrom(stream, part.view(partSums, row * count, count));
                }
            }
        }
    }

    private Tensor buffer(Tensor hidden, Scope scope) {
        return scope.tensor(hidden.dtype(), lossTokens, linear.outputColumns(hidden.size(1)));
    }

    private static Tensor rows(Tensor matrix, long first, long count, Scope scope) {
        return scope.view(matrix, first * matrix.size(1), count, matrix.size(1));
    }

    private void product(Tensor x, Tensor y, Pass pass) {
        Quantizers recipe = pass.quantizers();
        boolean calibrates = pass.isCalibrating();
        pass.noAutocast();
        try {
            linear.forward(x, y, pass);
        } finally {
            restore(recipe, calibrates, pass);
        }
    }

    @Override
    public Tensor backward(float factor, @Nullable Tensor lossScale, Pass pass) {
        pass.ensureBegun(this);
        Call call = saved.peek(pass);
        Tensor labels = call.labels.get();
        Tensor logSumExp = call.logSumExp.get();
        Tensor counted = call.counted.get();
        Factors factors = call.factors.set(factor, lossScale, null);
        if (!call.logits.isEmpty()) {
            Tensor logits = call.logits.get();
            crossEntropy.backward(logits, labels, logSumExp, counted, factors, logits, pass.stream());
            saved.pop(pass);
            return linear.backward(logits, pass);
        }
        Tensor hidden = call.hidden.get();
        pass.ensureUnchanged(linear.weight());
        saved.pop(pass);
        Tensor dx = pass.temporary().like(hidden);
        Scope before = pass.enter();
        boolean done = false;
        try {
            pass.calls().begin(Direction.BACKWARD);
            Scope scope = pass.temporary();
            Tensor buffer = buffer(hidden, scope);
            for (long first = 0; first < hidden.size(0); first += lossTokens) {
                long count = Math.min(lossTokens, hidden.size(0) - first);
                Tensor logits = rows(buffer, 0, count, scope);
                product(rows(hidden, first, count, scope), logits, pass);
                crossEntropy.backward(
                        logits,
                        scope.view(labels, first, count),
                        scope.view(logSumExp, first, count),
                        counted,
                        factors,
                        logits,
                        pass.stream());
                linear.backward(logits, rows(dx, first, count, scope), pass);
            }
            if (!hidden.requiresGradient()) {
                dx.zero(pass.stream());
            }
            pass.calls().gradientsWritten();
            pass.calls().end(Direction.BACKWARD);
            done = true;
        } finally {
            pass.leave(before);
            if (!done) {
                pass.calls().fail();
                pass.fail();
            }
        }
        return dx;
    }

    @Override
    public String toString() {
        return linear.name();
    }
}
