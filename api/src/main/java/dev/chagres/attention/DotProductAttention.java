package dev.chagres.attention;

import dev.chagres.DType;
import dev.chagres.Dropout;
import dev.chagres.Philox;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.AttentionCall;
import dev.chagres.internal.AttentionCall.Packing;
import dev.chagres.internal.AttentionSettings;
import dev.chagres.internal.Calls;
import dev.chagres.internal.Checks;
import dev.chagres.internal.TensorCell;

/**
 * {@code o = dropout(softmax(scale q k^T + mask)) v} for each head, over packed or padded sequences.
 *
 * <p>Shapes: q, k, v and o are [T, h, d] packed (THD), [B, S, h, d] (BSHD) or [S, B, h, d] (SBHD); or one buffer holds
 * all three, as [T, 3 h d] rows of query, key, value. FLOAT32, BFLOAT16 or FLOAT16. The softmax is computed in FP32.
 *
 * <p>cuDNN's fused kernels compute BFLOAT16 and FLOAT16. What they do not take our own tiled kernels compute, in FP32
 * whatever the type: FLOAT32, and padded batches of one token a sequence. The choice is the same on every provider.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code nvte_fused_attn_fwd_v2}, {@code nvte_fused_attn_bwd_v2} in TE's {@code fused_attn.h};
 * {@code ops_attention_forward}, {@code ops_attention_backward} in {@code ops.h}.
 */
public final class DotProductAttention {
    /** Draws that an attention call may take from the generator. */
    private static final long DRAWS = 16;

    /** cuDNN builds a kernel plan for each longest length; rounding up keeps them few. */
    private static final long LENGTH_STEP = 128;

    /** How query, key and value came, and so how their gradients go. */
    private enum Form {
        SEPARATE("forward", "backward"),
        PACKED("forwardPacked", "backwardPacked");

        private final String forward;
        private final String backward;

        Form(String forward, String backward) {
            this.forward = forward;
            this.backward = backward;
        }
    }

    private final AttentionConfig config;
    private final AttentionSettings[] settings;

    /** Makes attention as {@code config} says. */
    public DotProductAttention(AttentionConfig config) {
        this.config = config;
        QkvLayout[] layouts = QkvLayout.values();
        settings = new AttentionSettings[layouts.length * 2];
        for (QkvLayout layout : layouts) {
            for (Sequences.Padding padding : Sequences.Padding.values()) {
                settings[layout.ordinal() * 2 + padding.ordinal()] = new AttentionSettings(
                        layout.code(),
                        layout.format().code(),
                        config.mask().code(padding),
                        config.mask().windowLeft(),
                        config.mask().windowRight(),
                        config.scale(),
                        config.dropout().probability());
            }
        }
    }

    /** Returns what is computed. */
    public AttentionConfig config() {
        return config;
    }

    /**
     * Enqueues attention over three tensors.
     *
     * @param scope receives output and what backward needs
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or the sequences end off the tokens
     */
    public SavedAttention forward(Tensor q, Tensor k, Tensor v, Sequences sequences, Scope scope) {
        checkNotEmpty(sequences);
        TensorCell query = Checks.on(scope, "q", q);
        checkHeads("q", query, sequences);
        Checks.like(scope, "k", k, query);
        Checks.like(scope, "v", v, query);
        Tensor output = scope.like(q);
        return run(QkvLayout.separate(sequences.format()), q, k, v, output, sequences, scope);
    }

    /**
     * Enqueues attention over one buffer.
     *
     * @param qkv [T, 3 h d]: query, key and value of each token side by side
     * @param scope receives output and what backward needs
     * @return saved; its output is [T, h d]
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or the sequences end off the tokens
     */
    public SavedAttention forwardPacked(Tensor qkv, Sequences sequences, Scope scope) {
        long width = (long) config.heads() * config.headDim();
        TensorCell cell = Checks.matrix(scope, "qkv", qkv, qkv.dtype(), 3 * width);
        checkType("qkv", cell);
        sequences.checkTokens("qkv", qkv, cell.size(0));
        checkNotEmpty(sequences);
        Tensor output = scope.tensor(qkv.dtype(), cell.size(0), width);
        Tensor q = shaped(scope, qkv, 0, sequences);
        Tensor k = shaped(scope, qkv, width, sequences);
        Tensor v = shaped(scope, qkv, 2 * width, sequences);
        return run(QkvLayout.packed(sequences.format()), q, k, v, output, sequences, scope);
    }

    /**
     * Enqueues the gradients of {@link #forward}.
     *
     * @param dO gradient of the output, like it
     * @param dq receives the gradient of the query, like it; so {@code dk} and {@code dv}
     * @param scope its stream computes; it hands out scratch memory
     * @throws IllegalArgumentException when shapes, types or devices do not fit, a gradient shares memory with another
     *     tensor, or the record is another attention's
     * @throws IllegalStateException when the record's scope is closed, or was restarted since
     */
    public void backward(Tensor dO, SavedAttention saved, Tensor dq, Tensor dk, Tensor dv, Scope scope) {
        check(saved, Form.SEPARATE);
        AttentionCall call = saved.call();
        TensorCell gradient = Checks.like(scope, "dO", dO, saved.output().cell());
        TensorCell query = Checks.like(scope, "dq", dq, call.q);
        TensorCell key = Checks.like(scope, "dk", dk, call.k);
        TensorCell value = Checks.like(scope, "dv", dv, call.v);
        Checks.apart("dq", query, "dk", key);
        Checks.apart("dq", query, "dv", value);
        Checks.apart("dk", key, "dv", value);
        checkApart("dq", query, gradient, call);
        checkApart("dk", key, gradient, call);
        checkApart("dv", value, gradient, call);
        runBackward(saved, gradient, query, key, value, scope);
    }

    /**
     * Enqueues the gradient of {@link #forwardPacked}.
     *
     * @param dO gradient of the output: [T, h d]
     * @param dqkv receives the gradient of the buffer: [T, 3 h d]
     * @param scope its stream computes; it hands out views and scratch memory
     * @throws IllegalArgumentException when shapes, types or devices do not fit, the gradient shares memory with another
     *     tensor, or the record is another attention's
     * @throws IllegalStateException when the record's scope is closed, or was restarted since
     */
    public void backwardPacked(Tensor dO, SavedAttention saved, Tensor dqkv, Scope scope) {
        check(saved, Form.PACKED);
        long width = (long) config.heads() * config.headDim();
        TensorCell output = saved.output().cell();
        Checks.like(scope, "dO", dO, output);
        Checks.matrix(scope, "dqkv", dqkv, output.dtype(), output.size(0), 3 * width);
        checkApart("dqkv", dqkv.cell(), dO.cell(), saved.call());
        Sequences sequences = saved.sequences();
        runBackward(
                saved,
                shaped(scope, dO, 0, sequences).cell(),
                shaped(scope, dqkv, 0, sequences).cell(),
                shaped(scope, dqkv, width, sequences).cell(),
                shaped(scope, dqkv, 2 * width, sequences).cell(),
                scope);
    }

    private static void runBackward(
            SavedAttention saved, TensorCell dO, TensorCell dq, TensorCell dk, TensorCell dv, Scope scope) {
        Calls calls = calls(scope);
        AttentionSettings with = saved.settings();
        AttentionCall call = saved.call();
        switch (saved.kernels()) {
            case FUSED -> {
                Checks.aligned("dO", dO);
                Checks.aligned("dq", dq);
                Checks.aligned("dk", dk);
                Checks.aligned("dv", dv);
                calls.fusedAttention()
                        .backward(scope.stream(), with, call, saved.statistics().cell(), dO, dq, dk, dv);
            }
            case TILED -> calls.tiledAttention().backward(scope, with, call, saved.statistics(), dO, dq, dk, dv);
        }
    }

    private SavedAttention run(
            QkvLayout layout, Tensor q, Tensor k, Tensor v, Tensor output, Sequences sequences, Scope scope) {
        sequences.cuSeqlens().checked(scope);
        AttentionKernels kernels = AttentionKernels.of(q.dtype(), sequences);
        if (kernels == AttentionKernels.FUSED) {
            Checks.aligned("q", q.cell());
            Checks.aligned("k", k.cell());
            Checks.aligned("v", v.cell());
        }
        Tensor shaped = output.rank() == 2 ? shaped(scope, output, 0, sequences) : output;
        AttentionSettings with =
                settings[layout.ordinal() * 2 + sequences.padding().ordinal()];
        SavedAttention saved = scope.recall(SavedAttention.class);
        if (saved == null
                || saved.output() != output
                || !saved.call().isOf(q.cell(), k.cell(), v.cell(), shaped.cell())) {
            saved = new SavedAttention(new AttentionCall(q.cell(), k.cell(), v.cell(), shaped.cell()), output);
        }
        scope.keep(saved);
        boolean packed = sequences.format() == Sequences.Format.THD;
        long longest = packed && kernels == AttentionKernels.FUSED
                ? Math.max(LENGTH_STEP, (sequences.length() + LENGTH_STEP - 1) / LENGTH_STEP * LENGTH_STEP)
                : sequences.length();
        Dropout dropout = config.dropout();
        Philox generator = dropout.generator();
        TensorCell rng = generator == null ? null : generator.next(scope, DRAWS).cell();
        saved.call()
                .over(sequences.cuSeqlens().offsets().cell(), packed ? Packing.PACKED : Packing.DENSE, longest, rng);
        Calls calls = calls(scope);
        Tensor statistics = switch (kernels) {
            case FUSED -> calls.fusedAttention().forward(scope, with, saved.call());
            case TILED -> calls.tiledAttention().forward(scope, with, saved.call());
        };
        saved.ran(with, kernels, sequences, statistics);
        return saved;
    }

    /** Checks that a record is of this attention's {@code forward} or {@code forwardPacked}, and of this repetition. */
    private void check(SavedAttention saved, Form form) {
        boolean own = false;
        for (AttentionSettings one : settings) {
            own |= one == saved.settings();
        }
        if (!own) {
            throw new IllegalArgumentException(
                    "saved: expected what forward of this attention returned, got what another one's returned");
        }
        Form actual = saved.output().rank() == 2 ? Form.PACKED : Form.SEPARATE;
        if (actual != form) {
            throw new IllegalArgumentException("saved: expected what " + form.forward + " returned, got what "
                    + actual.forward + " returned; use " + actual.backward);
        }
        saved.ensureCurrent();
    }

    /**
     * Checks that a record is of this attention's {@link #forwardPacked}, and still holds what that left there.
     *
     * @throws IllegalArgumentException when it is another's
     * @throws IllegalStateException when its scope is closed, or was restarted since
     */
    public void checkPacked(SavedAttention saved) {
        check(saved, Form.PACKED);
    }

    /** Checks that a gradient, which is written to, shares no memory with what is read. */
    private static void checkApart(String argument, TensorCell gradient, TensorCell dO, AttentionCall call) {
        Checks.apart(argument, gradient, "dO", dO);
        Checks.apart(argument, gradient, "the query", call.q);
        Checks.apart(argument, gradient, "the key", call.k);
        Checks.apart(argument, gradient, "the value", call.v);
        Checks.apart(argument, gradient, "the output", call.o);
    }

    /** Returns rows as tokens and heads; inside a packed buffer TE takes the strides from the layout. */
    private Tensor shaped(Scope scope, Tensor matrix, long offset, Sequences sequences) {
        int heads = config.heads();
        int headDim = config.headDim();
        return switch (sequences.format()) {
            case THD -> scope.view(matrix, offset, sequences.tokens(), heads, headDim);
            case BSHD -> scope.view(matrix, offset, sequences.batch(), sequences.length(), heads, headDim);
            case SBHD -> scope.view(matrix, offset, sequences.length(), sequences.batch(), heads, headDim);
        };
    }

    private static void checkNotEmpty(Sequences sequences) {
        if (sequences.tokens() == 0) {
            throw new IllegalArgumentException(
                    "sequences: expected at least one token, got " + sequences + "; leave an empty batch out");
        }
    }

    private void checkHeads(String argument, TensorCell cell, Sequences sequences) {
        checkType(argument, cell);
        int rank = cell.rank();
        if (!sequences.fits(cell) || cell.size(rank - 2) != config.heads() || cell.size(rank - 1) != config.headDim()) {
            throw new IllegalArgumentException(argument + ": expected " + config.heads() + " heads of "
                    + config.headDim() + " over " + sequences + ", got " + Checks.describe(cell));
        }
    }

    private static void checkType(String argument, TensorCell cell) {
        DType dtype = cell.dtype();
        if (dtype != DType.FLOAT32 && dtype != DType.BFLOAT16 && dtype != DType.FLOAT16) {
            throw new IllegalArgumentException(
                    argument + ": attention takes FLOAT32, BFLOAT16 or FLOAT16, got " + Checks.describe(cell));
        }
    }

    private static Calls calls(Scope scope) {
        return scope.device().state().calls();
    }
}
