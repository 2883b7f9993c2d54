package dev.chagres.te;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import java.lang.foreign.MemorySegment;

/**
 * Calls the five functions of normalization.h that compute norms, over checked tensors. With an unset workspace each reports the size it
 * needs; with memory it runs.
 *
 * <p>Threading: the device's thread.
 */
final class NormCalls {
    private NormCalls() {}

    static void layernormFwd(
            Tensor x,
            Tensor gamma,
            Tensor beta,
            float epsilon,
            MemorySegment z,
            Tensor mu,
            Tensor rsigma,
            MemorySegment workspace,
            int multiprocessors,
            Normalization.Gamma gammaKind,
            Stream stream) {
        Status.te(
                TransformerEngine.te_layernorm_fwd(
                        x.handle(),
                        gamma.handle(),
                        beta.handle(),
                        epsilon,
                        z,
                        mu.handle(),
                        rsigma.handle(),
                        workspace,
                        multiprocessors,
                        gammaKind == Normalization.Gamma.ZERO_CENTERED,
                        stream.handle()),
                "te_layernorm_fwd");
    }

    static void layernormBwd(
            Tensor dz,
            Tensor x,
            Tensor mu,
            Tensor rsigma,
            Tensor gamma,
            Tensor dx,
            Tensor dgamma,
            Tensor dbeta,
            MemorySegment workspace,
            int multiprocessors,
            Normalization.Gamma gammaKind,
            Stream stream) {
        Status.te(
                TransformerEngine.te_layernorm_bwd(
                        dz.handle(),
                        x.handle(),
                        mu.handle(),
                        rsigma.handle(),
                        gamma.handle(),
                        dx.handle(),
                        dgamma.handle(),
                        dbeta.handle(),
                        workspace,
                        multiprocessors,
                        gammaKind == Normalization.Gamma.ZERO_CENTERED,
                        stream.handle()),
                "te_layernorm_bwd");
    }

    static void rmsnormFwd(
            Tensor x,
            Tensor gamma,
            float epsilon,
            MemorySegment z,
            Tensor rsigma,
            MemorySegment workspace,
            int multiprocessors,
            Normalization.Gamma gammaKind,
            Stream stream) {
        Status.te(
                TransformerEngine.te_rmsnorm_fwd(
                        x.handle(),
                        gamma.handle(),
                        epsilon,
                        z,
                        rsigma.handle(),
                        workspace,
                        multiprocessors,
                        gammaKind == Normalization.Gamma.ZERO_CENTERED,
                        stream.handle()),
                "te_rmsnorm_fwd");
    }

    static void rmsnormBwd(
            Tensor dz,
            Tensor x,
            Tensor rsigma,
            Tensor gamma,
            Tensor dx,
            Tensor dgamma,
            MemorySegment workspace,
            int multiprocessors,
            Normalization.Gamma gammaKind,
            Stream stream) {
        Status.te(
                TransformerEngine.te_rmsnorm_bwd(
                        dz.handle(),
                        x.handle(),
                        rsigma.handle(),
                        gamma.handle(),
                        dx.handle(),
                        dgamma.handle(),
                        workspace,
                        multiprocessors,
                        gammaKind == Normalization.Gamma.ZERO_CENTERED,
                        stream.handle()),
                "te_rmsnorm_bwd");
    }

    static void rmsnormBwdAdd(
            Tensor dz,
            Tensor x,
            Tensor add,
            Tensor rsigma,
            Tensor gamma,
            Tensor dx,
            Tensor dgamma,
            MemorySegment workspace,
            int multiprocessors,
            Normalization.Gamma gammaKind,
            Stream stream) {
        Status.te(
                TransformerEngine.te_rmsnorm_bwd_add(
                        dz.handle(),
                        x.handle(),
                        add.handle(),
                        rsigma.handle(),
                        gamma.handle(),
                        dx.handle(),
                        dgamma.handle(),
                        workspace,
                        multiprocessors,
                        gammaKind == Normalization.Gamma.ZERO_CENTERED,
                        stream.handle()),
                "te_rmsnorm_bwd_add");
    }
}
