package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.Numbers;
import dev.chagres.internal.QuantizedChecks;
import dev.chagres.te.AskedWorkspace.Function;
import java.lang.foreign.MemorySegment;
import org.jspecify.annotations.Nullable;

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
 * <p>Gamma and beta are set before a call and stay until they are set again, so that one object serves all calls of a layer.
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

    private static final int ALIGNMENT = 16;

    private final float epsilon;
    private final Gamma gammaKind;
    private @Nullable Tensor gamma;
    private @Nullable Tensor beta;

    /**
     * Makes a norm without gamma and beta.
     *
     * @param epsilon at least 0; backward does not read it
     * @throws IllegalArgumentException when epsilon is negative, infinite or no number
     */
    public Normalization(float epsilon, Gamma gammaKind) {
        Numbers.notNegative("epsilon", epsilon);
        this.epsilon = epsilon;
        this.gammaKind = Checks.given("gammaKind", gammaKind);
    }

    /**
     * Sets gamma.
     *
     * @param tensor [H], in the type of x; in backward also of 16 bits where x is FLOAT32
     */
    public Normalization gamma(Tensor tensor) {
        gamma = Checks.given("gamma", tensor);
        return this;
    }

    /**
     * Sets beta, which the forward of layer norm adds.
     *
     * @param tensor [H], in the type of x
     */
    public Normalization beta(Tensor tensor) {
        beta = Checks.given("beta", tensor);
        return this;
    }

    /**
     * Enqueues layer norm, {@code nvte_layernorm_fwd}.
     *
     * @param x [T, H], H at least 1
     * @param z [T, H], in the type of x; any floating-point type where x is FLOAT32
     * @param mu FLOAT32 [T]
     * @param rsigma FLOAT32 [T]
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     * @throws IllegalStateException without gamma or beta
     */
    public void layernormFwd(Tensor x, Tensor z, Tensor mu, Tensor rsigma, Stream stream) {
        checkForward(x, z, rsigma, stream);
        checkCentred(x, mu, rsigma, stream);
        Checks.apart("z", z, "beta", given("beta", beta));
        Checks.apart("mu", mu, "z", z);
        if (x.count() != 0) {
            layernormFwd(x, z.handle(), z.dtype(), z.address(), mu, rsigma, stream);
        }
    }

    /**
     * Enqueues layer norm and quantizes z as {@link Cast#quantize(Tensor, QuantizedTensor, Stream)} does; amax is of z before
     * scaling.
     *
     * @param x [T, H], H at least 1
     * @param z [T, H], FLOAT8_E4M3 scaled by {@link dev.chagres.Scaling#TENSOR}, with rowwise data, and columnwise data where
     *     wanted
     * @param mu FLOAT32 [T]
     * @param rsigma FLOAT32 [T]
     * @throws IllegalArgumentException when shapes, types, parts or devices do not fit, or what is written shares memory
     * @throws IllegalStateException without gamma or beta
     */
    public void layernormFwd(Tensor x, QuantizedTensor z, Tensor mu, Tensor rsigma, Stream stream) {
        checkForward(x, z, rsigma, stream);
        checkCentred(x, mu, rsigma, stream);
        QuantizedChecks.apart("z", z, "beta", beta);
        QuantizedChecks.apart("z", z, "mu", mu);
        if (x.count() != 0) {
            layernormFwd(x, z.handle(), z.dtype(), Checks.addressOrNull(z.rowwise()), mu, rsigma, stream);
        }
    }

    /**
     * Enqueues the gradients of layer norm, {@code nvte_layernorm_bwd}. Without rows the gradients of gamma and beta are 0.
     *
     * @param dz gradient of z, [T, H], in the type of gamma
     * @param x [T, H]
     * @param mu what forward wrote
     * @param rsigma what forward wrote
     * @param dx [T, H], in the type of x
     * @param dgamma [H], in the type of gamma; overwritten
     * @param dbeta [H], in the type of gamma; overwritten
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     * @throws IllegalStateException without gamma
     */
    public void layernormBwd(
            Tensor dz, Tensor x, Tensor mu, Tensor rsigma, Tensor dx, Tensor dgamma, Tensor dbeta, Stream stream) {
        Tensor factors = checkBackward(dz, x, rsigma, dx, dgamma, stream);
        checkCentredBackward(dz, x, mu, rsigma, dx, dgamma, dbeta, stream);
        if (x.count() == 0) {
            dgamma.zero(stream);
            dbeta.zero(stream);
            return;
        }
        long addresses = dz.address() | x.address() | mu.address() | rsigma.address() | factors.address();
        addresses |= dx.address() | dgamma.address() | dbeta.address();
        AskedWorkspace space = space(Function.LAYERNORM_BWD, x, factors, dz.dtype(), addresses, stream);
        do {
            Status.te(
                    TransformerEngine.te_layernorm_bwd(
                            dz.handle(),
                            x.handle(),
                            mu.handle(),
                            rsigma.handle(),
                            factors.handle(),
                            dx.handle(),
                            dgamma.handle(),
                            dbeta.handle(),
                            space.memory(),
                            multiprocessors(stream),
                            gammaKind == Gamma.ZERO_CENTERED,
                            stream.handle()),
                    "te_layernorm_bwd");
        } while (space.wasAsked());
    }

    /**
     * Enqueues RMS norm, {@code nvte_rmsnorm_fwd}.
     *
     * @param x [T, H], H at least 1
     * @param z [T, H], in the type of x; any floating-point type where x is FLOAT32
     * @param rsigma FLOAT32 [T]
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     * @throws IllegalStateException without gamma
     */
    public void rmsnormFwd(Tensor x, Tensor z, Tensor rsigma, Stream stream) {
        checkForward(x, z, rsigma, stream);
        if (x.count() != 0) {
            rmsnormFwd(x, z.handle(), z.dtype(), z.address(), rsigma, stream);
        }
    }

    /**
     * Enqueues RMS norm and quantizes z as {@link Cast#quantize(Tensor, QuantizedTensor, Stream)} does; amax is of z before
     * scaling.
     *
     * @param x [T, H], H at least 1
     * @param z [T, H], FLOAT8_E4M3 scaled by {@link dev.chagres.Scaling#TENSOR}, with rowwise data, and columnwise data where
     *     wanted
     * @param rsigma FLOAT32 [T]
     * @throws IllegalArgumentException when shapes, types, parts or devices do not fit, or what is written shares memory
     * @throws IllegalStateException without gamma
     */
    public void rmsnormFwd(Tensor x, QuantizedTensor z, Tensor rsigma, Stream stream) {
        checkForward(x, z, rsigma, stream);
        if (x.count() != 0) {
            rmsnormFwd(x, z.handle(), z.dtype(), Checks.addressOrNull(z.rowwise()), rsigma, stream);
        }
    }

    /**
     * Enqueues the gradients of RMS norm, {@code nvte_rmsnorm_bwd}. Without rows the gradient of gamma is 0.
     *
     * @param dz gradient of z, [T, H], in the type of gamma
     * @param x [T, H]
     * @param rsigma what forward wrote
     * @param dx [T, H], in the type of x
     * @param dgamma [H], in the type of gamma; overwritten
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     * @throws IllegalStateException without gamma
     */
    public void rmsnormBwd(Tensor dz, Tensor x, Tensor rsigma, Tensor dx, Tensor dgamma, Stream stream) {
        rmsnormGradients(dz, x, null, rsigma, dx, dgamma, stream);
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
     * @param dx [T, H], in the type of x
     * @param dgamma [H], in the type of gamma; overwritten
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     * @throws IllegalStateException without gamma
     */
    public void rmsnormBwdAdd(Tensor dz, Tensor x, Tensor add, Tensor rsigma, Tensor dx, Tensor dgamma, Stream stream) {
        rmsnormGradients(dz, x, Checks.given("add", add), rsigma, dx, dgamma, stream);
    }

    private void rmsnormGradients(
            Tensor dz, Tensor x, @Nullable Tensor add, Tensor rsigma, Tensor dx, Tensor dgamma, Stream stream) {
        Tensor factors = checkBackward(dz, x, rsigma, dx, dgamma, stream);
        if (add != null) {
            Checks.matrix(stream, "add", add, factors.dtype(), x.size(0), x.size(1));
            Checks.apart("dx", dx, "add", add);
            Checks.apart("dgamma", dgamma, "add", add);
        }
        if (x.count() == 0) {
            dgamma.zero(stream);
            return;
        }
        long addresses = dz.address() | x.address() | Checks.addressOrNull(add) | rsigma.address();
        addresses |= factors.address() | dx.address() | dgamma.address();
        Function function = add == null ? Function.RMSNORM_BWD : Function.RMSNORM_BWD_ADD;
        AskedWorkspace space = space(function, x, factors, dz.dtype(), addresses, stream);
        do {
            if (add == null) {
                Status.te(
                        TransformerEngine.te_rmsnorm_bwd(
                                dz.handle(),
                                x.handle(),
                                rsigma.handle(),
                                factors.handle(),
                                dx.handle(),
                                dgamma.handle(),
                                space.memory(),
                                multiprocessors(stream),
                                gammaKind == Gamma.ZERO_CENTERED,
                                stream.handle()),
                        "te_rmsnorm_bwd");
            } else {
                Status.te(
                        TransformerEngine.te_rmsnorm_bwd_add(
                                dz.handle(),
                                x.handle(),
                                add.handle(),
                                rsigma.handle(),
                                factors.handle(),
                                dx.handle(),
                                dgamma.handle(),
                                space.memory(),
                                multiprocessors(stream),
                                gammaKind == Gamma.ZERO_CENTERED,
                                stream.handle()),
                        "te_rmsnorm_bwd_add");
            }
        } while (space.wasAsked());
    }

    private void layernormFwd(
            Tensor x, MemorySegment z, DType output, long zAddress, Tensor mu, Tensor rsigma, Stream stream) {
        Tensor factors = given("gamma", gamma);
        Tensor summands = given("beta", beta);
        long addresses = x.address() | factors.address() | summands.address() | zAddress;
        addresses |= mu.address() | rsigma.address();
        AskedWorkspace space = space(Function.LAYERNORM_FWD, x, factors, output, addresses, stream);
        do {
            Status.te(
                    TransformerEngine.te_layernorm_fwd(
                            x.handle(),
                            factors.handle(),
                            summands.handle(),
                            epsilon,
                            z,
                            mu.handle(),
                            rsigma.handle(),
                            space.memory(),
                            multiprocessors(stream),
                            gammaKind == Gamma.ZERO_CENTERED,
                            stream.handle()),
                    "te_layernorm_fwd");
        } while (space.wasAsked());
    }

    private void rmsnormFwd(Tensor x, MemorySegment z, DType output, long zAddress, Tensor rsigma, Stream stream) {
        Tensor factors = given("gamma", gamma);
        long addresses = x.address() | factors.address() | zAddress | rsigma.address();
        AskedWorkspace space = space(Function.RMSNORM_FWD, x, factors, output, addresses, stream);
        do {
            Status.te(
                    TransformerEngine.te_rmsnorm_fwd(
                            x.handle(),
                            factors.handle(),
                            epsilon,
                            z,
                            rsigma.handle(),
                            space.memory(),
                            multiprocessors(stream),
                            gammaKind == Gamma.ZERO_CENTERED,
                            stream.handle()),
                    "te_rmsnorm_fwd");
        } while (space.wasAsked());
    }

    /** {@code addresses}: of all tensors, combined by {@code |}: over some that begin elsewhere TE runs another kernel. */
    private AskedWorkspace space(
            Function function, Tensor x, Tensor factors, DType output, long addresses, Stream stream) {
        return AskedWorkspace.of(function, gammaKind, stream)
                .withMatrix(x)
                .with(factors.dtype().ordinal())
                .with(output.ordinal())
                .with(addresses % ALIGNMENT == 0 ? 0 : 1)
                .with(multiprocessors(stream));
    }

    /** Returns how many multiprocessors a norm may use. */
    private static int multiprocessors(Stream stream) {
        return Inside.state(stream).multiprocessors().ofTransformerEngineNorms();
    }

    private static Tensor given(String argument, @Nullable Tensor tensor) {
        if (tensor == null) {
            throw new IllegalStateException(
                    argument + ": expected a tensor, got none; call " + argument + "(...) before");
        }
        return tensor;
    }

    /** Checks what both norms take in forward without quantizing. */
    private void checkForward(Tensor x, Tensor z, Tensor rsigma, Stream stream) {
        Tensor factors = checkOperands(x, rsigma, stream);
        if (x.dtype() == DType.FLOAT32) {
            Checks.shaped(stream, "z", Checks.floats(stream, "z", z), x);
        } else {
            Checks.like(stream, "z", z, x);
        }
        Checks.written("z", z, "x", x, "gamma", factors);
        Checks.apart("rsigma", rsigma, "z", z);
        if (NormSwitches.forward() == NormBackend.CUDNN) {
            Checks.aligned("z", z);
        }
    }

    /** Checks what both norms take in forward with quantizing. */
    private void checkForward(Tensor x, QuantizedTensor z, Tensor rsigma, Stream stream) {
        Tensor factors = checkOperands(x, rsigma, stream);
        QuantizedChecks.output(stream, "z", z, x.size(0), x.size(1));
        QuantizedChecks.requireTensorScaling("z", z, "TE's norms compute no block scales");
        if (z.dtype() != DType.FLOAT8_E4M3) {
            throw new IllegalArgumentException("z: expected FLOAT8_E4M3, the one FP8 type that TE's norms write, got "
                    + QuantizedChecks.describe(z));
        }
        QuantizedChecks.aligned("x", x, "z", z);
        QuantizedChecks.apart("z", z, "x", x);
        QuantizedChecks.apart("z", z, "gamma", factors);
        QuantizedChecks.apart("z", z, "rsigma", rsigma);
        if (NormSwitches.forward() == NormBackend.CUDNN) {
            if (z.amax() == null) {
                throw new IllegalArgumentException(
                        "z: expected an amax, which cuDNN writes where NormSwitches chose it, got "
                                + QuantizedChecks.describe(z) + " without; set it by amax");
            }
            QuantizedChecks.aligned("z", z.rowwise());
        }
    }

    /** Returns gamma. */
    private Tensor checkOperands(Tensor x, Tensor rsigma, Stream stream) {
        checkInput(x, NormSwitches.forward(), stream);
        Tensor factors = given("gamma", gamma);
        Checks.vector(stream, "gamma", factors, x.dtype(), x.size(1));
        Checks.vector(stream, "rsigma", rsigma, DType.FLOAT32, x.size(0));
        Checks.written("rsigma", rsigma, "x", x, "gamma", factors);
        if (NormSwitches.forward() == NormBackend.CUDNN) {
            checkAligned(x, factors, rsigma);
        }
        return factors;
    }

    /** Checks what layer norm takes besides in forward. */
    private void checkCentred(Tensor x, Tensor mu, Tensor rsigma, Stream stream) {
        Tensor summands = given("beta", beta);
        Checks.vector(stream, "beta", summands, x.dtype(), x.size(1));
        Checks.vector(stream, "mu", mu, DType.FLOAT32, x.size(0));
        Checks.apart("rsigma", rsigma, "beta", summands);
        Checks.written("mu", mu, "x", x, "gamma", given("gamma", gamma));
        Checks.apart("mu", mu, "beta", summands, "rsigma", rsigma);
        if (NormSwitches.forward() == NormBackend.CUDNN) {
            Checks.aligned("beta", summands);
            Checks.aligned("mu", mu);
        }
    }

    /** Checks what both norms take in backward, and returns gamma. */
    private Tensor checkBackward(Tensor dz, Tensor x, Tensor rsigma, Tensor dx, Tensor dgamma, Stream stream) {
        boolean cudnn = NormSwitches.backward() == NormBackend.CUDNN;
        checkInput(x, NormSwitches.backward(), stream);
        Tensor factors = given("gamma", gamma);
        // TE describes dz to cuDNN in the type of x, and dx in that of gamma.
        boolean free = x.dtype() == DType.FLOAT32 && !cudnn;
        DType type = free ? Checks.floats(stream, "gamma", factors).dtype() : x.dtype();
        Checks.vector(stream, "gamma", factors, type, x.size(1));
        Checks.matrix(stream, "dz", dz, factors.dtype(), x.size(0), x.size(1));
        Checks.vector(stream, "rsigma", rsigma, DType.FLOAT32, x.size(0));
        Checks.like(stream, "dx", dx, x);
        Checks.vector(stream, "dgamma", dgamma, factors.dtype(), x.size(1));
        Checks.written("dx", dx, "dz", dz, "x", x);
        Checks.written("dx", dx, "rsigma", rsigma, "gamma", factors);
        Checks.written("dgamma", dgamma, "dz", dz, "x", x);
        Checks.written("dgamma", dgamma, "rsigma", rsigma, "gamma", factors);
        Checks.apart("dgamma", dgamma, "dx", dx);
        if (cudnn) {
            checkAligned(x, factors, rsigma);
            Checks.aligned("dz", dz);
            Checks.aligned("dx", dx);
            Checks.aligned("dgamma", dgamma);
        }
        return factors;
    }

    /** Checks what layer norm takes besides in backward. */
    private void checkCentredBackward(
            Tensor dz, Tensor x, Tensor mu, Tensor rsigma, Tensor dx, Tensor dgamma, Tensor dbeta, Stream stream) {
        Tensor factors = given("gamma", gamma);
        Checks.vector(stream, "mu", mu, DType.FLOAT32, x.size(0));
        Checks.vector(stream, "dbeta", dbeta, factors.dtype(), x.size(1));
        Checks.apart("dx", dx, "mu", mu);
        Checks.apart("dgamma", dgamma, "mu", mu);
        Checks.written("dbeta", dbeta, "dz", dz, "x", x);
        Checks.written("dbeta", dbeta, "mu", mu, "rsigma", rsigma);
        Checks.written("dbeta", dbeta, "gamma", factors, "dx", dx);
        Checks.apart("dbeta", dbeta, "dgamma", dgamma);
        if (NormSwitches.backward() == NormBackend.CUDNN) {
            Checks.aligned("mu", mu);
            Checks.aligned("dbeta", dbeta);
        }
    }

    private static void checkInput(Tensor x, NormBackend backend, Stream stream) {
        Checks.matrix(stream, "x", x);
        if (x.size(1) == 0) {
            throw new IllegalArgumentException("x: expected at least one column, got " + Checks.describe(x));
        }
        if (backend == NormBackend.TE) {
            Checks.countedIn32Bits("x", x);
        }
    }

    /** The graphs that TE builds with cuDNN load 16 bytes at once. */
    private static void checkAligned(Tensor x, Tensor gamma, Tensor rsigma) {
        Checks.aligned("x", x);
        Checks.aligned("gamma", gamma);
        Checks.aligned("rsigma", rsigma);
    }
}
