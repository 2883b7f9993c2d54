package dev.chagres.te;

import static dev.chagres.conformance.Thrown.assertThrown;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.ops.Attention;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** Errors of the bias of fused attention, of the offset of its softmax, and of their gradients. */
@Tag("L0")
@Tag("L1")
class AttentionOffsetMisuseTest {
    private static final AttentionProblem PLAIN = AttentionProblem.of(QkvLayout.BSHD_BSHD_BSHD, 0.25f);
    private static final AttentionProblem BIASED = PLAIN.withBiasType(BiasType.POST_SCALE_BIAS);
    private static final AttentionProblem SUNK = PLAIN.withSoftmaxType(SoftmaxType.LEARNABLE);
    private static final String WRITTEN = "; it is written to while that is read or written";

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static Tensor of(DType dtype, long... sizes) {
        return open.scope().tensor(dtype, Shape.of(sizes));
    }

    private static Tensor heads() {
        return of(DType.BFLOAT16, 2, 4, 2, 16);
    }

    /** Two sequences of four tokens, two heads. */
    private static AttentionTensors good() {
        return new AttentionTensors()
                .query(heads())
                .key(heads())
                .value(heads())
                .output(heads())
                .statistics(of(DType.FLOAT32, 2, 2, 4, 1))
                .queryLengths(open.ints(0, 4, 8), 4)
                .keyLengths(open.ints(0, 4, 8), 4)
                .outputGradient(heads())
                .queryGradient(heads())
                .keyGradient(heads())
                .valueGradient(heads());
    }

    private static Tensor bias() {
        return of(DType.BFLOAT16, 1, 2, 4, 4);
    }

    private static void refused(String message, AttentionProblem problem, AttentionTensors tensors) {
        assertThrown(
                IllegalArgumentException.class, message, () -> FusedAttention.forward(problem, tensors, open.stream()));
    }

    private static void refusedBackward(String message, AttentionProblem problem, AttentionTensors tensors) {
        assertThrown(
                IllegalArgumentException.class,
                message,
                () -> FusedAttention.backward(problem, tensors, open.stream()));
    }

    @Test
    void shapes() {
        String expected = "bias: expected BFLOAT16[1 or 2, 1 or 2, 4, 4], got ";
        refused(expected + "FLOAT32[1, 2, 4, 4]", BIASED, good().bias(of(DType.FLOAT32, 1, 2, 4, 4)));
        refused(expected + "BFLOAT16[3, 2, 4, 4]", BIASED, good().bias(of(DType.BFLOAT16, 3, 2, 4, 4)));
        refused(expected + "BFLOAT16[1, 4, 4, 4]", BIASED, good().bias(of(DType.BFLOAT16, 1, 4, 4, 4)));
        refused(expected + "BFLOAT16[1, 2, 5, 4]", BIASED, good().bias(of(DType.BFLOAT16, 1, 2, 5, 4)));
        refused(expected + "BFLOAT16[2, 4, 4]", BIASED, good().bias(of(DType.BFLOAT16, 2, 4, 4)));
        refused(
                "softmaxOffset: expected FLOAT32[2], got BFLOAT16[2]",
                SUNK,
                good().softmaxOffset(of(DType.BFLOAT16, 2)));
        refusedBackward(
                "biasGradient: expected BFLOAT16[1, 2, 4, 4], got BFLOAT16[2, 2, 4, 4]",
                BIASED,
                good().bias(bias()).biasGradient(of(DType.BFLOAT16, 2, 2, 4, 4)));
        refusedBackward(
                "softmaxOffsetGradient: expected FLOAT32[2], got FLOAT32[3]",
                SUNK,
                good().softmaxOffset(of(DType.FLOAT32, 2)).softmaxOffsetGradient(of(DType.FLOAT32, 3)));
    }

    @Test
    void alignment() {
        String unaligned =
                ": expected memory that begins at a multiple of 16 bytes, as every tensor of a scope does, got a"
                        + " view that does not; copy it into a tensor";
        Tensor wide = of(DType.BFLOAT16, 5, 4, 4);
        refused("bias" + unaligned, BIASED, good().bias(open.scope().view(wide, 3, 1, 2, 4, 4)));
        Tensor offsets = of(DType.FLOAT32, 4);
        refused(
                "softmaxOffset" + unaligned,
                SUNK,
                good().softmaxOffset(open.scope().view(offsets, 1, 2)));
    }

    @Test
    void whatTheProblemDoesNotHave() {
        String plain = ", for the problem has NO_BIAS and a softmax that is VANILLA, got ";
        refused("bias: expected none" + plain + "BFLOAT16[1, 2, 4, 4]", PLAIN, good().bias(bias()));
        refused(
                "softmaxOffset: expected none" + plain + "FLOAT32[2]",
                PLAIN,
                good().softmaxOffset(of(DType.FLOAT32, 2)));
        refusedBackward(
                "biasGradient: expected none" + plain + "BFLOAT16[1, 2, 4, 4]", PLAIN, good().biasGradient(bias()));
        refused(
                "bias: expected none, for the problem has ALIBI and a softmax that is VANILLA, got BFLOAT16[1, 2, 4, 4]",
                PLAIN.withMask(MaskType.CAUSAL).withBiasType(BiasType.ALIBI),
                good().bias(bias()));
    }

    @Test
    void whatWasNotGiven() {
        assertThrown(
                IllegalStateException.class,
                "bias: expected a tensor, for the problem has POST_SCALE_BIAS and a softmax that is VANILLA, got none;"
                        + " call bias(...) before",
                () -> FusedAttention.forward(BIASED, good(), open.stream()));
        assertThrown(
                IllegalStateException.class,
                "softmaxOffset: expected a tensor, for the problem has NO_BIAS and a softmax that is LEARNABLE, got"
                        + " none; call softmaxOffset(...) before",
                () -> FusedAttention.forward(SUNK, good(), open.stream()));
        assertThrown(
                IllegalStateException.class,
                "biasGradient: expected a tensor, for the problem has POST_SCALE_BIAS and a softmax that is VANILLA,"
                        + " got none; call biasGradient(...) before",
                () -> FusedAttention.backward(BIASED, good().bias(bias()), open.stream()));
    }

    @Test
    void sharedMemory() {
        AttentionTensors gradient = good().bias(bias());
        refusedBackward(
                "biasGradient: expected memory of its own, got some of bias's" + WRITTEN,
                BIASED,
                gradient.biasGradient(gradient.bias()));
        AttentionTensors offset = good().softmaxOffset(of(DType.FLOAT32, 2));
        refusedBackward(
                "softmaxOffsetGradient: expected memory of its own, got some of softmaxOffset's" + WRITTEN,
                SUNK,
                offset.softmaxOffsetGradient(offset.softmaxOffset()));
        AttentionTensors output = good();
        refused(
                "bias: expected memory of its own, got some of output's, which is written to while it is read",
                BIASED,
                output.bias(open.scope().view(output.output(), 0, 1, 2, 4, 4)));
    }

    /** Our own kernels are told by AttentionScores. */
    @Test
    void otherKernels() {
        String expected = "problem: expected NO_BIAS and a softmax that is VANILLA, for these kernels change scores as"
                + " AttentionScores say, got ";
        AttentionTensors tensors = good();
        tensors.bias(bias());
        assertThrown(
                IllegalArgumentException.class,
                expected + "POST_SCALE_BIAS and VANILLA",
                () -> Attention.forward(BIASED, tensors, open.stream()));
        AttentionTensors sunk = good();
        sunk.softmaxOffset(of(DType.FLOAT32, 2)).softmaxOffsetGradient(of(DType.FLOAT32, 2));
        assertThrown(
                IllegalArgumentException.class,
                expected + "NO_BIAS and LEARNABLE",
                () -> Attention.backward(SUNK, sunk, of(DType.FLOAT32, 2, 2, 4, 1), open.stream()));
    }
}
