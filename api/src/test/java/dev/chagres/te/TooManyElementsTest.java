package dev.chagres.te;

import static dev.chagres.conformance.Thrown.assertThrown;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Tensor;
import dev.chagres.conformance.OpenDevice;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** Functions of TE whose kernels number elements by 32 bits refuse more than these count; nobody touches the memory. */
@Tag("L0")
class TooManyElementsTest {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    @Test
    void areRefused() {
        Tensor many = open.scope().tensor(DType.BFLOAT16, 1, 2, 32_768, 32_768);
        Tensor scores = open.scope().view(many, 0, 1, 8, 16_384, 16_384);
        Tensor matrix = open.scope().view(many, 0, 65_536, 32_768);
        String text = ": expected at most 2147483647 elements, which TE counts in 32 bits, got BFLOAT16";
        assertThrown(
                IllegalArgumentException.class,
                "input" + text + "[1, 8, 16384, 16384]",
                () -> Softmax.ALIGNED_CAUSAL_MASKED.forward(scores, null, scores, 1, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "incomingGrads" + text + "[1, 8, 16384, 16384]",
                () -> Softmax.ALIGNED_CAUSAL_MASKED.backward(
                        scores, open.scope().like(scores), scores, 1, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "x" + text + "[65536, 32768]",
                () -> new Normalization(1e-5f, Normalization.Gamma.PLAIN)
                        .gamma(open.scope().tensor(DType.BFLOAT16, 32_768))
                        .rmsnormFwd(
                                matrix,
                                open.scope().like(matrix),
                                open.scope().tensor(DType.FLOAT32, 65_536),
                                open.stream()));
        QuantizedTensor quantized = open.scope().quantized(Scaling.TENSOR, DType.FLOAT8_E4M3, 65_536, 32_768);
        assertThrown(
                IllegalArgumentException.class,
                "pair 0, input" + text + "[65536, 32768]",
                () -> Transpose.multiCastTranspose(
                        new Tensor[] {matrix}, new QuantizedTensor[] {quantized}, open.stream()));
        Tensor padded = open.scope().view(many, 0, 2, 32_768, 1, 32_768);
        Tensor packed = open.scope().view(many, 0, 8, 1, 32_768);
        assertThrown(
                IllegalArgumentException.class,
                "bshd" + text + "[2, 32768, 1, 32768]",
                () -> ThdConversion.convertBshdToThd(padded, open.ints(0, 4, 8), packed, open.stream()));
    }
}
