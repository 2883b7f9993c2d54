package dev.chagres.te;

import static dev.chagres.conformance.Thrown.assertThrown;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.te.Normalization.Gamma;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** The texts of what {@code Normalization} refuses. */
@Tag("L0")
@Tag("L1")
class NormalizationMisuseTest {
    private static final String SHARED = "'s; it is written to while that is read or written";

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static Tensor of(DType dtype, long... sizes) {
        return open.scope().tensor(dtype, Shape.of(sizes));
    }

    /** The arguments of layer norm, each of which a test replaces by a wrong one. */
    private static final class Layer {
        private Tensor x = of(DType.BFLOAT16, 3, 8);
        private Tensor gamma = of(DType.BFLOAT16, 8);
        private Tensor beta = of(DType.BFLOAT16, 8);
        private float epsilon = 1e-5f;
        private Tensor z = of(DType.BFLOAT16, 3, 8);
        private Tensor mu = of(DType.FLOAT32, 3);
        private Tensor rsigma = of(DType.FLOAT32, 3);
        private Tensor dz = of(DType.BFLOAT16, 3, 8);
        private Tensor dx = of(DType.BFLOAT16, 3, 8);
        private Tensor dgamma = of(DType.BFLOAT16, 8);
        private Tensor dbeta = of(DType.BFLOAT16, 8);

        void refusedForward(String text) {
            assertThrown(
                    IllegalArgumentException.class,
                    text,
                    () -> new Normalization(epsilon, Gamma.PLAIN)
                            .gamma(gamma)
                            .beta(beta)
                            .layernormFwd(x, z, mu, rsigma, open.stream()));
        }

        void refusedBackward(String text) {
            assertThrown(
                    IllegalArgumentException.class,
                    text,
                    () -> new Normalization(0, Gamma.PLAIN)
                            .gamma(gamma)
                            .layernormBwd(dz, x, mu, rsigma, dx, dgamma, dbeta, open.stream()));
        }

        void refusedRmsForward(String text) {
            assertThrown(
                    IllegalArgumentException.class,
                    text,
                    () -> new Normalization(epsilon, Gamma.PLAIN).gamma(gamma).rmsnormFwd(x, z, rsigma, open.stream()));
        }

        void refusedRmsBackward(String text) {
            assertThrown(
                    IllegalArgumentException.class,
                    text,
                    () -> new Normalization(0, Gamma.PLAIN)
                            .gamma(gamma)
                            .rmsnormBwd(dz, x, rsigma, dx, dgamma, open.stream()));
        }
    }

    @Test
    void forwardShapesAndTypes() {
        Layer vector = new Layer();
        vector.x = of(DType.BFLOAT16, 8);
        vector.refusedForward("x: expected a matrix of FLOAT32, FLOAT16 or BFLOAT16, got BFLOAT16[8]");
        Layer narrow = new Layer();
        narrow.x = of(DType.BFLOAT16, 3, 0);
        narrow.refusedForward("x: expected at least one column, got BFLOAT16[3, 0]");
        narrow.refusedRmsForward("x: expected at least one column, got BFLOAT16[3, 0]");
        Layer gamma = new Layer();
        gamma.gamma = of(DType.FLOAT32, 8);
        gamma.refusedForward("gamma: expected BFLOAT16[8], got FLOAT32[8]");
        gamma.refusedRmsForward("gamma: expected BFLOAT16[8], got FLOAT32[8]");
        Layer beta = new Layer();
        beta.beta = of(DType.BFLOAT16, 9);
        beta.refusedForward("beta: expected BFLOAT16[8], got BFLOAT16[9]");
        Layer z = new Layer();
        z.z = of(DType.FLOAT32, 3, 8);
        z.refusedForward("z: expected BFLOAT16[3, 8], got FLOAT32[3, 8]");
        Layer integers = new Layer();
        integers.x = of(DType.FLOAT32, 3, 8);
        integers.gamma = of(DType.FLOAT32, 8);
        integers.z = of(DType.INT32, 3, 8);
        integers.refusedRmsForward("z: expected elements of FLOAT32, FLOAT16 or BFLOAT16, got INT32[3, 8]");
        Layer mu = new Layer();
        mu.mu = of(DType.FLOAT32, 4);
        mu.refusedForward("mu: expected FLOAT32[3], got FLOAT32[4]");
        Layer rsigma = new Layer();
        rsigma.rsigma = of(DType.BFLOAT16, 3);
        rsigma.refusedForward("rsigma: expected FLOAT32[3], got BFLOAT16[3]");
        rsigma.refusedRmsForward("rsigma: expected FLOAT32[3], got BFLOAT16[3]");
    }

    @Test
    void epsilon() {
        Layer negative = new Layer();
        negative.epsilon = -1;
        negative.refusedForward("epsilon: expected a number of at least 0, got -1.0");
        Layer none = new Layer();
        none.epsilon = Float.NaN;
        none.refusedRmsForward("epsilon: expected a number of at least 0, got NaN");
    }

    @Test
    void backwardShapesAndTypes() {
        Layer dz = new Layer();
        dz.dz = of(DType.BFLOAT16, 4, 8);
        dz.refusedBackward("dz: expected BFLOAT16[3, 8], got BFLOAT16[4, 8]");
        dz.refusedRmsBackward("dz: expected BFLOAT16[3, 8], got BFLOAT16[4, 8]");
        Layer dx = new Layer();
        dx.dx = of(DType.FLOAT32, 3, 8);
        dx.refusedBackward("dx: expected BFLOAT16[3, 8], got FLOAT32[3, 8]");
        Layer dgamma = new Layer();
        dgamma.dgamma = of(DType.FLOAT32, 8);
        dgamma.refusedBackward("dgamma: expected BFLOAT16[8], got FLOAT32[8]");
        dgamma.refusedRmsBackward("dgamma: expected BFLOAT16[8], got FLOAT32[8]");
        Layer dbeta = new Layer();
        dbeta.dbeta = of(DType.BFLOAT16, 7);
        dbeta.refusedBackward("dbeta: expected BFLOAT16[8], got BFLOAT16[7]");
        Layer mu = new Layer();
        mu.mu = of(DType.FLOAT32, 2);
        mu.refusedBackward("mu: expected FLOAT32[3], got FLOAT32[2]");
        Layer gamma = new Layer();
        gamma.x = of(DType.FLOAT32, 3, 8);
        gamma.gamma = of(DType.INT32, 8);
        gamma.refusedRmsBackward("gamma: expected elements of FLOAT32, FLOAT16 or BFLOAT16, got INT32[8]");
    }

    @Test
    void sums() {
        Layer layer = new Layer();
        refusedSum(layer, "add: expected BFLOAT16[T, 8], got FLOAT32[3, 8]", of(DType.FLOAT32, 3, 8));
        refusedSum(layer, "add: expected BFLOAT16[3, 8], got BFLOAT16[2, 8]", of(DType.BFLOAT16, 2, 8));
        refusedSum(
                layer,
                "dx: expected memory of its own, got some of add's; it is written to while that is read or written",
                layer.dx);
    }

    private static void refusedSum(Layer layer, String text, Tensor add) {
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> new Normalization(0, Gamma.PLAIN)
                        .gamma(layer.gamma)
                        .rmsnormBwdAdd(layer.dz, layer.x, add, layer.rsigma, layer.dx, layer.dgamma, open.stream()));
    }

    @Test
    void sharedMemory() {
        Layer same = new Layer();
        same.z = same.x;
        same.refusedForward("z: expected memory of its own, got some of x" + SHARED);
        same.refusedRmsForward("z: expected memory of its own, got some of x" + SHARED);
        Layer beta = new Layer();
        beta.beta = open.scope().view(beta.z, 8, 8);
        beta.refusedForward("z: expected memory of its own, got some of beta" + SHARED);
        Layer statistics = new Layer();
        statistics.rsigma = statistics.mu;
        statistics.refusedForward("mu: expected memory of its own, got some of rsigma" + SHARED);
        Layer dx = new Layer();
        dx.dx = dx.dz;
        dx.refusedBackward("dx: expected memory of its own, got some of dz" + SHARED);
        dx.refusedRmsBackward("dx: expected memory of its own, got some of dz" + SHARED);
        Layer dbeta = new Layer();
        dbeta.dbeta = dbeta.dgamma;
        dbeta.refusedBackward("dbeta: expected memory of its own, got some of dgamma" + SHARED);
        Layer dgamma = new Layer();
        dgamma.dgamma = dgamma.gamma;
        dgamma.refusedRmsBackward("dgamma: expected memory of its own, got some of gamma" + SHARED);
    }

    @Test
    void whatIsNotThere() {
        Layer in = new Layer();
        assertThrown(
                NullPointerException.class,
                "gammaKind: expected a value, got null",
                () -> new Normalization(1e-5f, null).gamma(in.gamma).rmsnormFwd(in.x, in.z, in.rsigma, open.stream()));
    }
}
