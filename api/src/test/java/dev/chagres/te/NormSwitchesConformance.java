package dev.chagres.te;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.QuantizedTensor;
import dev.chagres.Tensor;
import dev.chagres.bindings.Provider;
import dev.chagres.bindings.TransformerEngineException;
import dev.chagres.conformance.Comparison;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerances;
import dev.chagres.layer.NormConfig;
import dev.chagres.layer.NormConfig.Kind;
import dev.chagres.te.NormSwitches.GammaPrecision;
import dev.chagres.te.Normalization.Gamma;
import dev.chagres.witness.NormWitness;
import dev.chagres.witness.Rounding;
import dev.chagres.witness.Weights;
import java.util.Arrays;
import org.apache.commons.math3.linear.MatrixUtils;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Norms by cuDNN's kernels against double precision, and what is refused while they compute. */
@Tag("L0")
@Tag("L1")
class NormSwitchesConformance {
    private static final float EPSILON = 1e-5f;
    private static final int TOKENS = 24;
    private static final int SIZE = 256;
    private static final DType TYPE = DType.BFLOAT16;

    private final OpenDevice open = new OpenDevice();

    @AfterEach
    void turnBack() {
        NormSwitches.forward(NormBackend.TE);
        NormSwitches.backward(NormBackend.TE);
        NormSwitches.zeroCenteredGamma(GammaPrecision.FLOAT32);
    }

    private void onDevice(Runnable body) {
        open.open();
        try {
            open.begin(OpenDevice.seed());
            try {
                body.run();
            } finally {
                open.end();
            }
        } finally {
            open.close();
        }
    }

    /** Both kernels in turn: nothing of the ones that were used before is left. */
    @Test
    void normsAndGradientsOfBothKernels() {
        for (NormBackend backend : new NormBackend[] {NormBackend.TE, NormBackend.CUDNN, NormBackend.TE}) {
            NormSwitches.forward(backend);
            NormSwitches.backward(backend);
            assertEquals(backend, NormSwitches.forward());
            assertEquals(backend, NormSwitches.backward());
            onDevice(() -> {
                for (Kind kind : Kind.values()) {
                    for (Gamma gamma : Gamma.values()) {
                        norm(kind, gamma, GammaPrecision.FLOAT32);
                    }
                }
            });
        }
    }

    @Test
    void sumsInTheTypeOfGamma() {
        NormSwitches.forward(NormBackend.CUDNN);
        NormSwitches.backward(NormBackend.CUDNN);
        NormSwitches.zeroCenteredGamma(GammaPrecision.GAMMA_TYPE);
        assertEquals(GammaPrecision.GAMMA_TYPE, NormSwitches.zeroCenteredGamma());
        onDevice(() -> norm(Kind.RMS_NORM, Gamma.ZERO_CENTERED, GammaPrecision.GAMMA_TYPE));
    }

    private void norm(Kind kind, Gamma gammaKind, GammaPrecision precision) {
        RealMatrix x = open.normal(TYPE, TOKENS, SIZE, 1);
        RealMatrix dz = open.normal(TYPE, TOKENS, SIZE, 1);
        RealMatrix drawn = open.normal(TYPE, 1, SIZE, 0.2);
        double[] added = open.normal(TYPE, SIZE, 0.2);
        RealMatrix factor = gammaKind == Gamma.PLAIN ? drawn : drawn.scalarAdd(1);
        Weights weights = new Weights();
        weights.put("weight", precision == GammaPrecision.FLOAT32 ? factor : Rounding.round(factor, TYPE));
        weights.put("bias", MatrixUtils.createRowRealMatrix(added));
        NormWitness witness = new NormWitness(new NormConfig(kind, SIZE, EPSILON), weights, "");
        Tensor input = open.tensor(TYPE, x);
        Tensor gradient = open.tensor(TYPE, dz);
        Tensor gamma = open.tensor(TYPE, drawn.getRow(0), SIZE);
        Tensor beta = open.tensor(TYPE, added, SIZE);
        Tensor z = open.unwritten(TYPE, TOKENS, SIZE);
        Tensor mu = open.unwritten(DType.FLOAT32, TOKENS);
        Tensor rsigma = open.unwritten(DType.FLOAT32, TOKENS);
        Tensor dx = open.unwritten(TYPE, TOKENS, SIZE);
        Tensor dgamma = open.unwritten(TYPE, SIZE);
        Tensor dbeta = open.unwritten(TYPE, SIZE);
        if (kind == Kind.LAYER_NORM) {
            new Normalization(EPSILON, gammaKind)
                    .gamma(gamma)
                    .beta(beta)
                    .layernormFwd(input, z, mu, rsigma, open.stream());
            new Normalization(0, gammaKind)
                    .gamma(gamma)
                    .layernormBwd(gradient, input, mu, rsigma, dx, dgamma, dbeta, open.stream());
        } else {
            new Normalization(EPSILON, gammaKind).gamma(gamma).rmsnormFwd(input, z, rsigma, open.stream());
            new Normalization(0, gammaKind).gamma(gamma).rmsnormBwd(gradient, input, rsigma, dx, dgamma, open.stream());
        }
        open.assertClose("z", witness.forward(x), z, Tolerances.rounded(TYPE));
        double largest = Arrays.stream(witness.inverseDeviation()).max().orElse(1);
        double[] expected = Comparison.entries(witness.backward(dz));
        open.assertClose("dx", expected, open.read(dx), largest, Tolerances.rounded(TYPE));
        double[] ofGamma = weights.gradient("weight").getRow(0);
        open.assertClose("dgamma", ofGamma, open.read(dgamma), Math.sqrt(TOKENS), Tolerances.rounded(TYPE));
    }

    @Test
    void noSwitchTurnsWhileADeviceIsOpen() {
        try (Device device = Device.open()) {
            String text =
                    ": expected a process without open devices, whose work a change would reach, got 1; call it before"
                            + " Device.open, or close them";
            assertEquals(0, device.index());
            assertThrown(IllegalStateException.class, "forward" + text, () -> NormSwitches.forward(NormBackend.CUDNN));
            assertThrown(
                    IllegalStateException.class, "backward" + text, () -> NormSwitches.backward(NormBackend.CUDNN));
            assertThrown(
                    IllegalStateException.class,
                    "zeroCenteredGamma" + text,
                    () -> NormSwitches.zeroCenteredGamma(GammaPrecision.GAMMA_TYPE));
        }
        assertEquals(NormBackend.TE, NormSwitches.forward());
        assertEquals(GammaPrecision.FLOAT32, NormSwitches.zeroCenteredGamma());
    }

    @Test
    void refusedForward() {
        NormSwitches.forward(NormBackend.CUDNN);
        onDevice(() -> {
            Tensor x = open.tensor(TYPE, open.normal(TYPE, 4, 16, 1));
            Tensor gamma = open.unwritten(TYPE, 16);
            Tensor rsigma = open.unwritten(DType.FLOAT32, 4);
            QuantizedTensor z = open.scope()
                    .quantized(dev.chagres.Scaling.TENSOR, DType.FLOAT8_E4M3, 4, 16)
                    .allocateRowwise(open.scope())
                    .scale(open.unwritten(DType.FLOAT32, 1));
            assertThrown(
                    IllegalArgumentException.class,
                    "z: expected an amax, which cuDNN writes where NormSwitches chose it, got FLOAT8_E4M3[4, 16] TENSOR without;"
                            + " set it by amax",
                    () -> new Normalization(EPSILON, Gamma.PLAIN).gamma(gamma).rmsnormFwd(x, z, rsigma, open.stream()));
            Tensor late = open.scope().view(open.unwritten(TYPE, 100), 1, 4, 16);
            Tensor whole = open.unwritten(TYPE, 4, 16);
            assertThrown(
                    IllegalArgumentException.class,
                    "x: expected memory that begins at a multiple of 16 bytes, as every tensor of a scope does, got a view that does"
                            + " not; copy it into a tensor",
                    () -> new Normalization(EPSILON, Gamma.PLAIN)
                            .gamma(gamma)
                            .rmsnormFwd(late, whole, rsigma, open.stream()));
        });
    }

    @Test
    void refusedBackward() {
        NormSwitches.backward(NormBackend.CUDNN);
        onDevice(() -> {
            Tensor x = open.unwritten(DType.FLOAT32, 4, 16);
            Tensor dx = open.unwritten(DType.FLOAT32, 4, 16);
            Tensor dz = open.unwritten(TYPE, 4, 16);
            Tensor gamma = open.unwritten(TYPE, 16);
            Tensor dgamma = open.unwritten(TYPE, 16);
            Tensor rsigma = open.unwritten(DType.FLOAT32, 4);
            assertThrown(
                    IllegalArgumentException.class,
                    "gamma: expected FLOAT32[16], got BFLOAT16[16]",
                    () -> new Normalization(0, Gamma.PLAIN)
                            .gamma(gamma)
                            .rmsnormBwd(dz, x, rsigma, dx, dgamma, open.stream()));
            Tensor sameX = open.unwritten(TYPE, 4, 16);
            Tensor sameDx = open.unwritten(TYPE, 4, 16);
            Tensor add = open.unwritten(TYPE, 4, 16);
            if (Provider.current() == Provider.REFERENCE) { // A later cuDNN than the pinned one may compute it.
                assertThrows(
                        TransformerEngineException.class,
                        () -> new Normalization(0, Gamma.PLAIN)
                                .gamma(gamma)
                                .rmsnormBwdAdd(dz, sameX, add, rsigma, sameDx, dgamma, open.stream()));
            }
        });
    }
}
