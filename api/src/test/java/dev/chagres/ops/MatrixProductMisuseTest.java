package dev.chagres.ops;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.te.Gemm.Transpose;
import dev.chagres.te.Output;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** The texts of what {@code MatrixProduct} refuses; {@code GemmMisuseTest} has more of the checks that both share. */
@Tag("L0")
@Tag("L1")
class MatrixProductMisuseTest {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static final Transpose NO = Transpose.NO;
    private static final Transpose YES = Transpose.YES;
    private static final ProductPlan PLAN = ProductPlan.MEASURED;

    private static Tensor of(DType dtype, long... sizes) {
        return open.scope().tensor(dtype, Shape.of(sizes));
    }

    private static void refused(String text, Runnable call) {
        assertThrown(IllegalArgumentException.class, text, call::run);
    }

    @Test
    void shapesAndTypes() {
        Tensor a = of(DType.FLOAT32, 3, 4);
        Tensor b = of(DType.FLOAT32, 4, 5);
        Tensor d = of(DType.FLOAT32, 3, 5);
        refused(
                "b: expected FLOAT32[N, 4], transposed, for a is FLOAT32[3, 4], got FLOAT32[4, 5]",
                () -> MatrixProduct.of(NO, YES, PLAN).product(a, b, d, Output.OVERWRITE, open.stream()));
        refused(
                "bias: expected FLOAT32[5], got FLOAT32[3]",
                () -> MatrixProduct.of(NO, NO, PLAN).productBias(a, b, of(DType.FLOAT32, 3), d, open.stream()));
        refused(
                "a: expected K of at least 1, for a product with a bias, got FLOAT32[3, 0]",
                () -> MatrixProduct.of(NO, NO, PLAN)
                        .productBias(
                                of(DType.FLOAT32, 3, 0),
                                of(DType.FLOAT32, 0, 5),
                                of(DType.FLOAT32, 5),
                                d,
                                open.stream()));
        refused(
                "d: expected at least one column, for the kernel that sums dbias makes d, got FLOAT32[4, 0]",
                () -> MatrixProduct.of(YES, NO, PLAN)
                        .productBiasGradient(
                                a,
                                of(DType.FLOAT32, 3, 0),
                                of(DType.FLOAT32, 4),
                                of(DType.FLOAT32, 4, 0),
                                open.stream()));
    }

    @Test
    void geluInSixteenBitsAlone() {
        Tensor a = of(DType.FLOAT32, 3, 4);
        Tensor b = of(DType.FLOAT32, 4, 8);
        Tensor d = of(DType.FLOAT32, 3, 8);
        String text =
                "a: expected FLOAT16 or BFLOAT16, for which cuBLAS has products with GELU, got FLOAT32[3, 4]; call the"
                        + " product without GELU, then Activation.GELU";
        Tensor preGelu = of(DType.FLOAT32, 3, 8);
        refused(text, () -> MatrixProduct.of(NO, NO, PLAN).productGelu(a, b, preGelu, d, open.stream()));
        refused(text, () -> MatrixProduct.of(NO, NO, PLAN).productGeluGradient(a, b, preGelu, d, open.stream()));
        Tensor bias = of(DType.FLOAT32, 8);
        refused(text, () -> MatrixProduct.of(NO, NO, PLAN).productBiasGelu(a, b, bias, preGelu, d, open.stream()));
    }

    @Test
    void sharedMemory() {
        Tensor a = of(DType.BFLOAT16, 8, 8);
        Tensor b = of(DType.BFLOAT16, 8, 8);
        refused(
                "d: expected memory of its own, got some of a's; it is written to while that is read or written",
                () -> MatrixProduct.of(NO, NO, PLAN).product(a, b, a, Output.OVERWRITE, open.stream()));
    }

    /** What was refused before leaves nothing behind that a later product reads. */
    @Test
    void worksAfterARefusal() {
        Tensor a = open.tensor(DType.FLOAT32, open.normal(DType.FLOAT32, 3, 4, 1));
        Tensor b = open.tensor(DType.FLOAT32, open.normal(DType.FLOAT32, 4, 5, 1));
        Tensor wanted = of(DType.FLOAT32, 3, 5);
        Tensor d = of(DType.FLOAT32, 3, 5);
        MatrixProduct.of(NO, NO, PLAN).product(a, b, wanted, Output.OVERWRITE, open.stream());
        refused(
                "bias: expected FLOAT32[5], got FLOAT32[3]",
                () -> MatrixProduct.of(NO, NO, PLAN).productBias(a, b, of(DType.FLOAT32, 3), d, open.stream()));
        MatrixProduct.of(NO, NO, PLAN).product(a, b, d, Output.OVERWRITE, open.stream());
        assertArrayEquals(open.read(wanted), open.read(d));
    }
}
