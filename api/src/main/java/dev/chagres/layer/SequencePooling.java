package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.attention.CuSeqlens;
import dev.chagres.attention.Sequences;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.ops.SequencePool;
import dev.chagres.pass.ContextPool;
import dev.chagres.pass.Pass;
import dev.chagres.pass.SavedContext;
import dev.chagres.pass.SavedTensor;
import dev.chagres.te.QkvFormat;

/**
 * One row of each of the pass' sequences: {@code y[b] =} mean, first or largest of {@code x[t]} over b's tokens, padding left out; 0 of a sequence
 * without tokens. Layers after it compute with B rows.
 *
 * {@snippet file="dev/chagres/layer/SequencePoolingConformance.java" region="pooling"}
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code mean_tokens}, {@code cls_token} and {@code max_tokens} of sentence-transformers' {@code Pooling}.
 */
public final class SequencePooling {
    private static final class Call extends SavedContext {
        private final SavedTensor lengths = new SavedTensor("the lengths of sequences");
        private final SavedTensor starts = new SavedTensor("the starts of sequences");
        private final SavedTensor argument = new SavedTensor("the tokens that were largest");
        private QkvFormat format = QkvFormat.THD;
        private long tokens;
        private DType dtype = DType.FLOAT32;
    }

    private final SequencePool.Kind kind;
    private final ContextPool<Call> saved = new ContextPool<>(this, Call::new);

    /** Makes one of this kind; it has no parameters. */
    public SequencePooling(SequencePool.Kind kind) {
        this.kind = Checks.given("kind", kind);
    }

    /**
     * Enqueues the pooling.
     *
     * @param x [T, H], all tokens of the pass' sequences, FLOAT32, BFLOAT16 or FLOAT16
     * @return [B, H] of the same type
     * @throws IllegalArgumentException when shape, type or device do not fit, such as of a part of the tokens that ranks have split
     * @throws IllegalStateException when the pass was not begun, or has no sequences
     */
    public Tensor forward(Tensor x, Pass pass) {
        Checks.given("pass", pass).ensureBegun(this);
        Checks.matrix(pass.stream(), "x", x);
        Sequences sequences = pass.sequences().queries();
        sequences.checkTokens("x", x, x.size(0));
        CuSeqlens gaps = sequences.cuSeqlensPadded();
        Tensor starts = gaps == null ? null : gaps.offsets();
        Tensor lengths = sequences.cuSeqlens().offsets();
        QkvFormat format = sequences.format();
        Tensor y = pass.kept().tensor(x.dtype(), sequences.batch(), x.size(1));
        Tensor argument = kind == SequencePool.Kind.MAX ? pass.kept().tensor(DType.INT32, y.size(0), y.size(1)) : null;
        SequencePool.forward(x, lengths, starts, format, kind, y, argument, pass.stream());
        Inside.requireGradient(y, pass.isSaving() && x.requiresGradient());
        Call call = saved.push(pass);
        if (call != null) {
            call.lengths.set(lengths);
            if (starts == null) {
                call.starts.clear();
            } else {
                call.starts.set(starts);
            }
            if (argument != null) {
                call.argument.set(argument);
            }
            call.format = format;
            call.tokens = x.size(0);
            call.dtype = x.dtype();
        }
        return y;
    }

    /**
     * Enqueues the gradient of the input.
     *
     * @param dy [B, H]
     * @return [T, H]; 0 of tokens that were not taken, padding included
     * @throws IllegalArgumentException when shape, type or device do not fit
     * @throws IllegalStateException when the last forward call of the pass was another layer's, or the memory of the lengths is gone
     */
    public Tensor backward(Tensor dy, Pass pass) {
        Checks.given("pass", pass).ensureBegun(this);
        Call call = saved.peek(pass);
        Tensor starts = call.starts.isEmpty() ? null : call.starts.get();
        Checks.matrix(pass.stream(), "dy", dy);
        Tensor dx = pass.temporary().tensor(call.dtype, call.tokens, dy.size(1));
        Tensor argument = kind == SequencePool.Kind.MAX ? call.argument.get() : null;
        SequencePool.backward(dy, call.lengths.get(), starts, call.format, kind, argument, dx, pass.stream());
        saved.pop(pass);
        return dx;
    }

    @Override
    public String toString() {
        return kind + " by sequence";
    }
}
