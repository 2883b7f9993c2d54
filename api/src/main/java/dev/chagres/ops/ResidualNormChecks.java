package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;

/**
 * Checks of the arguments of {@link ResidualNorm}.
 *
 * <p>Threading: the device's thread.
 */
final class ResidualNormChecks {
    private ResidualNormChecks() {}

    static void forward(
            Tensor x,
            Tensor residual,
            Tensor gamma,
            Tensor beta,
            float epsilon,
            Tensor h,
            Tensor y,
            Tensor mean,
            Tensor inverse,
            Stream stream) {
        rows("x", x, stream);
        like("residual", residual, x, stream);
        column("gamma", gamma, x, stream);
        column("beta", beta, x, stream);
        if (!(epsilon > 0) || Float.isInfinite(epsilon)) {
            throw new IllegalArgumentException("epsilon: expected a number above 0, got " + epsilon);
        }
        like("h", h, x, stream);
        like("y", y, x, stream);
        Checks.vector(stream, "mean", mean, DType.FLOAT32, x.size(0));
        Checks.vector(stream, "inverse", inverse, DType.FLOAT32, x.size(0));
        Checks.writable("h", h);
        Checks.apartOrSame("h", h, "x", x);
        Checks.apartOrSame("h", h, "residual", residual);
        apart("h", h, "gamma", gamma, "beta", beta);
        Checks.writable("y", y);
        apart("y", y, "x", x, "residual", residual);
        apart("y", y, "gamma", gamma, "beta", beta);
        Checks.apart("y", y, "h", h);
        statistics("mean", mean, x, residual, gamma, beta, h, y);
        statistics("inverse", inverse, x, residual, gamma, beta, h, y);
        Checks.apart("mean", mean, "inverse", inverse);
    }

    static void backward(
            Tensor dy,
            Tensor h,
            Tensor mean,
            Tensor inverse,
            Tensor gamma,
            Tensor dresidual,
            Tensor dh,
            Tensor dgamma,
            Tensor dbeta,
            Stream stream) {
        rows("dy", dy, stream);
        like("h", h, dy, stream);
        Checks.vector(stream, "mean", mean, DType.FLOAT32, dy.size(0));
        Checks.vector(stream, "inverse", inverse, DType.FLOAT32, dy.size(0));
        column("gamma", gamma, dy, stream);
        like("dresidual", dresidual, dy, stream);
        like("dh", dh, dy, stream);
        Checks.vector(stream, "dgamma", dgamma, DType.FLOAT32, dy.size(1));
        Checks.vector(stream, "dbeta", dbeta, DType.FLOAT32, dy.size(1));
        Checks.writable("dh", dh);
        Checks.apartOrSame("dh", dh, "dy", dy);
        Checks.apartOrSame("dh", dh, "h", h);
        Checks.apartOrSame("dh", dh, "dresidual", dresidual);
        apart("dh", dh, "mean", mean, "inverse", inverse);
        Checks.apart("dh", dh, "gamma", gamma);
        gradient("dgamma", dgamma, dy, h, mean, inverse, gamma, dresidual, dh);
        gradient("dbeta", dbeta, dy, h, mean, inverse, gamma, dresidual, dh);
        Checks.apart("dgamma", dgamma, "dbeta", dbeta);
    }

    private static void statistics(
            String argument, Tensor tensor, Tensor x, Tensor residual, Tensor gamma, Tensor beta, Tensor h, Tensor y) {
        Checks.writable(argument, tensor);
        apart(argument, tensor, "x", x, "residual", residual);
        apart(argument, tensor, "gamma", gamma, "beta", beta);
        apart(argument, tensor, "h", h, "y", y);
    }

    private static void gradient(
            String argument,
            Tensor tensor,
            Tensor dy,
            Tensor h,
            Tensor mean,
            Tensor inverse,
            Tensor gamma,
            Tensor dresidual,
            Tensor dh) {
        Checks.writable(argument, tensor);
        apart(argument, tensor, "dy", dy, "h", h);
        apart(argument, tensor, "mean", mean, "inverse", inverse);
        apart(argument, tensor, "gamma", gamma, "dresidual", dresidual);
        Checks.apart(argument, tensor, "dh", dh);
    }

    private static void rows(String argument, Tensor tensor, Stream stream) {
        Checks.matrix(stream, argument, tensor);
        if (!ResidualNorm.takes(tensor)) {
            throw new IllegalArgumentException(argument + ": expected " + ResidualNorm.LIMITS + ", got "
                    + Checks.describe(tensor) + "; call Elementwise.add and Normalization");
        }
        Checks.aligned(argument, tensor);
    }

    private static void like(String argument, Tensor tensor, Tensor model, Stream stream) {
        Checks.like(stream, argument, tensor, model);
        Checks.aligned(argument, tensor);
    }

    private static void column(String argument, Tensor tensor, Tensor matrix, Stream stream) {
        Checks.vector(stream, argument, tensor, matrix.dtype(), matrix.size(1));
        Checks.aligned(argument, tensor);
    }

    private static void apart(
            String argument, Tensor tensor, String firstArgument, Tensor first, String secondArgument, Tensor second) {
        Checks.apart(argument, tensor, firstArgument, first);
        Checks.apart(argument, tensor, secondArgument, second);
    }
}
