package dev.chagres.ops;

import static dev.chagres.conformance.Thrown.assertThrown;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.ops.AttentionScores.Alignment;
import dev.chagres.te.AttentionProblem;
import dev.chagres.te.AttentionTensors;
import dev.chagres.te.MaskType;
import dev.chagres.te.QkvLayout;
import dev.chagres.te.SoftmaxType;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** The texts of what attention over changed scores refuses. */
@Tag("L0")
@Tag("L1")
class AttentionScoresMisuseTest {
    private static final AttentionProblem PACKED =
            AttentionProblem.of(QkvLayout.THD_THD_THD, 0.25f).withMask(MaskType.PADDING);

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static Tensor of(DType dtype, long... sizes) {
        return open.unwritten(dtype, sizes);
    }

    private static Tensor bytes(long... sizes) {
        return open.scope().tensor(DType.BYTE, Shape.of(sizes));
    }

    /** Eight packed tokens of two sequences, two heads of 16. */
    private static AttentionTensors good() {
        return new AttentionTensors()
                .query(of(DType.FLOAT32, 8, 2, 16))
                .key(of(DType.FLOAT32, 8, 2, 16))
                .value(of(DType.FLOAT32, 8, 2, 16))
                .output(of(DType.FLOAT32, 8, 2, 16))
                .statistics(of(DType.FLOAT32, 8, 2, 1))
                .queryLengths(open.ints(0, 3, 8), 5)
                .keyLengths(open.ints(0, 3, 8), 5)
                .outputGradient(of(DType.FLOAT32, 8, 2, 16))
                .queryGradient(of(DType.FLOAT32, 8, 2, 16))
                .keyGradient(of(DType.FLOAT32, 8, 2, 16))
                .valueGradient(of(DType.FLOAT32, 8, 2, 16));
    }

    private static void refused(String text, AttentionScores scores) {
        AttentionTensors tensors = good();
        assertThrown(
                IllegalArgumentException.class, text, () -> Attention.forward(PACKED, tensors, scores, open.stream()));
    }

    private static void refusedBackward(String text, AttentionTensors tensors, AttentionScores scores) {
        Tensor delta = open.scope().like(tensors.statistics());
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> Attention.backward(PACKED, tensors, scores, delta, open.stream()));
    }

    private static AttentionScores scores() {
        return new AttentionScores();
    }

    @Test
    void numbers() {
        refused("softcap: expected 0, which is none, or a finite number above it, got -1.0", scores().softcap(-1));
        refused(
                "softcap: expected 0, which is none, or a finite number above it, got NaN",
                scores().softcap(Float.NaN));
        refused(
                "slopes: expected FLOAT32[2] or FLOAT32[2, 2], got FLOAT32[3]",
                scores().alibi(of(DType.FLOAT32, 3), Alignment.TOP_LEFT));
        refused(
                "slopes: expected FLOAT32[2] or FLOAT32[2, 2], got BFLOAT16[2]",
                scores().alibi(of(DType.BFLOAT16, 2), Alignment.TOP_LEFT));
        refused(
                "bias: expected FLOAT32[1 or 2, 1 or 2, 5 or more, 5 or more], got BFLOAT16[1, 2, 5, 5]",
                scores().bias(of(DType.BFLOAT16, 1, 2, 5, 5)));
        refused(
                "bias: expected FLOAT32[1 or 2, 1 or 2, 5 or more, 5 or more], got FLOAT32[1, 2, 5, 4]",
                scores().bias(of(DType.FLOAT32, 1, 2, 5, 4)));
        refused(
                "mask: expected BYTE[1 or 2, 1 or 2, 5 or more, 5 or more], got BYTE[3, 1, 5, 5]",
                scores().mask(bytes(3, 1, 5, 5)));
        refused(
                "sinks: expected FLOAT32[2], got FLOAT32[3]",
                scores().softmax(SoftmaxType.LEARNABLE, of(DType.FLOAT32, 3)));
    }

    @Test
    void sinksThatWereNotGiven() {
        AttentionTensors tensors = good();
        assertThrown(
                IllegalStateException.class,
                "sinks: expected FLOAT32[2], for the softmax is LEARNABLE, got none; give them with softmax(LEARNABLE,"
                        + " sinks)",
                () -> Attention.forward(PACKED, tensors, scores().softmax(SoftmaxType.LEARNABLE, null), open.stream()));
    }

    @Test
    void gradients() {
        Tensor bias = of(DType.FLOAT32, 1, 1, 5, 5);
        refusedBackward(
                "biasGradient: expected FLOAT32[1, 1, 5, 5], got FLOAT32[1, 1, 5, 6]",
                good(),
                scores().bias(bias).biasGradient(of(DType.FLOAT32, 1, 1, 5, 6)));
        refusedBackward(
                "biasGradient: expected none, for there is no bias, got FLOAT32[1, 1, 5, 5]",
                good(),
                scores().biasGradient(bias));
        refusedBackward(
                "sinksGradient: expected none, for the softmax is VANILLA, got FLOAT32[2]",
                good(),
                scores().sinksGradient(of(DType.FLOAT32, 2)));
        refusedBackward(
                "biasGradient: expected memory of its own, got some of bias's; it is written to while that is read or"
                        + " written",
                good(),
                scores().bias(bias).biasGradient(bias));
    }

    @Test
    void memoryThatIsWritten() {
        AttentionTensors tensors = good();
        Tensor bias = open.scope().view(tensors.output(), 0, 1, 1, 5, 5);
        assertThrown(
                IllegalArgumentException.class,
                "bias: expected memory of its own, got some of output's, which is written to while it is read",
                () -> Attention.forward(PACKED, tensors, scores().bias(bias), open.stream()));
    }

    @Test
    void starts() {
        AttentionTensors tensors = good().starts(open.ints(0, 4), null);
        assertThrown(
                IllegalArgumentException.class,
                "queryStarts: expected INT32[3], got INT32[2]",
                () -> Attention.forward(PACKED, tensors, open.stream()));
        AttentionProblem dense = AttentionProblem.of(QkvLayout.BSHD_BSHD_BSHD, 1);
        AttentionTensors padded = new AttentionTensors()
                .query(of(DType.FLOAT32, 1, 2, 1, 16))
                .key(of(DType.FLOAT32, 1, 2, 1, 16))
                .value(of(DType.FLOAT32, 1, 2, 1, 16))
                .queryLengths(open.ints(0, 2), 2)
                .keyLengths(open.ints(0, 2), 2)
                .starts(null, open.ints(0, 2));
        assertThrown(
                IllegalArgumentException.class,
                "keyStarts: expected none, for BSHD_BSHD_BSHD is not packed, got INT32[2]",
                () -> Attention.forward(dense, padded, open.stream()));
    }
}
