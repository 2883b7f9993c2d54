package dev.chagres.cudnn;

import static dev.chagres.conformance.Thrown.assertThrown;

import dev.chagres.DType;
import dev.chagres.cudnn.AttentionBuilder.Diagonal;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

/** What attention as a graph refuses, and with which words. */
@Tag("L0")
class AttentionMisuseTest {
    private final GraphBuilder builder = OperationGraph.builder("g");
    private final GraphTensor q = builder.tensor("q", DType.BFLOAT16, 2, 4, 8, 16);
    private final GraphTensor kT = builder.tensor("kT", DType.BFLOAT16, 2, 4, 16, 12);
    private final GraphTensor k = builder.tensor("k", DType.BFLOAT16, 2, 4, 12, 16);
    private final GraphTensor wrong = builder.tensor("wrong", DType.FLOAT32, 1, 3, 1, 1);

    private static void refused(String text, Executable call) {
        assertThrown(IllegalArgumentException.class, text, call);
    }

    @Test
    void shapes() {
        refused(
                "attention \"a\", q: expected [B, H, Sq, D], got m FLOAT[2, 3]",
                () -> builder.attention("a", builder.tensor("m", DType.FLOAT32, 2, 3), kT));
        refused(
                "attention \"a\", kT: expected [B, H, D, Skv] with B, H and D of q BFLOAT16[2, 4, 8, 16],"
                        + " got k BFLOAT16[2, 4, 12, 16]",
                () -> builder.attention("a", q, k));
        AttentionBuilder attention = builder.attention("a", q, kT);
        refused("attention \"a\", v: expected [2, 4, 12, 16], got q BFLOAT16[2, 4, 8, 16]", () -> attention.forward(q));
        refused(
                "attention \"a\", bias: expected sizes of [B, H, Sq, Skv] = [2, 4, 8, 12] or 1, got wrong FLOAT[1, 3, 1, 1]",
                () -> attention.bias(wrong));
        refused(
                "attention \"a\", slopes: expected [1, 4, 1, 1], got wrong FLOAT[1, 3, 1, 1]",
                () -> attention.slopes(wrong));
        refused(
                "attention \"a\", sink: expected [1, 4, 1, 1], got wrong FLOAT[1, 3, 1, 1]",
                () -> attention.sink(wrong));
        refused(
                "attention \"a\", queries: expected INT32[2, 1, 1, 1], got wrong FLOAT[1, 3, 1, 1]",
                () -> attention.lengths(wrong, wrong));
        refused(
                "attention \"a\", vT: expected [2, 4, 12, 12], got k BFLOAT16[2, 4, 12, 16]",
                () -> attention.backward(q, k, q, wrong));
    }

    @Test
    void numbers() {
        AttentionBuilder attention = builder.attention("a", q, kT);
        refused("attention \"a\", scale: expected a finite number, got NaN", () -> attention.scale(Float.NaN));
        refused(
                "attention \"a\", keysBefore: expected 0 to 1073741824 or Long.MAX_VALUE, got -1",
                () -> attention.window(-1, 0, Diagonal.TOP_LEFT));
        refused(
                "attention \"a\", probability: expected 0 to below 1, got 1.0",
                () -> attention.dropout(1, wrong, wrong));
        refused(
                "attention \"a\", seed: expected [1, 1, 1, 1], got wrong FLOAT[1, 3, 1, 1]",
                () -> attention.dropout(0.5f, wrong, wrong));
    }

    @Test
    void oneOperation() {
        SdpaConfig config = SdpaConfig.of(1);
        refused(
                "sdpa \"a\", k: expected [B, Hk, Skv, D] for q BFLOAT16[2, 4, 8, 16], where Hk divides H,"
                        + " got kT BFLOAT16[2, 4, 16, 12]",
                () -> builder.sdpa("a", q, kT, k, config));
        refused(
                "sdpa \"a\", v: expected [B, Hv, Skv, Dv] for k BFLOAT16[2, 4, 12, 16], where Hv divides H,"
                        + " got q BFLOAT16[2, 4, 8, 16]",
                () -> builder.sdpa("a", q, k, q, config));
        refused("scale: expected a finite number, got Infinity", () -> SdpaConfig.of(Float.POSITIVE_INFINITY));
        refused(
                "queryLengths, keyLengths: expected both or none, got wrong FLOAT[1, 3, 1, 1] and null",
                () -> new SdpaConfig(1, wrong, null));
        refused(
                "sdpaBackward \"a\", stats: expected what the forward pass gave, got null",
                () -> builder.sdpaBackward("a", q, q, k, k, new SdpaForward(q, null, null), config));
    }
}
