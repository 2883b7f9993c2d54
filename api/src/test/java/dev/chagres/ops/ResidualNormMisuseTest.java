package dev.chagres.ops;

import static dev.chagres.conformance.Thrown.assertThrown;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.te.Output;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** The texts of what {@code ResidualNorm} refuses, and that its calls make no garbage. */
@Tag("L0")
@Tag("L1")
class ResidualNormMisuseTest {
    private static final float EPSILON = 1e-5f;
    private static final String SHARED = "'s; it is written to while that is read or written";

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static Tensor of(DType dtype, long... sizes) {
        return open.scope().tensor(dtype, Shape.of(sizes));
    }

    /** The arguments of forward, each of which a test replaces by a wrong one. */
    private static final class Arguments {
        private Tensor x = of(DType.FLOAT32, 3, 8);
        private Tensor residual = of(DType.FLOAT32, 3, 8);
        private Tensor gamma = of(DType.FLOAT32, 8);
        private Tensor beta = of(DType.FLOAT32, 8);
        private float epsilon = EPSILON;
        private Tensor h = of(DType.FLOAT32, 3, 8);
        private Tensor y = of(DType.FLOAT32, 3, 8);
        private Tensor mean = of(DType.FLOAT32, 3);
        private Tensor inverse = of(DType.FLOAT32, 3);
        private Tensor dgamma = of(DType.FLOAT32, 8);
        private Tensor dbeta = of(DType.FLOAT32, 8);

        void refused(String text) {
            assertThrown(
                    IllegalArgumentException.class,
                    text,
                    () -> ResidualNorm.forward(x, residual, gamma, beta, epsilon, h, y, mean, inverse, open.stream()));
        }

        void refusedBackward(String text) {
            assertThrown(
                    IllegalArgumentException.class,
                    text,
                    () -> ResidualNorm.backward(
                            x, h, mean, inverse, gamma, residual, y, dgamma, dbeta, Output.ADD, open.stream()));
        }
    }

    @Test
    void refusals() {
        Arguments narrow = new Arguments();
        narrow.x = of(DType.FLOAT32, 3, 6);
        narrow.refused(
                "x: expected rows of whole 16-byte packs, at most 16 KiB, got FLOAT32[3, 6]; call Elementwise.add and"
                        + " Normalization");
        Arguments gamma = new Arguments();
        gamma.gamma = of(DType.BFLOAT16, 8);
        gamma.refused("gamma: expected FLOAT32[8], got BFLOAT16[8]");
        gamma.refusedBackward("gamma: expected FLOAT32[8], got BFLOAT16[8]");
        Arguments epsilon = new Arguments();
        epsilon.epsilon = 0;
        epsilon.refused("epsilon: expected a number above 0, got 0.0");
        Arguments unaligned = new Arguments();
        unaligned.beta = open.scope().view(of(DType.FLOAT32, 9), 1, 8);
        unaligned.refused(
                "beta: expected memory that begins at a multiple of 16 bytes, as every tensor of a scope does, got a"
                        + " view that does not; copy it into a tensor");
        Arguments mean = new Arguments();
        mean.mean = of(DType.FLOAT32, 4);
        mean.refused("mean: expected FLOAT32[3], got FLOAT32[4]");
        mean.refusedBackward("mean: expected FLOAT32[3], got FLOAT32[4]");
        Arguments y = new Arguments();
        y.y = y.x;
        y.refused("y: expected memory of its own, got some of x" + SHARED);
        Arguments h = new Arguments();
        h.y = h.h;
        h.refused("y: expected memory of its own, got some of h" + SHARED);
        Arguments statistics = new Arguments();
        statistics.inverse = statistics.mean;
        statistics.refused("mean: expected memory of its own, got some of inverse" + SHARED);
        Arguments dgamma = new Arguments();
        dgamma.dgamma = of(DType.BFLOAT16, 8);
        dgamma.refusedBackward("dgamma: expected FLOAT32[8], got BFLOAT16[8]");
        Arguments dbeta = new Arguments();
        dbeta.dbeta = dbeta.dgamma;
        dbeta.refusedBackward("dgamma: expected memory of its own, got some of dbeta" + SHARED);
    }

    @Test
    void makesNoGarbage() {
        Arguments in = new Arguments();
        Allocation.assertNone("residual norm", () -> {
            ResidualNorm.forward(
                    in.x, in.residual, in.gamma, in.beta, EPSILON, in.h, in.y, in.mean, in.inverse, open.stream());
            ResidualNorm.backward(
                    in.y,
                    in.h,
                    in.mean,
                    in.inverse,
                    in.gamma,
                    in.residual,
                    in.residual,
                    in.dgamma,
                    in.dbeta,
                    Output.OVERWRITE,
                    open.stream());
        });
    }
}
