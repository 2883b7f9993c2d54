package dev.chagres.te;

import dev.chagres.QuantizedTensor;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import java.lang.foreign.MemorySegment;
import org.jspecify.annotations.Nullable;

/**
 * Calls the functions of cast.h that sum a bias gradient, with or without an activation's gradient, over checked tensors. With an unset
 * workspace each reports the size it needs; with memory it runs.
 *
 * <p>Threading: the device's thread.
 */
final class DbiasDact {
    private DbiasDact() {}

    /** Checks that TE has a function for the gradient of {@code activation}. */
    static void require(Activation activation) {
        if (!Cast.fusesGradientOf(activation)) {
            throw new IllegalArgumentException("activation: expected GELU, SILU, RELU, QGELU or SRELU, whose gradients"
                    + " TE quantizes in one kernel, got " + activation + "; call its backward and then quantizeDbias");
        }
    }

    /** Calls the function of {@code activation}; null: the one without activation. */
    static void call(
            @Nullable Activation activation,
            Tensor input,
            Tensor actInput,
            QuantizedTensor output,
            Tensor dbias,
            MemorySegment workspace,
            Stream stream) {
        MemorySegment dy = input.handle();
        MemorySegment x = actInput.handle();
        MemorySegment q = output.handle();
        MemorySegment db = dbias.handle();
        MemorySegment queue = stream.handle();
        if (activation == null) {
            Status.te(TransformerEngine.te_quantize_dbias(dy, q, db, workspace, queue), "te_quantize_dbias");
            return;
        }
        switch (activation) {
            case GELU ->
                Status.te(
                        TransformerEngine.te_quantize_dbias_dgelu(dy, x, q, db, workspace, queue),
                        "te_quantize_dbias_dgelu");
            case SILU ->
                Status.te(
                        TransformerEngine.te_quantize_dbias_dsilu(dy, x, q, db, workspace, queue),
                        "te_quantize_dbias_dsilu");
            case RELU ->
                Status.te(
                        TransformerEngine.te_quantize_dbias_drelu(dy, x, q, db, workspace, queue),
                        "te_quantize_dbias_drelu");
            case QGELU ->
                Status.te(
                        TransformerEngine.te_quantize_dbias_dqgelu(dy, x, q, db, workspace, queue),
                        "te_quantize_dbias_dqgelu");
            case SRELU ->
                Status.te(
                        TransformerEngine.te_quantize_dbias_dsrelu(dy, x, q, db, workspace, queue),
                        "te_quantize_dbias_dsrelu");
            default -> throw new IllegalStateException("activation " + activation + " was not checked");
        }
    }
}
