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
                "attention \"a\", kT: expected [B, Hk, D, Skv] with B and D of q BFLOAT16[2, 4, 8, 16], where Hk divides H,"
                        + " got k BFLOAT16[2, 4, 12, 16]",
                () -> builder.attention("a", q, k));
        AttentionBuilder attention = builder.attention("a", q, kT);
        refused(
                "attention \"a\", v: expected [B, Hv, Skv, Dv] with B and Skv of kT BFLOAT16[2, 4, 16, 12], where Hv divides H"
                        + " of q BFLOAT16[2, 4, 8, 16], got q BFLOAT16[2, 4, 8, 16]",
                () -> attention.forward(q));
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
                "attention \"a\", vT: expected [B, Hv, Dv, Skv] with B and Skv of kT BFLOAT16[2, 4, 16, 12], where Hv divides H"
                        + " of q BFLOAT16[2, 4, 8, 16], got k BFLOAT16[2, 4, 12, 16]",
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
    void packed() {
        GraphTensor offsets = builder.tensor("offsets", DType.INT32, 3, 1, 1, 1);
        long[] dims = {2, 4, 8, 16};
        long[] strides = {512, 16, 64, 1};
        refused(
                "packed \"p\", strides: expected those of [B, H, S, D] whose first is at least 512, got [511, 16, 64, 1]",
                () -> builder.packed("p", DType.BFLOAT16, dims, new long[] {511, 16, 64, 1}, offsets, 640));
        refused(
                "packed \"p\", offsets: expected INT32 or INT64[3, 1, 1, 1] in memory, got wrong FLOAT[1, 3, 1, 1]",
                () -> builder.packed("p", DType.BFLOAT16, dims, strides, wrong, 640));
        refused(
                "packed \"p\", elements: expected 1 to 1099511627776, got 0",
                () -> builder.packed("p", DType.BFLOAT16, dims, strides, offsets, 0));
        GraphTensor p = builder.packed("p", DType.BFLOAT16, dims, strides, offsets, 640);
        refused(
                "attention \"a\", lengths: expected those of packed sequences, got null",
                () -> builder.attention("a", p, kT).forward(k));
    }

    @Test
    void float8() {
        GraphTensor q8 = builder.tensor("q8", DType.FLOAT8_E4M3, 1, 4, 16, 24);
        GraphTensor k8 = builder.tensor("k8", DType.FLOAT8_E4M3, 1, 4, 24, 16);
        GraphTensor v8 = builder.tensor("v8", DType.FLOAT8_E5M2, 1, 4, 16, 24);
        refused(
                "attention \"a\", q: expected FP8_E4M3 or FP8_E5M2, got q BFLOAT16[2, 4, 8, 16]",
                () -> builder.attention("a", q, kT).forwardFp8(k, DataType.FP8_E4M3));
        refused(
                "attention \"a\", v: expected FP8_E4M3 as q is, got v8 FP8_E5M2[1, 4, 16, 24]",
                () -> builder.attention("a", q8, k8).forwardFp8(v8, DataType.FP8_E4M3));
        refused(
                "attention \"a\", fp8: expected a scale, masks and lengths alone, got a bias, slopes, a sink, dropout or a"
                        + " change of scores",
                () -> builder.attention("a", q8, k8).scores(x -> x).forwardFp8(v8, DataType.FP8_E4M3));
        assertThrown(
                IllegalStateException.class,
                "attention \"a\": expected a bias before its gradient",
                () -> builder.attention("a", q, kT).biasGradient());
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
        assertThrown(
                NullPointerException.class, "stats: expected a value, got null", () -> new SdpaForward(q, null, null));
    }
}
