package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.internal.memory.Workspace;
import java.lang.foreign.MemorySegment;
import org.jspecify.annotations.Nullable;

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

    /**
     * Caches the workspace size of one function of normalization.h, which TE reports, until shape or types change. Only for tensors that
     * all begin at multiples of 16 bytes, as those of a scope do: over others TE runs another kernel, which needs another size.
     */
    static final class NormWorkspace {
        private static final int ALIGNMENT = 16;
        private static final long UNKNOWN = -1;

        private long rows = UNKNOWN;
        private long columns;
        private @Nullable DType input;
        private @Nullable DType gamma;
        private @Nullable DType output;
        private Normalization.@Nullable Gamma kind;
        private int multiprocessors;
        private long bytes;

        /**
         * Returns whether the cached size is that of such a norm on as many multiprocessors.
         *
         * @param addresses of all tensors, combined by {@code |}
         */
        boolean isKnown(
                Tensor x,
                Tensor newGamma,
                DType newOutput,
                Normalization.Gamma newKind,
                int newMultiprocessors,
                long addresses) {
            return addresses % ALIGNMENT == 0
                    && x.size(0) == rows
                    && x.size(1) == columns
                    && x.dtype() == input
                    && newGamma.dtype() == gamma
                    && newOutput == output
                    && newKind == kind
                    && newMultiprocessors == multiprocessors;
        }

        /**
         * Keeps the size that TE asked for through {@link Workspace#asking}: for the next {@link #provided}, and for later norms if all
         * tensors are aligned.
         */
        void remember(
                Tensor x,
                Tensor newGamma,
                DType newOutput,
                Normalization.Gamma newKind,
                int newMultiprocessors,
                long addresses,
                Workspace workspace) {
            rows = addresses % ALIGNMENT == 0 ? x.size(0) : UNKNOWN;
            columns = x.size(1);
            input = x.dtype();
            gamma = newGamma.dtype();
            output = newOutput;
            kind = newKind;
            multiprocessors = newMultiprocessors;
            bytes = workspace.asked();
        }

        /** Returns the handle of memory of the cached size. */
        MemorySegment provided(Workspace workspace) {
            return workspace.provided(bytes);
        }

        /** The workspaces of the five functions, kept per device. */
        static final class All implements AutoCloseable {
            static final DeviceState.Attachment<All> ATTACHMENT = new DeviceState.Attachment<>(device -> new All());

            final NormWorkspace layernormFwd = new NormWorkspace();
            final NormWorkspace layernormBwd = new NormWorkspace();
            final NormWorkspace rmsnormFwd = new NormWorkspace();
            final NormWorkspace rmsnormBwd = new NormWorkspace();
            final NormWorkspace rmsnormBwdAdd = new NormWorkspace();

            @Override
            public void close() {
                // Nothing to free: there are only numbers.
            }
        }
    }
}
