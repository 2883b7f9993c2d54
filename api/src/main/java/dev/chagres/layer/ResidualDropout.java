package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.model.ContextParallel;
import dev.chagres.model.ModelPlan;
import dev.chagres.model.TensorParallel;
import dev.chagres.ops.DropPath;
import dev.chagres.te.QkvFormat;
import org.jspecify.annotations.Nullable;

/**
 * What is left out of a branch before it is added to the residual stream: single values, and the branch of whole sequences.
 * {@code sum = stream + path(dropout(branch))}; both only scale values, so that their order changes rounding alone.
 *
 * <p>Threading: the device's thread.
 */
final class ResidualDropout {
    /** What backward needs of one sum. */
    static final class Drawn {
        private final Kept mask = new Kept("the dropout's mask");
        private final Kept factors = new Kept("the factors of the sequences");
        private final Kept offsets = new Kept("the offsets of the sequences");
        private QkvFormat format = QkvFormat.THD;
        private long extent;

        /** Returns whether forward left anything out. */
        boolean isPresent() {
            return !mask.isEmpty() || !factors.isEmpty();
        }

        void clear() {
            mask.clear();
            factors.clear();
            offsets.clear();
        }
    }

    /** Values that one number of the counter drops. */
    private static final int DRAWN_AT_ONCE = 4;

    private final Dropout values;
    private final Dropout paths;
    private final TensorParallel tensor;
    private final ContextParallel context;

    private ResidualDropout(Dropout values, Dropout paths, ModelPlan plan) {
        this.values = values;
        this.paths = paths;
        tensor = plan.tensorParallel();
        context = plan.contextParallel();
    }

    /**
     * Makes what {@code config} says.
     *
     * @throws IllegalArgumentException when a rank's part of the tokens could not draw as all tokens do
     */
    static ResidualDropout of(TransformerLayerConfig config, ModelPlan plan) {
        TensorParallel tensor = plan.tensorParallel();
        ContextParallel context = plan.contextParallel();
        if (tensor.isSequenceParallel() || context.isSplit()) {
            String ranks = context.isSplit()
                    ? context.size() + " context-parallel ranks"
                    : tensor.size() + " sequence-parallel ranks";
            if (!config.dropPath().isNone() && !context.gathersKeys()) {
                throw new IllegalArgumentException("dropPath: " + plan.name() + " expected none where " + ranks
                        + " have parts of sequences, got " + config.dropPath());
            }
            if (!config.hiddenDropout().isNone() && context.chunks() > 1) {
                throw new IllegalArgumentException("hiddenDropout: " + plan.name() + " expected none where " + ranks
                        + " have two stretches of the tokens each, of which one mask would have parts that lie apart, got "
                        + config.hiddenDropout() + "; ContextParallel.withRing gives each rank one stretch");
            }
            if (config.hidden() % DRAWN_AT_ONCE != 0) {
                throw new IllegalArgumentException("hidden: " + plan.name() + " expected a multiple of " + DRAWN_AT_ONCE
                        + " columns for " + ranks + ", got " + config.hidden());
            }
        }
        return new ResidualDropout(config.hiddenDropout(), config.dropPath(), plan);
    }

    /** Returns whether forward in {@code pass} leaves anything out. */
    boolean drops(Pass pass) {
        return pass.isTraining() && !(values.isNone() && paths.isNone());
    }

    /**
     * Enqueues the sum with what this micro-batch draws.
     *
     * @param added what the branch gave; overwritten where sequences are left out
     * @param sum may be {@code added} or {@code stream}
     * @param drawn receives what backward needs; null while nothing is saved
     */
    void add(Tensor added, Tensor stream, Tensor sum, @Nullable Drawn drawn, Pass pass) {
        if (paths.isNone()) {
            dropValues(added, stream, sum, drawn, pass);
            return;
        }
        boolean both = !values.isNone();
        scaleSequences(added, both ? null : stream, both ? added : sum, drawn, pass);
        if (both) {
            dropValues(added, stream, sum, drawn, pass);
        }
    }

    private void dropValues(Tensor added, Tensor stream, Tensor sum, @Nullable Drawn kept, Pass pass) {
        Tensor mask = pass.kept().tensor(DType.BYTE, dev.chagres.ops.Dropout.maskBytes(added.count()));
        // A rank's part of the tokens is dropped by its part of the mask of all tokens.
        Tensor drawn = pass.draws().next(pass.kept(), Math.toIntExact(valuesBefore(added, pass) / DRAWN_AT_ONCE));
        dev.chagres.ops.Dropout.dropoutAdd(added, stream, sum, mask, drawn, values.probability(), pass.stream());
        if (kept != null) {
            kept.mask.set(mask);
        }
    }

    /** Returns how many values of all tokens stand before this rank's part. */
    private long valuesBefore(Tensor part, Pass pass) {
        if (context.isSplit()) {
            Sequences sequences = pass.sequences();
            long tokens = (context.gathersKeys() ? sequences.keys() : sequences).tokens();
            context.checkPart("x", part.size(0), tokens);
            return context.begin(tokens, context.rank()) * part.size(1);
        }
        return tensor.isSequenceParallel() ? tensor.rank() * part.count() : 0;
    }

    private void scaleSequences(Tensor added, @Nullable Tensor stream, Tensor sum, @Nullable Drawn drawn, Pass pass) {
        Sequences sequences = pass.sequences().queries();
        sequences.checkTokens("x", added, added.size(0));
        QkvFormat format = sequences.format();
        Scope kept = pass.kept();
        Tensor offsets = format == QkvFormat.THD ? sequences.placement().offsets() : null;
        long extent = format == QkvFormat.BSHD ? sequences.length() : sequences.batch();
        Tensor factors = kept.tensor(DType.FLOAT32, sequences.batch());
        DropPath.dropPathFactors(pass.draw(), paths.probability(), factors, pass.stream());
        DropPath.scaleSequencesAdd(added, stream, sum, factors, offsets, format, extent, pass.stream());
        if (drawn != null) {
            drawn.factors.set(factors);
            drawn.format = format;
            drawn.extent = extent;
            if (offsets != null) {
                drawn.offsets.set(offsets);
            }
        }
    }

    /** Enqueues the gradient {@code dadded} of what the branch gave from {@code dsum}, that of the sum. */
    void gradient(Tensor dsum, Tensor dadded, Drawn drawn, Pass pass) {
        Tensor from = dsum;
        if (!drawn.mask.isEmpty()) {
            dev.chagres.ops.Dropout.dropoutBackward(
                    from, drawn.mask.get(), dadded, values.probability(), pass.stream());
            from = dadded;
        }
        if (!drawn.factors.isEmpty()) {
            Tensor offsets = drawn.offsets.isEmpty() ? null : drawn.offsets.get();
            DropPath.scaleSequencesAdd(
                    from, null, dadded, drawn.factors.get(), offsets, drawn.format, drawn.extent, pass.stream());
        }
    }
}
