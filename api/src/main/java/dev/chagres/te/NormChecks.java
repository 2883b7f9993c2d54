package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.QuantizedChecks;

/**
 * Checks of the arguments of norms.
 *
 * <p>Threading: the device's thread.
 */
final class NormChecks {
    private NormChecks() {}

    /** Checks the arguments that both norms take in forward without quantizing. */
    static void forward(
            Tensor x,
            Tensor gamma,
            float epsilon,
            Tensor z,
            Tensor rsigma,
            Normalization.Gamma gammaKind,
            Stream stream) {
        operands(x, gamma, epsilon, rsigma, gammaKind, stream);
        if (x.dtype() == DType.FLOAT32) {
            Checks.shaped(stream, "z", Checks.floats(stream, "z", z), x);
        } else {
            Checks.like(stream, "z", z, x);
        }
        written("z", z, "x", x, "gamma", gamma);
        Checks.apart("rsigma", rsigma, "z", z);
        if (NormSwitches.forward() == NormBackend.CUDNN) {
            Checks.aligned("z", z);
        }
    }

    /** Checks the arguments that both norms take in forward with quantizing. */
    static void forward(
            Tensor x,
            Tensor gamma,
            float epsilon,
            QuantizedTensor z,
            Tensor rsigma,
            Normalization.Gamma gammaKind,
            Stream stream) {
        operands(x, gamma, epsilon, rsigma, gammaKind, stream);
        QuantizedChecks.output(stream, "z", z, x.size(0), x.size(1));
        QuantizedChecks.requireTensorScaling("z", z, "TE's norms compute no block scales");
        if (z.dtype() != DType.FLOAT8_E4M3) {
            throw new IllegalArgumentException("z: expected FLOAT8_E4M3, the one FP8 type that TE's norms write, got "
                    + QuantizedChecks.describe(z));
        }
        QuantizedChecks.aligned("x", x, "z", z);
        QuantizedChecks.apart("z", z, "x", x);
        QuantizedChecks.apart("z", z, "gamma", gamma);
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

    private static void operands(
            Tensor x, Tensor gamma, float epsilon, Tensor rsigma, Normalization.Gamma gammaKind, Stream stream) {
        Checks.given("gammaKind", gammaKind);
        input(x, NormSwitches.forward(), stream);
        Checks.vector(stream, "gamma", gamma, x.dtype(), x.size(1));
        if (!(epsilon >= 0) || Float.isInfinite(epsilon)) {
            throw new IllegalArgumentException("epsilon: expected a number of at least 0, got " + epsilon);
        }
        Checks.vector(stream, "rsigma", rsigma, DType.FLOAT32, x.size(0));
        written("rsigma", rsigma, "x", x, "gamma", gamma);
        if (NormSwitches.forward() == NormBackend.CUDNN) {
            aligned(x, gamma, rsigma);
        }
    }

    /** The graphs that TE builds with cuDNN load 16 bytes at once. */
    private static void aligned(Tensor x, Tensor gamma, Tensor rsigma) {
        Checks.aligned("x", x);
        Checks.aligned("gamma", gamma);
        Checks.aligned("rsigma", rsigma);
    }

    /** Checks the further arguments of layer norm in forward. */
    static void centredForward(Tensor x, Tensor gamma, Tensor beta, Tensor z, Tensor mu, Tensor rsigma, Stream stream) {
        centred(x, gamma, beta, mu, rsigma, stream);
        Checks.apart("z", z, "beta", beta);
        Checks.apart("mu", mu, "z", z);
    }

    /** Checks the further arguments of layer norm in forward with quantizing. */
    static void centredForward(
            Tensor x, Tensor gamma, Tensor beta, QuantizedTensor z, Tensor mu, Tensor rsigma, Stream stream) {
        centred(x, gamma, beta, mu, rsigma, stream);
        QuantizedChecks.apart("z", z, "beta", beta);
        QuantizedChecks.apart("z", z, "mu", mu);
    }

    private static void centred(Tensor x, Tensor gamma, Tensor beta, Tensor mu, Tensor rsigma, Stream stream) {
        Checks.vector(stream, "beta", beta, x.dtype(), x.size(1));
        Checks.vector(stream, "mu", mu, DType.FLOAT32, x.size(0));
        Checks.apart("rsigma", rsigma, "beta", beta);
        written("mu", mu, "x", x, "gamma", gamma);
        Checks.apart("mu", mu, "beta", beta);
        Checks.apart("mu", mu, "rsigma", rsigma);
        if (NormSwitches.forward() == NormBackend.CUDNN) {
            Checks.aligned("beta", beta);
            Checks.aligned("mu", mu);
        }
    }

    /** Checks the arguments that both norms take in backward. */
    static void backward(
            Tensor dz,
            Tensor x,
            Tensor rsigma,
            Tensor gamma,
            Tensor dx,
            Tensor dgamma,
            Normalization.Gamma gammaKind,
            Stream stream) {
        Checks.given("gammaKind", gammaKind);
        input(x, NormSwitches.backward(), stream);
        if (x.dtype() == DType.FLOAT32) {
            Checks.vector(
                    stream,
                    "gamma",
                    gamma,
                    Checks.floats(stream, "gamma", gamma).dtype(),
                    x.size(1));
        } else {
            Checks.vector(stream, "gamma", gamma, x.dtype(), x.size(1));
        }
        Checks.matrix(stream, "dz", dz, gamma.dtype(), x.size(0), x.size(1));
        Checks.vector(stream, "rsigma", rsigma, DType.FLOAT32, x.size(0));
        Checks.like(stream, "dx", dx, x);
        Checks.vector(stream, "dgamma", dgamma, gamma.dtype(), x.size(1));
        written("dx", dx, "dz", dz, "x", x);
        written("dx", dx, "rsigma", rsigma, "gamma", gamma);
        written("dgamma", dgamma, "dz", dz, "x", x);
        written("dgamma", dgamma, "rsigma", rsigma, "gamma", gamma);
        Checks.apart("dgamma", dgamma, "dx", dx);
        if (NormSwitches.backward() == NormBackend.CUDNN) {
            // TE describes dz to cuDNN in the type of x, and dx in that of gamma.
            Checks.vector(stream, "gamma", gamma, x.dtype(), x.size(1));
            aligned(x, gamma, rsigma);
            Checks.aligned("dz", dz);
            Checks.aligned("dx", dx);
            Checks.aligned("dgamma", dgamma);
        }
    }

    /** Checks what is added to the gradient of x. */
    static void added(Tensor add, Tensor x, Tensor gamma, Tensor dx, Tensor dgamma, Stream stream) {
        Checks.matrix(stream, "add", add, gamma.dtype(), x.size(0), x.size(1));
        Checks.apart("dx", dx, "add", add);
        Checks.apart("dgamma", dgamma, "add", add);
    }

    /** Checks the further arguments of layer norm in backward. */
    static void centredBackward(
            Tensor dz,
            Tensor x,
            Tensor mu,
            Tensor rsigma,
            Tensor gamma,
            Tensor dx,
            Tensor dgamma,
            Tensor dbeta,
            Stream stream) {
        Checks.vector(stream, "mu", mu, DType.FLOAT32, x.size(0));
        Checks.vector(stream, "dbeta", dbeta, gamma.dtype(), x.size(1));
        Checks.apart("dx", dx, "mu", mu);
        Checks.apart("dgamma", dgamma, "mu", mu);
        written("dbeta", dbeta, "dz", dz, "x", x);
        written("dbeta", dbeta, "mu", mu, "rsigma", rsigma);
        written("dbeta", dbeta, "gamma", gamma, "dx", dx);
        Checks.apart("dbeta", dbeta, "dgamma", dgamma);
        if (NormSwitches.backward() == NormBackend.CUDNN) {
            Checks.aligned("mu", mu);
            Checks.aligned("dbeta", dbeta);
        }
    }

    private static void input(Tensor x, NormBackend backend, Stream stream) {
        Checks.matrix(stream, "x", x);
        if (x.size(1) == 0) {
            throw new IllegalArgumentException("x: expected at least one column, got " + Checks.describe(x));
        }
        if (backend == NormBackend.TE) {
            Checks.countedIn32Bits("x", x);
        }
    }

    private static void written(
            String argument, Tensor tensor, String readArgument, Tensor read, String otherArgument, Tensor other) {
        Checks.writable(argument, tensor);
        Checks.apart(argument, tensor, readArgument, read);
        Checks.apart(argument, tensor, otherArgument, other);
    }
}
