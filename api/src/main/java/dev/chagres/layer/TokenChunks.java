package dev.chagres.layer;

import dev.chagres.attention.Sequences;
import dev.chagres.parallel.ContextParallel;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.ModelPlan;

/**
 * Which tokens a rank has between branches: all, or one stretch, or two with a balanced ring. If context-parallel ranks are also
 * sequence-parallel, a rank has a part of the rows of its stretches.
 *
 * <p>Threading: immutable.
 */
final class TokenChunks {
    private final TensorParallel tensor;
    private final ContextParallel context;

    private TokenChunks(TensorParallel tensor, ContextParallel context) {
        this.tensor = tensor;
        this.context = context;
    }

    static TokenChunks of(ModelPlan plan) {
        return new TokenChunks(plan.tensorParallel(), plan.contextParallel());
    }

    /** Returns whether a rank has some of the tokens. */
    boolean areParts() {
        return tensor.isSequenceParallel() || context.isSplit();
    }

    /** Returns the most stretches that a rank may have. */
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

    /** Returns the first row of a stretch. */
    long row(int stretch, long rows, long tokens) {
        return Math.max(before(rows), begin(stretch, tokens)) - before(rows);
    }

    /** Returns how many rows a stretch has; perhaps none. */
    long count(int stretch, long rows, long tokens) {
        long first = Math.max(before(rows), begin(stretch, tokens));
        return Math.max(0, Math.min(before(rows) + rows, begin(stretch + 1, tokens)) - first);
    }

    /** Returns the number among all tokens of the first row of a stretch. */
    long token(int stretch, long rows, long tokens) {
        long first = Math.max(before(rows), begin(stretch, tokens)) - begin(stretch, tokens);
        return context.isSplit() ? context.chunkBegin(tokens, context.chunk(context.rank(), stretch)) + first : first;
    }

    /** Returns the rows of the context-parallel rank's before this rank's part of them. */
    private long before(long rows) {
        return tensor.isSequenceParallel() ? tensor.rank() * rows : 0;
    }

    /** Returns the row of the context-parallel rank's at which a stretch begins; the last one ends where that behind it would. */
    private long begin(int stretch, long tokens) {
        if (!context.isSplit()) {
            return stretch == 0 ? 0 : tokens;
        }
        long row = 0;
        for (int i = 0; i < stretch; i++) {
            int chunk = context.chunk(context.rank(), i);
            row += context.chunkBegin(tokens, chunk + 1) - context.chunkBegin(tokens, chunk);
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
