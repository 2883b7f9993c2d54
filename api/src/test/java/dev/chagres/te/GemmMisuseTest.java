package dev.chagres.te;

import static dev.chagres.conformance.Thrown.assertThrown;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.internal.Inside;
import dev.chagres.te.Gemm.Transpose;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** The texts of what {@code Gemm} refuses. */
@Tag("L0")
@Tag("L1")
class GemmMisuseTest {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static final Transpose NO = Transpose.NO;
    private static final Transpose YES = Transpose.YES;

    private static Tensor of(DType dtype, long... sizes) {
        return open.scope().tensor(dtype, dev.chagres.Shape.of(sizes));
    }

    private static void refused(String text, Tensor a, Transpose transA, Tensor b, Transpose transB, Tensor d) {
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> Gemm.gemm(a, transA, b, transB, d, Output.OVERWRITE, open.stream()));
    }

    @Test
    void shapesAndTypes() {
        Tensor a = of(DType.FLOAT32, 3, 4);
        Tensor b = of(DType.FLOAT32, 4, 5);
        Tensor d = of(DType.FLOAT32, 3, 5);
        refused(
                "a: expected a matrix of FLOAT32, FLOAT16 or BFLOAT16, got FLOAT32[3]",
                of(DType.FLOAT32, 3),
                NO,
                b,
                NO,
                d);
        refused(
                "b: expected a matrix of FLOAT32, FLOAT16 or BFLOAT16, got INT32[4, 5]",
                a,
                NO,
                of(DType.INT32, 4, 5),
                NO,
                d);
        refused(
                "b: expected FLOAT32[4, N], for a is FLOAT32[3, 4], got FLOAT32[5, 5]",
                a,
                NO,
                of(DType.FLOAT32, 5, 5),
                NO,
                d);
        refused("b: expected FLOAT32[N, 4], transposed, for a is FLOAT32[3, 4], got FLOAT32[4, 5]", a, NO, b, YES, d);
        refused("b: expected FLOAT32[3, N], for a is FLOAT32[3, 4], transposed, got FLOAT32[4, 5]", a, YES, b, NO, d);
        refused(
                "b: expected FLOAT32[4, N], for a is FLOAT32[3, 4], got BFLOAT16[4, 5]",
                a,
                NO,
                of(DType.BFLOAT16, 4, 5),
                NO,
                d);
        refused("d: expected [3, 5], got FLOAT32[5, 3]", a, NO, b, NO, of(DType.FLOAT32, 5, 3));
        refused(
                "d: expected FLOAT32 or the type of a, FLOAT32, got BFLOAT16[3, 5]",
                a,
                NO,
                b,
                NO,
                of(DType.BFLOAT16, 3, 5));
    }

    @Test
    void sharedMemory() {
        Tensor a = of(DType.FLOAT32, 4, 4);
        Tensor b = of(DType.FLOAT32, 4, 4);
        Tensor d = of(DType.FLOAT32, 4, 4);
        String tail = "'s; it is written to while that is read or written";
        refused("d: expected memory of its own, got some of a" + tail, a, NO, b, NO, a);
        refused("d: expected memory of its own, got some of b" + tail, a, NO, b, NO, b);
        Tensor bias = open.scope().view(d, 0, 4);
        assertThrown(
                IllegalArgumentException.class,
                "d: expected memory of its own, got some of bias" + tail,
                () -> Gemm.gemmBias(a, NO, b, NO, bias, d, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "dbias: expected memory of its own, got some of d" + tail,
                () -> Gemm.gemmBiasGradient(a, b, NO, bias, d, open.stream()));
        Tensor rows = open.scope().view(a, 4, 4);
        assertThrown(
                IllegalArgumentException.class,
                "dbias: expected memory of its own, got some of a" + tail,
                () -> Gemm.gemmBiasGradient(a, b, NO, rows, d, open.stream()));
    }

    @Test
    void sharedMemoryOfEpilogues() {
        String tail = "'s; it is written to while that is read or written";
        Tensor a = of(DType.BFLOAT16, 8, 8);
        Tensor b = of(DType.BFLOAT16, 8, 8);
        Tensor bias = of(DType.BFLOAT16, 8);
        Tensor d = of(DType.BFLOAT16, 8, 8);
        assertThrown(
                IllegalArgumentException.class,
                "preGelu: expected memory of its own, got some of d" + tail,
                () -> Gemm.gemmBiasGelu(a, NO, b, NO, bias, d, d, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "preGelu: expected memory of its own, got some of d" + tail,
                () -> Gemm.gemmGelu(a, NO, b, NO, d, d, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "preGelu: expected memory of its own, got some of a" + tail,
                () -> Gemm.gemmGelu(a, NO, b, NO, a, d, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "preGelu: expected memory of its own, got some of b" + tail,
                () -> Gemm.gemmBiasGelu(a, NO, b, NO, bias, b, d, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "d: expected memory of its own, got some of preGelu" + tail,
                () -> Gemm.gemmGeluGradient(a, NO, b, NO, d, d, open.stream()));
    }

    @Test
    void biases() {
        Tensor a = of(DType.BFLOAT16, 3, 4);
        Tensor b = of(DType.BFLOAT16, 4, 8);
        Tensor d = of(DType.BFLOAT16, 3, 8);
        assertThrown(
                IllegalArgumentException.class,
                "bias: expected BFLOAT16[8], got BFLOAT16[3]",
                () -> Gemm.gemmBias(a, NO, b, NO, of(DType.BFLOAT16, 3), d, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "bias: expected BFLOAT16[8], got FLOAT32[8]",
                () -> Gemm.gemmBias(a, NO, b, NO, of(DType.FLOAT32, 8), d, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "dbias: expected BFLOAT16[3], got BFLOAT16[8]",
                () -> Gemm.gemmBiasGradient(
                        of(DType.BFLOAT16, a.size(1), 3), b, NO, of(DType.BFLOAT16, 8), d, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "preGelu: expected BFLOAT16[3, 8], got BFLOAT16[3, 9]",
                () -> Gemm.gemmGelu(a, NO, b, NO, of(DType.BFLOAT16, 3, 9), d, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "preGelu: expected BFLOAT16[3, 8], got BFLOAT16[3, 9]",
                () -> Gemm.gemmBiasGelu(
                        a, NO, b, NO, of(DType.BFLOAT16, 8), of(DType.BFLOAT16, 3, 9), d, open.stream()));
    }

    @Test
    void sumsOverNothingBeforeABias() {
        Tensor a = of(DType.BFLOAT16, 3, 0);
        Tensor b = of(DType.BFLOAT16, 0, 8);
        Tensor d = of(DType.BFLOAT16, 3, 8);
        Tensor bias = of(DType.BFLOAT16, 8);
        String text = "a: expected K of at least 1, for a product with a bias, got BFLOAT16[3, 0]";
        assertThrown(IllegalArgumentException.class, text, () -> Gemm.gemmBias(a, NO, b, NO, bias, d, open.stream()));
        Tensor preGelu = of(DType.BFLOAT16, 3, 8);
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> Gemm.gemmBiasGelu(a, NO, b, NO, bias, preGelu, d, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "d: expected at least one column, for the kernel that sums dbias makes d, got BFLOAT16[3, 0]",
                () -> Gemm.gemmBiasGradient(
                        of(DType.BFLOAT16, 4, 3),
                        of(DType.BFLOAT16, 4, 0),
                        NO,
                        of(DType.BFLOAT16, 3),
                        of(DType.BFLOAT16, 3, 0),
                        open.stream()));
    }

    @Test
    void typesOfGelu() {
        Tensor a = of(DType.FLOAT32, 3, 4);
        Tensor b = of(DType.FLOAT32, 4, 8);
        Tensor d = of(DType.FLOAT32, 3, 8);
        assertThrown(
                IllegalArgumentException.class,
                "a: expected FLOAT16 or BFLOAT16, for which cuBLAS has products with GELU, got FLOAT32[3, 4]; call the"
                        + " product without GELU, then Activation.GELU",
                () -> Gemm.gemmGelu(a, NO, b, NO, of(DType.FLOAT32, 3, 8), d, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "a: expected FLOAT16 or BFLOAT16, for which cuBLAS has products with GELU, got FLOAT32[3, 4]; call the"
                        + " product without GELU, then Activation.GELU",
                () -> Gemm.gemmGeluGradient(a, NO, b, NO, of(DType.FLOAT32, 3, 8), d, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "d: expected the type of a, BFLOAT16, got FLOAT32[3, 8]",
                () -> Gemm.gemmBiasGelu(
                        of(DType.BFLOAT16, 3, 4),
                        NO,
                        of(DType.BFLOAT16, 4, 8),
                        NO,
                        of(DType.BFLOAT16, 8),
                        of(DType.BFLOAT16, 3, 8),
                        d,
                        open.stream()));
    }

    @Test
    void whatIsNotThere() {
        Tensor a = of(DType.FLOAT32, 2, 2);
        Tensor b = of(DType.FLOAT32, 2, 2);
        Tensor d = of(DType.FLOAT32, 2, 2);
        assertThrown(
                NullPointerException.class,
                "output: expected a value, got null",
                () -> Gemm.gemm(a, NO, b, NO, d, null, open.stream()));
        assertThrown(
                NullPointerException.class,
                "transB: expected a value, got null",
                () -> Gemm.gemm(a, NO, b, null, d, Output.ADD, open.stream()));
        assertThrown(
                NullPointerException.class,
                "b: expected a value, got null",
                () -> Gemm.gemm(a, NO, null, NO, d, Output.ADD, open.stream()));
        assertThrown(
                NullPointerException.class,
                "stream: expected a value, got null",
                () -> Gemm.gemm(a, NO, b, NO, d, Output.ADD, null));
    }

    @Test
    void trustedContents() {
        Tensor a = of(DType.FLOAT32, 2, 2);
        Tensor d = of(DType.FLOAT32, 2, 2);
        Inside.fix(d);
        refused(
                "d: expected a tensor whose elements may change, got the offsets of a CuSeqlens or the angles of a"
                        + " RotaryEmbedding, which are trusted once made",
                a,
                NO,
                of(DType.FLOAT32, 2, 2),
                NO,
                d);
    }

    @Test
    void otherDevicesAndClosedTensors() {
        Tensor a = of(DType.FLOAT32, 2, 2);
        Tensor b = of(DType.FLOAT32, 2, 2);
        try (Device other = Device.open();
                Scope scope = other.openScope()) {
            refused(
                    "d: expected a tensor of device 0, got FLOAT32[2, 2] of device 0, opened another time",
                    a,
                    NO,
                    b,
                    NO,
                    scope.tensor(DType.FLOAT32, 2, 2));
        }
        Tensor closed;
        try (Scope nested = open.scope().open()) {
            closed = nested.tensor(DType.FLOAT32, 2, 2);
        }
        assertThrown(
                IllegalStateException.class,
                "tensor FLOAT32[2, 2] of nested scope of " + open.device() + " is closed: so is its scope",
                () -> Gemm.gemm(closed, NO, b, NO, a, Output.OVERWRITE, open.stream()));
    }
}
