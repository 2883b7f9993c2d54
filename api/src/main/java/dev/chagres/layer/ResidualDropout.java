package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.internal.Checks;
import dev.chagres.ops.DropPath;
import dev.chagres.ops.TokenPositions;
import dev.chagres.parallel.ContextParallel;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.pass.Pass;
import dev.chagres.pass.SavedTensor;
import dev.chagres.te.QkvFormat;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Dropout and drop path of a branch before it is added to the residual stream, {@code sum = stream + path(dropout(branch))}. Both only
 * scale values, so that their order affects only rounding.
 *
 * <p>A rank that has some of the tokens drops what a single rank drops of them: values by their part of the mask of all tokens, sequences
 * by the factors of all sequences.
 *
 * <p>Threading: the device's thread.
 */
final class ResidualDropout {
    /** What backward needs of one sum. */
    static final class Drawn {
        /** A mask for each chunk of the rows. */
        private final List<SavedTensor> masks = new ArrayList<>();

        private final SavedTensor factors = new SavedTensor("the factors of the sequences");
        private final SavedTensor offsets = new SavedTensor("the offsets of the sequences");
        private final TokenPositions positions = new TokenPositions();
        /** Tokens of all ranks. */
        private long tokens;

        /** Returns whether forward left anything out. */
        boolean isPresent() {
            return dropsValues() || !factors.isEmpty();
        }

        private boolean dropsValues() {
            for (int i = 0; i < masks.size(); i++) {
                if (!masks.get(i).isEmpty()) {
                    return true;
                }
            }
            return false;
        }

        private SavedTensor mask(int chunk) {
            while (masks.size() <= chunk) {
                masks.add(new SavedTensor("the dropout's mask"));
            }
            return masks.get(chunk);
        }

        void clear() {
            masks.forEach(SavedTensor::clear);
            factors.clear();
            offsets.clear();
        }
    }

    /** Values for which one value of the counter draws. */
    private static final int DRAWN_AT_ONCE = 4;

    private final Dropout values;
    private final Dropout paths;
    private final TokenChunks chunks;
    /** For sums in evaluation. */
    private final Drawn unsaved = new Drawn();

    private ResidualDropout(Dropout values, Dropout paths, TokenChunks chunks) {
        this.values = values;
        this.paths = paths;
        this.chunks = chunks;
    }

    /**
     * Makes dropout and drop path of {@code config}.
     *
     * @throws IllegalArgumentException when a rank's part of the tokens could not draw as all tokens do
     */
    static ResidualDropout of(TransformerLayerConfig config, ModelPlan plan) {
        TokenChunks chunks = TokenChunks.of(plan);
        if (chunks.areParts() && config.hidden() % DRAWN_AT_ONCE != 0) {
            throw new IllegalArgumentException("hidden: " + plan.name() + " expected a multiple of " + DRAWN_AT_ONCE
                    + " columns for " + chunks + ", got " + config.hidden());
        }
        return new ResidualDropout(config.hiddenDropout(), config.dropPath(), chunks);
    }

    /** Returns whether forward in {@code pass} leaves anything out. */
    boolean drops(Pass pass) {
        return pass.isTraining() && !(values.isNone() && paths.isNone());
    }

    /**
     * Enqueues the sum with this micro-batch's random numbers.
     *
     * @param added what the branch gave; overwritten where sequences are left out
     * @param sum may be {@code added} or {@code stream}
     * @param drawn receives what backward needs; null while nothing is saved
     */
    void add(Tensor added, Tensor stream, Tensor sum, @Nullable Drawn drawn, Pass pass) {
        Drawn record = drawn == null ? unsaved : drawn;
        record.tokens = chunks.tokens(added.size(0), pass);
        if (paths.isNone()) {
            dropValues(added, stream, sum, record, pass);
            return;
        }
        drawFactors(added, record, pass);
        boolean both = !values.isNone();
        scaleSequences(added, both ? null : stream, both ? added : sum, record, pass);
        if (both) {
            dropValues(added, stream, sum, record, pass);
        }
    }

    /** A rank's tokens are dropped by their part of the mask of all tokens. */
    private void dropValues(Tensor added, Tensor stream, Tensor sum, Drawn drawn, Pass pass) {
        Scope kept = pass.kept();
        pass.beginDraw();
        for (int i = 0; i < chunks.most(); i++) {
            Tensor part = part(added, i, drawn, pass);
            if (part == null) {
                continue;
            }
            long before = chunks.token(i, added.size(0), drawn.tokens) * added.size(1);
            Tensor state = kept.tensor(DType.INT64, 2);
            pass.writeDraw(state, skipped(before));
            Tensor mask = kept.tensor(DType.BYTE, dev.chagres.ops.Dropout.maskBytes(part.count()));
            dev.chagres.ops.Dropout.dropoutAdd(
                    part,
                    given(part(stream, i, drawn, pass)),
                    given(part(sum, i, drawn, pass)),
                    mask,
                    state,
                    values.probability(),
                    pass.stream());
            drawn.mask(i).set(mask);
        }
    }

    /** Returns how far the random numbers of all tokens go before those of this rank's. */
    private static int skipped(long elements) {
        long draws = elements / DRAWN_AT_ONCE;
        if (draws > Integer.MAX_VALUE) {
            throw new IllegalArgumentException("dropout: expected at most " + (long) Integer.MAX_VALUE * DRAWN_AT_ONCE
                    + " elements of earlier tokens, which are on other ranks, got " + elements
                    + "; use smaller micro-batches");
        }
        return (int) draws;
    }

    /** Returns the rows of a chunk; null where it has none. */
    private @Nullable Tensor part(Tensor rows, int chunk, Drawn drawn, Pass pass) {
        long count = chunks.count(chunk, rows.size(0), drawn.tokens);
        if (count == 0) {
            return null;
        }
        long first = chunks.row(chunk, rows.size(0), drawn.tokens) * rows.size(1);
        return count == rows.size(0) ? rows : pass.temporary().view(rows, first, count, rows.size(1));
    }

    private static Tensor given(@Nullable Tensor part) {
        return Checks.given("part", part);
    }

    private void drawFactors(Tensor added, Drawn drawn, Pass pass) {
        Sequences sequences = chunks.sequences(pass);
        sequences.checkTokens("x", added, drawn.tokens);
        Tensor factors = pass.kept().tensor(DType.FLOAT32, sequences.batch());
        DropPath.dropPathFactors(pass.draw(), paths.probability(), factors, pass.stream());
        drawn.factors.set(factors);
        QkvFormat format = sequences.format();
        if (format == QkvFormat.THD) {
            drawn.offsets.set(sequences.placement().offsets());
        } else {
            drawn.positions.padded(format, format == QkvFormat.BSHD ? sequences.length() : sequences.batch());
            drawn.offsets.clear();
        }
    }

    private void scaleSequences(Tensor added, @Nullable Tensor stream, Tensor sum, Drawn drawn, Pass pass) {
        if (!drawn.offsets.isEmpty()) {
            drawn.positions.packed(drawn.offsets.get());
        }
        for (int i = 0; i < chunks.most(); i++) {
            Tensor part = part(added, i, drawn, pass);
            if (part != null) {
                DropPath.scaleSequencesAdd(
                        part,
                        stream == null ? null : part(stream, i, drawn, pass),
                        given(part(sum, i, drawn, pass)),
                        drawn.factors.get(),
                        drawn.positions,
                        chunks.token(i, added.size(0), drawn.tokens),
                        drawn.tokens,
                        pass.stream());
            }
        }
    }

    /** Enqueues the gradient {@code dadded} of the branch's output from {@code dsum}, that of the sum. */
    void gradient(Tensor dsum, Tensor dadded, Drawn drawn, Pass pass) {
        Tensor from = dsum;
        if (drawn.dropsValues()) {
            for (int i = 0; i < chunks.most(); i++) {
                Tensor part = part(from, i, drawn, pass);
                if (part != null) {
                    dev.chagres.ops.Dropout.dropoutBackward(
                            part,
                            drawn.mask(i).get(),
                            given(part(dadded, i, drawn, pass)),
                            values.probability(),
                            pass.stream());
                }
            }
            from = dadded;
        }
        if (!drawn.factors.isEmpty()) {
            scaleSequences(from, null, dadded, drawn, pass);
        }
    }

    /**
     * Which tokens a rank has between branches: all, or one chunk, or two with a balanced ring. If context-parallel ranks are also
     * sequence-parallel, a rank has a part of the rows of its chunks.
     */
    private record TokenChunks(TensorParallel tensor, ContextParallel context) {
        static TokenChunks of(ModelPlan plan) {
            return new TokenChunks(plan.tensorParallel(), plan.contextParallel());
        }

        /** Returns whether a rank has some of the tokens. */
        boolean areParts() {
            return tensor.isSequenceParallel() || context.isSplit();
        }

        /** Returns the most chunks that a rank may have. */
        int most() {
            return context.chunks();
        }

        /** Returns the sequences of all tokens. */
        Sequences sequences(Pass pass) {
            Sequences present = pass.sequences();
            return present.part() >= 0 ? present.keys() : present.queries();
        }

        /** Returns the number of all tokens where this rank has {@code rows}. */
        long tokens(long rows, Pass pass) {
            long own = tensor.isSequenceParallel() ? rows * tensor.size() : rows;
            if (!context.isSplit()) {
                return own;
            }
            long all = sequences(pass).tokens();
            context.checkPart("x", own, all);
            return all;
        }

        /** Returns the first row of a chunk. */
        long row(int chunk, long rows, long tokens) {
            return Math.max(before(rows), begin(chunk, tokens)) - before(rows);
        }

        /** Returns how many rows a chunk has; perhaps none. */
        long count(int chunk, long rows, long tokens) {
            long first = Math.max(before(rows), begin(chunk, tokens));
            return Math.max(0, Math.min(before(rows) + rows, begin(chunk + 1, tokens)) - first);
        }

        /** Returns the number among all tokens of the first row of a chunk. */
        long token(int chunk, long rows, long tokens) {
            long first = Math.max(before(rows), begin(chunk, tokens)) - begin(chunk, tokens);
            return context.isSplit() ? context.chunkBegin(tokens, context.chunk(context.rank(), chunk)) + first : first;
        }

        /** Returns the rows of the context-parallel rank's before this rank's part of them. */
        private long before(long rows) {
            return tensor.isSequenceParallel() ? tensor.rank() * rows : 0;
        }

        /** Returns the row of the context-parallel rank's at which a chunk begins; the last one ends where that behind it would. */
        private long begin(int chunk, long tokens) {
            if (!context.isSplit()) {
                return chunk == 0 ? 0 : tokens;
            }
            long row = 0;
            for (int i = 0; i < chunk; i++) {
                int own = context.chunk(context.rank(), i);
                row += context.chunkBegin(tokens, own + 1) - context.chunkBegin(tokens, own);
            }
            return row;
        }

        @Override
        public String toString() {
            return context.isSplit()
                    ? context.size() + " context-parallel ranks"
                    : tensor.size() + " sequence-parallel ranks";
        }
    }
}
