package dev.chagres.internal;

import dev.chagres.Stream;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.bindings.te.TransformerEngine;

/**
 * Operations on elements and rows: our own, and TE's activation. Operands are checked by the callers.
 *
 * <p>Threading: the device's thread.
 */
public final class Elementwise {
    private Elementwise() {}

    /** {@code y = x + residual}, all alike. */
    public static void add(Stream stream, TensorCell x, TensorCell residual, TensorCell y) {
        Status.ops(
                Ops.ops_add(
                        x.pointer(),
                        residual.pointer(),
                        y.pointer(),
                        x.count(),
                        x.dtype().code(),
                        stream.handle()),
                "ops_add");
    }

    /** {@code y = residual + dropout(x)}; mask: bits, BYTE [ceil(count / 8)]. */
    public static void dropoutAdd(
            Stream stream,
            TensorCell x,
            TensorCell residual,
            TensorCell y,
            TensorCell mask,
            TensorCell rngState,
            float probability) {
        Status.ops(
                Ops.ops_dropout_add(
                        x.pointer(),
                        residual.pointer(),
                        y.pointer(),
                        mask.pointer(),
                        rngState.pointer(),
                        probability,
                        x.count(),
                        x.dtype().code(),
                        stream.handle()),
                "ops_dropout_add");
    }

    /** {@code dx = keep dy / (1 - p)}. */
    public static void dropoutBackward(
            Stream stream, TensorCell dy, TensorCell mask, TensorCell dx, float probability) {
        Status.ops(
                Ops.ops_dropout_backward(
                        dy.pointer(),
                        mask.pointer(),
                        dx.pointer(),
                        probability,
                        dy.count(),
                        dy.dtype().code(),
                        stream.handle()),
                "ops_dropout_backward");
    }

    /** {@code sum[c] = beta sum[c] + sum over rows of x[r, c]}; sum FLOAT32. */
    public static void rowSum(Stream stream, TensorCell x, TensorCell sum, float beta) {
        Status.ops(
                Ops.ops_row_sum(
                        x.pointer(),
                        sum.pointer(),
                        beta,
                        x.size(0),
                        x.size(1),
                        x.dtype().code(),
                        stream.handle()),
                "ops_row_sum");
    }

    /** {@code y = beta y + x}; y FLOAT32. */
    public static void accumulate(Stream stream, TensorCell x, TensorCell y, float beta) {
        Status.ops(
                Ops.ops_accumulate(
                        x.pointer(), y.pointer(), beta, x.count(), x.dtype().code(), stream.handle()),
                "ops_accumulate");
    }

    /** {@code y = x} in y's type. */
    public static void cast(Stream stream, TensorCell x, TensorCell y) {
        Status.ops(
                Ops.ops_cast(
                        x.pointer(), x.dtype().code(), y.pointer(), y.dtype().code(), x.count(), stream.handle()),
                "ops_cast");
    }

    /** {@code y = gelu(x)}, the tanh form. */
    public static void gelu(Stream stream, TensorCell x, TensorCell y) {
        Status.te(TransformerEngine.te_gelu(x.handle(), y.handle(), stream.handle()), "nvte_gelu");
    }

    /** {@code dx = dy gelu'(x)}. */
    public static void geluBackward(Stream stream, TensorCell dy, TensorCell x, TensorCell dx) {
        Status.te(TransformerEngine.te_dgelu(dy.handle(), x.handle(), dx.handle(), stream.handle()), "nvte_dgelu");
    }
}
