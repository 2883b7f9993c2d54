package dev.chagres.internal;

import dev.chagres.Stream;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import java.lang.foreign.MemorySegment;

/**
 * Layer norm and RMS norm through TE: each is asked for its workspace, then run. Operands are checked by the callers. TE
 * takes no empty input: without rows nothing is run, and gradients of weights are zero.
 *
 * <p>Threading: the device's thread.
 */
public final class Norm {
    private final int multiprocessorCount;

    Norm(DeviceState device) {
        multiprocessorCount = device.multiprocessorCount();
    }

    /** {@code y = (x - mu) rsigma gamma + beta}; x, y [T, H], mu, rsigma FLOAT32 [T]. */
    public void layerForward(
            Stream stream,
            TensorCell x,
            TensorCell gamma,
            TensorCell beta,
            float epsilon,
            TensorCell y,
            TensorCell mu,
            TensorCell rsigma) {
        if (x.count() == 0) {
            return;
        }
        layerForward(
                stream,
                x,
                gamma,
                beta,
                epsilon,
                y,
                mu,
                rsigma,
                stream.workspace().asking());
        layerForward(
                stream,
                x,
                gamma,
                beta,
                epsilon,
                y,
                mu,
                rsigma,
                stream.workspace().provided());
    }

    private void layerForward(
            Stream stream,
            TensorCell x,
            TensorCell gamma,
            TensorCell beta,
            float epsilon,
            TensorCell y,
            TensorCell mu,
            TensorCell rsigma,
            MemorySegment workspace) {
        Status.te(
                TransformerEngine.te_layernorm_fwd(
                        x.handle(),
                        gamma.handle(),
                        beta.handle(),
                        epsilon,
                        y.handle(),
                        mu.handle(),
                        rsigma.handle(),
                        workspace,
                        multiprocessorCount,
                        false,
                        stream.handle()),
                "nvte_layernorm_fwd");
    }

    /** Gradients of {@link #layerForward}: dx like x, dgamma and dbeta like gamma. */
    public void layerBackward(
            Stream stream,
            TensorCell dy,
            TensorCell x,
            TensorCell mu,
            TensorCell rsigma,
            TensorCell gamma,
            TensorCell dx,
            TensorCell dgamma,
            TensorCell dbeta) {
        if (x.count() == 0) {
            Transfer.zero(dgamma, stream.handle());
            Transfer.zero(dbeta, stream.handle());
            return;
        }
        layerBackward(
                stream,
                dy,
                x,
                mu,
                rsigma,
                gamma,
                dx,
                dgamma,
                dbeta,
                stream.workspace().asking());
        layerBackward(
                stream,
                dy,
                x,
                mu,
                rsigma,
                gamma,
                dx,
                dgamma,
                dbeta,
                stream.workspace().provided());
    }

    private void layerBackward(
            Stream stream,
            TensorCell dy,
            TensorCell x,
            TensorCell mu,
            TensorCell rsigma,
            TensorCell gamma,
            TensorCell dx,
            TensorCell dgamma,
            TensorCell dbeta,
            MemorySegment workspace) {
        Status.te(
                TransformerEngine.te_layernorm_bwd(
                        dy.handle(),
                        x.handle(),
                        mu.handle(),
                        rsigma.handle(),
                        gamma.handle(),
                        dx.handle(),
                        dgamma.handle(),
                        dbeta.handle(),
                        workspace,
                        multiprocessorCount,
                        false,
                        stream.handle()),
                "nvte_layernorm_bwd");
    }

    /** {@code y = x rsigma gamma}; x, y [T, H], rsigma FLOAT32 [T]. */
    public void rmsForward(
            Stream stream, TensorCell x, TensorCell gamma, float epsilon, TensorCell y, TensorCell rsigma) {
        if (x.count() == 0) {
            return;
        }
        rmsForward(stream, x, gamma, epsilon, y, rsigma, stream.workspace().asking());
        rmsForward(stream, x, gamma, epsilon, y, rsigma, stream.workspace().provided());
    }

    private void rmsForward(
            Stream stream,
            TensorCell x,
            TensorCell gamma,
            float epsilon,
            TensorCell y,
            TensorCell rsigma,
            MemorySegment workspace) {
        Status.te(
                TransformerEngine.te_rmsnorm_fwd(
                        x.handle(),
                        gamma.handle(),
                        epsilon,
                        y.handle(),
                        rsigma.handle(),
                        workspace,
                        multiprocessorCount,
                        false,
                        stream.handle()),
                "nvte_rmsnorm_fwd");
    }

    /** Gradients of {@link #rmsForward}: dx like x, dgamma like gamma. */
    public void rmsBackward(
            Stream stream,
            TensorCell dy,
            TensorCell x,
            TensorCell rsigma,
            TensorCell gamma,
            TensorCell dx,
            TensorCell dgamma) {
        if (x.count() == 0) {
            Transfer.zero(dgamma, stream.handle());
            return;
        }
        rmsBackward(stream, dy, x, rsigma, gamma, dx, dgamma, stream.workspace().asking());
        rmsBackward(stream, dy, x, rsigma, gamma, dx, dgamma, stream.workspace().provided());
    }

    private void rmsBackward(
            Stream stream,
            TensorCell dy,
            TensorCell x,
            TensorCell rsigma,
            TensorCell gamma,
            TensorCell dx,
            TensorCell dgamma,
            MemorySegment workspace) {
        Status.te(
                TransformerEngine.te_rmsnorm_bwd(
                        dy.handle(),
                        x.handle(),
                        rsigma.handle(),
                        gamma.handle(),
                        dx.handle(),
                        dgamma.handle(),
                        workspace,
                        multiprocessorCount,
                        false,
                        stream.handle()),
                "nvte_rmsnorm_bwd");
    }
}
