package dev.chagres.ops;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerances;
import dev.chagres.te.Output;
import java.util.Arrays;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** {@code AttentionMerge} against double precision: parts merged one after another are their weighted mean. */
@Tag("L0")
@Tag("L1")
class AttentionMergeConformance {
    private static final int PARTS = 3;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    @ParameterizedTest
    @CsvSource({
        "FLOAT32, 1, 1, 8",
        "FLOAT32, 33, 3, 40",
        "BFLOAT16, 7, 2, 64",
        "FLOAT16, 65, 1, 128",
        "BFLOAT16, 5, 3, 5"
    })
    void partsAreWeighted(DType dtype, int tokens, int heads, int columns) {
        int rows = tokens * heads;
        double[] sums = new double[rows];
        double[] values = new double[rows * columns];
        Tensor merged = open.unwritten(DType.FLOAT32, tokens, heads, columns);
        Tensor mergedNumbers = open.unwritten(DType.FLOAT32, tokens, heads, 1);
        for (int part = 0; part < PARTS; part++) {
            double[] output = open.normal(dtype, rows * columns, 1);
            double[] numbers = open.normal(DType.FLOAT32, rows, 3);
            for (int row = part; row < rows; row += PARTS + 1) {
                numbers[row] = Double.NEGATIVE_INFINITY; // sees none of these keys
            }
            for (int i = 0; i < values.length; i++) {
                values[i] += Math.exp(numbers[i / columns]) * output[i];
            }
            for (int row = 0; row < rows; row++) {
                sums[row] += Math.exp(numbers[row]);
            }
            AttentionMerge.attentionMerge(
                    open.tensor(dtype, output, tokens, heads, columns),
                    open.tensor(DType.FLOAT32, numbers, tokens, heads, 1),
                    merged,
                    mergedNumbers,
                    part == 0 ? Output.OVERWRITE : Output.ADD,
                    open.stream());
        }
        for (int i = 0; i < values.length; i++) {
            values[i] /= sums[i / columns];
        }
        open.assertClose("merged", values, merged, Tolerances.rounded(DType.FLOAT32));
        double[] logs = Arrays.stream(sums).map(Math::log).toArray();
        open.assertClose("log-sum-exp", logs, open.read(mergedNumbers), 4, Tolerances.rounded(DType.FLOAT32));
    }

    @Test
    void withoutKeysOrTokens() {
        Tensor partial = open.tensor(DType.FLOAT32, new double[] {Double.NaN, 1}, 1, 1, 2);
        Tensor none = open.tensor(DType.FLOAT32, new double[] {Double.NEGATIVE_INFINITY}, 1, 1, 1);
        Tensor merged = open.unwritten(DType.FLOAT32, 1, 1, 2);
        Tensor numbers = open.unwritten(DType.FLOAT32, 1, 1, 1);
        AttentionMerge.attentionMerge(partial, none, merged, numbers, Output.OVERWRITE, open.stream());
        assertArrayEquals(new float[2], open.read(merged));
        assertEquals(Float.NEGATIVE_INFINITY, open.read(numbers)[0]);
        AttentionMerge.attentionMerge(
                open.scope().tensor(DType.BFLOAT16, 0, 2, 8),
                open.scope().tensor(DType.FLOAT32, 0, 2, 1),
                open.scope().tensor(DType.FLOAT32, 0, 2, 8),
                open.scope().tensor(DType.FLOAT32, 0, 2, 1),
                Output.ADD,
                open.stream());
        open.stream().synchronize();
    }

    @Test
    void refusals() {
        Tensor partial = open.unwritten(DType.BFLOAT16, 3, 2, 8);
        Tensor numbers = open.unwritten(DType.FLOAT32, 3, 2, 1);
        Tensor merged = open.unwritten(DType.FLOAT32, 3, 2, 8);
        Tensor others = open.unwritten(DType.FLOAT32, 3, 2, 1);
        Tensor matrix = open.unwritten(DType.FLOAT32, 3, 8);
        assertThrown(
                IllegalArgumentException.class,
                "partial: expected [t, h, d], d at least 1, got FLOAT32[3, 8]",
                () -> AttentionMerge.attentionMerge(matrix, numbers, merged, others, Output.ADD, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "logSumExp: expected FLOAT32 [3, 2, 1], got FLOAT32[3, 8]",
                () -> AttentionMerge.attentionMerge(partial, matrix, merged, others, Output.ADD, open.stream()));
        Allocation.assertNone(
                "attentionMerge",
                () -> AttentionMerge.attentionMerge(partial, numbers, merged, others, Output.ADD, open.stream()));
    }
}
