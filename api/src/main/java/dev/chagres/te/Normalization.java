package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.Workspace;
import dev.chagres.te.NormCalls.NormWorkspace;
import java.lang.foreign.MemorySegment;

/**
 * Layer norm, {@code z = (x - mu) rsigma g + beta}, and RMS norm, {@code z = x rsigma g}, over each row, and their
 * gradients; {@code g} is gamma or, where gamma is centred on zero, {@code 1 + gamma}.
 *
 * <p>{@code mu} is the mean of a row, {@code rsigma = 1 / sqrt(variance + epsilon)}, for RMS norm {@code 1 / sqrt(mean square + epsilon)}.
 * Arithmetic is FP32.
 *
 * <p>Types: gamma, beta, their gradients and z have the type of x. If x is FLOAT32, z may have another type, and in backward gamma, beta,
 * dz and their gradients may have one of 16 bits.
 *
 * <p>The kernels are TE's own, unless {@link NormSwitches} chose cuDNN's.
 *
 * <p>Each method throws an {@link IllegalStateException} when the thread has computed such norms with another {@link
 * dev.chagres.Device#multiprocessorMargin(dev.chagres.MultiprocessorMargin)}.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: Ba et al., Layer normalization (2016); Zhang and Sennrich, Root mean square layer normalization (2019); TE's
 * {@code normalization.h}.
 */
public final class Normalization {
    /** What g is. */
    public enum Gamma {
        /** gamma. */
        PLAIN,
        /** 1 + gamma. */
        ZERO_CENTERED
    }

    private Normalization() {}

    /**
     * Enqueues layer norm, {@code nvte_layernorm_fwd}.
     *
     * @param x [T, H], H at least 1
     * @param gamma [H], in the type of x
     * @param beta [H], in the type of x
     * @param epsilon at least 0
     * @param z [T, H], in the type of x; any floating-point type where x is FLOAT32
     * @param mu FLOAT32 [T]
     * @param rsigma FLOAT32 [T]
     * @throws IllegalArgumentException when shapes, types, epsilon or devices do not fit, or what is written shares memory
     */
    public static void layernormFwd(
            Tensor x,
            Tensor gamma,
            Tensor beta,
            float epsilon,
            Tensor z,
            Tensor mu,
            Tensor rsigma,
            Gamma gammaKind,
            Stream stream) {
        NormChecks.forward(x, gamma, epsilon, z, rsigma, gammaKind, stream);
        NormChecks.centredForward(x, gamma, beta, z, mu, rsigma, stream);
        if (x.count() == 0) {
            return;
        }
        layernormFwd(x, gamma, beta, epsilon, z.handle(), z.dtype(), z.address(), mu, rsigma, gammaKind, stream);
    }

    /**
     * Enqueues layer norm and quantizes z as {@link Cast#quantize(Tensor, QuantizedTensor, Stream)} does; amax is of z before
     * scaling.
     *
     * @param x [T, H], H at least 1
     * @param gamma [H], in the type of x
     * @param beta [H], in the type of x
     * @param epsilon at least 0
     * @param z [T, H], FLOAT8_E4M3 scaled by {@link dev.chagres.Scaling#TENSOR}, with rowwise data, and columnwise data where
     *     wanted
     * @param mu FLOAT32 [T]
     * @param rsigma FLOAT32 [T]
     * @throws IllegalArgumentException when shapes, types, parts, epsilon or devices do not fit, or what is written shares memory
     */
    public static void layernormFwd(
            Tensor x,
            Tensor gamma,
            Tensor beta,
            float epsilon,
            QuantizedTensor z,
            Tensor mu,
            Tensor rsigma,
            Gamma gammaKind,
            Stream stream) {
        NormChecks.forward(x, gamma, epsilon, z, rsigma, gammaKind, stream);
        NormChecks.centredForward(x, gamma, beta, z, mu, rsigma, stream);
        if (x.count() != 0) {
            layernormFwd(
                    x,
                    gamma,
                    beta,
                    epsilon,
                    z.handle(),
                    z.dtype(),
                    Checks.addressOrNull(z.rowwise()),
                    mu,
                    rsigma,
                    gammaKind,
                    stream);
        }
    }

    /**
     * Enqueues the gradients of layer norm, {@code nvte_layernorm_bwd}. Without rows the gradients of gamma and beta are 0.
     *
     * @param dz gradient of z, [T, H], in the type of gamma
     * @param x [T, H]
     * @param mu what forward wrote
     * @param rsigma what forward wrote
     * @param gamma [H], in the type of x; also of 16 bits where x is FLOAT32
     * @param dx [T, H], in the type of x
     * @param dgamma [H], in the type of gamma; overwritten
     * @param dbeta [H], in the type of gamma; overwritten
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     */
    public static void layernormBwd(
            Tensor dz,
            Tensor x,
            Tensor mu,
            Tensor rsigma,
            Tensor gamma,
            Tensor dx,
            Tensor dgamma,
            Tensor dbeta,
            Gamma gammaKind,
            Stream stream) {
        NormChecks.backward(dz, x, rsigma, gamma, dx, dgamma, gammaKind, stream);
        NormChecks.centredBackward(dz, x, mu, rsigma, gamma, dx, dgamma, dbeta, stream);
        if (x.count() == 0) {
            dgamma.zero(stream);
            dbeta.zero(stream);
            return;
        }
        long addresses = dz.address()
                | x.address()
                | mu.address()
                | rsigma.address()
                | gamma.address()
                | dx.address()
                | dgamma.address()
                | dbeta.address();
        NormWorkspace known = Inside.state(stream).get(NormWorkspace.All.ATTACHMENT).layernormBwd;
        int multiprocessors = Inside.state(stream).multiprocessors().ofTransformerEngineNorms();
        Workspace workspace = Inside.workspace(stream);
        if (!known.isKnown(x, gamma, dz.dtype(), gammaKind, multiprocessors, addresses)) {
            NormCalls.layernormBwd(
                    dz,
                    x,
                    mu,
                    rsigma,
                    gamma,
                    dx,
                    dgamma,
                    dbeta,
                    workspace.asking(),
                    multiprocessors,
                    gammaKind,
                    stream);
            known.remember(x, gamma, dz.dtype(), gammaKind, multiprocessors, addresses, workspace);
        }
        NormCalls.layernormBwd(
                dz,
                x,
                mu,
                rsigma,
                gamma,
                dx,
                dgamma,
                dbeta,
                known.provided(workspace),
                multiprocessors,
                gammaKind,
                stream);
    }

    /**
     * Enqueues RMS norm, {@code nvte_rmsnorm_fwd}.
     *
     * @param x [T, H], H at least 1
     * @param gamma [H], in the type of x
     * @param epsilon at least 0
     * @param z [T, H], in the type of x; any floating-point type where x is FLOAT32
     * @param rsigma FLOAT32 [T]
     * @throws IllegalArgumentException when shapes, types, epsilon or devices do not fit, or what is written shares memory
     */
    public static void rmsnormFwd(
            Tensor x, Tensor gamma, float epsilon, Tensor z, Tensor rsigma, Gamma gammaKind, Stream stream) {
        NormChecks.forward(x, gamma, epsilon, z, rsigma, gammaKind, stream);
        if (x.count() == 0) {
            return;
        }
        rmsnormFwd(x, gamma, epsilon, z.handle(), z.dtype(), z.address(), rsigma, gammaKind, stream);
    }

    /**
     * Enqueues RMS norm and quantizes z as {@link Cast#quantize(Tensor, QuantizedTensor, Stream)} does; amax is of z before
     * scaling.
     *
     * @param x [T, H], H at least 1
     * @param gamma [H], in the type of x
     * @param epsilon at least 0
     * @param z [T, H], FLOAT8_E4M3 scaled by {@link dev.chagres.Scaling#TENSOR}, with rowwise data, and columnwise data where
     *     wanted
     * @param rsigma FLOAT32 [T]
     * @throws IllegalArgumentException when shapes, types, parts, epsilon or devices do not fit, or what is written shares memory
     */
    public static void rmsnormFwd(
            Tensor x, Tensor gamma, float epsilon, QuantizedTensor z, Tensor rsigma, Gamma gammaKind, Stream stream) {
        NormChecks.forward(x, gamma, epsilon, z, rsigma, gammaKind, stream);
        if (x.count() != 0) {
            rmsnormFwd(
                    x,
                    gamma,
                    epsilon,
                    z.handle(),
                    z.dtype(),
                    Checks.addressOrNull(z.rowwise()),
                    rsigma,
                    gammaKind,
                    stream);
        }
    }

    /**
     * Enqueues the gradients of RMS norm, {@code nvte_rmsnorm_bwd}. Without rows the gradient of gamma is 0.
     *
     * @param dz gradient of z, [T, H], in the type of gamma
     * @param x [T, H]
     * @param rsigma what forward wrote
     * @param gamma [H], in the type of x; also of 16 bits where x is FLOAT32
     * @param dx [T, H], in the type of x
     * @param dgamma [H], in the type of gamma; overwritten
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     */
    public static void rmsnormBwd(
            Tensor dz,
            Tensor x,
            Tensor rsigma,
            Tensor gamma,
            Tensor dx,
            Tensor dgamma,
            Gamma gammaKind,
            Stream stream) {
        NormChecks.backward(dz, x, rsigma, gamma, dx, dgamma, gammaKind, stream);
        if (x.count() == 0) {
            dgamma.zero(stream);
            return;
        }
        long addresses =
                dz.address() | x.address() | rsigma.address() | gamma.address() | dx.address() | dgamma.address();
        NormWorkspace known = Inside.state(stream).get(NormWorkspace.All.ATTACHMENT).rmsnormBwd;
        int multiprocessors = Inside.state(stream).multiprocessors().ofTransformerEngineNorms();
        Workspace workspace = Inside.workspace(stream);
        if (!known.isKnown(x, gamma, dz.dtype(), gammaKind, multiprocessors, addresses)) {
            NormCalls.rmsnormBwd(
                    dz, x, rsigma, gamma, dx, dgamma, workspace.asking(), multiprocessors, gammaKind, stream);
            known.remember(x, gamma, dz.dtype(), gammaKind, multiprocessors, addresses, workspace);
        }
        NormCalls.rmsnormBwd(
                dz, x, rsigma, gamma, dx, dgamma, known.provided(workspace), multiprocessors, gammaKind, stream);
    }

    /**
     * Enqueues the gradients of RMS norm and adds to that of x, {@code nvte_rmsnorm_bwd_add}: {@code dx = add + } the gradient of
     * {@link #rmsnormBwd}, rounded once. Without rows the gradient of gamma is 0.
     *
     * <p>Where {@link NormSwitches#backward} chose cuDNN, or {@link NormSwitches#zeroCenteredGamma} the type of gamma, TE refuses
     * the call with a {@code TransformerEngineException}; with cuDNN from 9.21 on it refuses the latter alone.
     *
     * @param dz gradient of z, [T, H], in the type of gamma
     * @param x [T, H]
     * @param add gradient from beside the norm, [T, H], in the type of gamma
     * @param rsigma what forward wrote
     * @param gamma [H], in the type of x; also of 16 bits where x is FLOAT32
     * @param dx [T, H], in the type of x
     * @param dgamma [H], in the type of gamma; overwritten
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     */
    public static void rmsnormBwdAdd(
            Tensor dz,
            Tensor x,
            Tensor add,
            Tensor rsigma,
            Tensor gamma,
            Tensor dx,
            Tensor dgamma,
            Gamma gammaKind,
            Stream stream) {
        NormChecks.backward(dz, x, rsigma, gamma, dx, dgamma, gammaKind, stream);
        NormChecks.added(add, x, gamma, dx, dgamma, stream);
        if (x.count() == 0) {
            dgamma.zero(stream);
            return;
        }
        long addresses = dz.address()
                | x.address()
                | add.address()
                | rsigma.address()
                | gamma.address()
                | dx.address()
                | dgamma.address();
        NormWorkspace known = Inside.state(stream).get(NormWorkspace.All.ATTACHMENT).rmsnormBwdAdd;
        int multiprocessors = Inside.state(stream).multiprocessors().ofTransformerEngineNorms();
        Workspace workspace = Inside.workspace(stream);
        if (!known.isKnown(x, gamma, dz.dtype(), gammaKind, multiprocessors, addresses)) {
            NormCalls.rmsnormBwdAdd(
                    dz, x, add, rsigma, gamma, dx, dgamma, workspace.asking(), multiprocessors, gammaKind, stream);
            known.remember(x, gamma, dz.dtype(), gammaKind, multiprocessors, addresses, workspace);
        }
        NormCalls.rmsnormBwdAdd(
                dz, x, add, rsigma, gamma, dx, dgamma, known.provided(workspace), multiprocessors, gammaKind, stream);
    }

    private static void layernormFwd(
            Tensor x,
            Tensor gamma,
            Tensor beta,
            float epsilon,
            MemorySegment z,
            DType output,
            long zAddress,
            Tensor mu,
            Tensor rsigma,
            Gamma gammaKind,
            Stream stream) {
        long addresses = x.address() | gamma.address() | beta.address() | zAddress | mu.address() | rsigma.address();
        NormWorkspace known = Inside.state(stream).get(NormWorkspace.All.ATTACHMENT).layernormFwd;
        int multiprocessors = Inside.state(stream).multiprocessors().ofTransformerEngineNorms();
        Workspace workspace = Inside.workspace(stream);
        if (!known.isKnown(x, gamma, output, gammaKind, multiprocessors, addresses)) {
            NormCalls.layernormFwd(
                    x, gamma, beta, epsilon, z, mu, rsigma, workspace.asking(), multiprocessors, gammaKind, stream);
            known.remember(x, gamma, output, gammaKind, multiprocessors, addresses, workspace);
        }
        NormCalls.layernormFwd(
                x, gamma, beta, epsilon, z, mu, rsigma, known.provided(workspace), multiprocessors, gammaKind, stream);
    }

    private static void rmsnormFwd(
            Tensor x,
            Tensor gamma,
            float epsilon,
            MemorySegment z,
            DType output,
            long zAddress,
            Tensor rsigma,
            Gamma gammaKind,
            Stream stream) {
        long addresses = x.address() | gamma.address() | zAddress | rsigma.address();
        NormWorkspace known = Inside.state(stream).get(NormWorkspace.All.ATTACHMENT).rmsnormFwd;
        int multiprocessors = Inside.state(stream).multiprocessors().ofTransformerEngineNorms();
        Workspace workspace = Inside.workspace(stream);
        if (!known.isKnown(x, gamma, output, gammaKind, multiprocessors, addresses)) {
            NormCalls.rmsnormFwd(x, gamma, epsilon, z, rsigma, workspace.asking(), multiprocessors, gammaKind, stream);
            known.remember(x, gamma, output, gammaKind, multiprocessors, addresses, workspace);
        }
        NormCalls.rmsnormFwd(
                x, gamma, epsilon, z, rsigma, known.provided(workspace), multiprocessors, gammaKind, stream);
    }
}
