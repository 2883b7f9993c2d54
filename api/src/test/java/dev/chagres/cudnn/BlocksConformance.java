package dev.chagres.cudnn;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.bindings.Provider;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Thrown;
import dev.chagres.conformance.Tolerances;
import java.util.Arrays;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Blocks with scales, pages of tokens, products of experts and of parts of matrices, rotary embedding: against double precision. */
@Tag("L0")
@Tag("L1")
class BlocksConformance {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    @Test
    void blocksAreScaled() {
        GraphWitness graph = new GraphWitness(open, "dequantize");
        GraphTensor x = graph.normal("x", DType.FLOAT16, 2, 3, 64);
        GraphTensor scale = graph.normal("scale", DType.FLOAT32, 2, 3, 2);
        GraphTensor y = graph.builder.blockScales().dequantize("y", x, scale, 1, 32);
        double[] expected = graph.of(x).clone();
        for (int i = 0; i < expected.length; i++) {
            expected[i] *= graph.of(scale)[i / 32];
        }
        graph.builder.output(graph.put(y, expected));
        graph.check(Tolerances.rounded(DType.FLOAT32));
    }

    /** What is quantized and scaled again is near what it was: an E4M3 has 3 bits behind the first. */
    @ParameterizedTest
    @CsvSource({"FP8_E8M0, FP8_E4M3, 0.0625", "FLOAT, FP8_E4M3, 0.0625", "FP8_E8M0, FP8_E5M2, 0.125"})
    void quantizedAndBack(DataType scaleType, DataType type, double share) {
        GraphWitness graph = new GraphWitness(open, "quantize " + scaleType);
        double[] values = open.normal(DType.FLOAT32, 4 * 96, 1);
        values[0] = 0;
        GraphTensor x = graph.input("x", DType.FLOAT32, values, 1, 4, 96);
        BlockScales blocks = graph.builder.blockScales();
        BlockScales.Quantized small = blocks.quantize("small", x, 2, 32, type, scaleType);
        graph.builder.output(small.scale());
        GraphTensor back = graph.builder.output(blocks.dequantize("back", small.y(), small.scale(), 1, 32));
        if (!graph.check(Tolerances.rounded(DType.FLOAT32))) {
            assertEquals(Provider.CUDA, Provider.current());
            return;
        }
        float[] got = graph.read(back);
        for (int block = 0; block < values.length / 32; block++) {
            double most = Arrays.stream(values, 32 * block, 32 * block + 32)
                    .map(Math::abs)
                    .max()
                    .orElse(0);
            if (scaleType == DataType.FP8_E8M0) {
                int largest = type == DataType.FP8_E4M3 ? 448 : 57344;
                int exponent = (int) Math.ceil(Math.log(most / largest) / Math.log(2)) + 127;
                assertEquals(exponent, (int) graph.read(small.scale())[block]);
            }
            for (int i = 32 * block; i < 32 * block + 32; i++) {
                assertEquals(values[i], got[i], share * Math.abs(values[i]) + most / 448 / 128, "element " + i);
            }
        }
    }

    @ParameterizedTest
    @CsvSource({"false", "true"})
    void tokensInPages(boolean keys) {
        GraphWitness graph = new GraphWitness(open, "pages");
        GraphTensor container = graph.normal("container", DType.FLOAT16, 5, 2, 4, 8);
        GraphTensor pages = graph.input(graph.builder.tensor("pages", DType.INT32, 2, 1, 3, 1), 4, 0, 2, 1, 3, 0);
        GraphTensor lengths = graph.input(graph.builder.tensor("lengths", DType.INT32, 2, 1, 1, 1), 10, 6);
        GraphTensor y = keys
                ? graph.builder.pagedKeys("loaded", container, pages, lengths, 10)
                : graph.builder.pagedValues("loaded", container, pages, lengths, 10);
        int[][] blocks = {{4, 0, 2}, {1, 3, 0}};
        double[] expected = new double[2 * 2 * 10 * 8];
        for (int i = 0; i < expected.length; i++) {
            int b = i / 160;
            int h = i / 80 % 2;
            int s = keys ? i % 10 : i / 8 % 10;
            int d = keys ? i / 10 % 8 : i % 8;
            expected[i] = s < new int[] {10, 6}[b]
                    ? graph.of(container)[((blocks[b][s / 4] * 2 + h) * 4 + s % 4) * 8 + d]
                    : 0;
        }
        graph.builder.output(graph.put(y, expected));
        graph.check(Tolerances.rounded(DType.FLOAT16));
    }

    @ParameterizedTest
    @CsvSource({"false", "true"})
    void productsOfExperts(boolean gathered) {
        GraphWitness graph = new GraphWitness(open, "experts");
        GraphTensor tokens = graph.normal("tokens", DType.BFLOAT16, 1, 16, 32);
        GraphTensor weights = graph.normal("weights", DType.BFLOAT16, 3, 32, 8);
        GraphTensor first = graph.input(graph.builder.tensor("first", DType.INT32, 3, 1, 1), 0, 5, 5);
        double[] index = new double[gathered ? 12 : 16];
        Arrays.setAll(index, i -> gathered ? 7 * i % 16 : i);
        GraphTensor y = gathered
                ? graph.builder.groupedMatmul(
                        "y",
                        tokens,
                        weights,
                        first,
                        graph.input(graph.builder.tensor("i", DType.INT32, 1, 12, 1), index))
                : graph.builder.groupedMatmul("y", tokens, weights, first);
        double[] expected = new double[index.length * 8];
        for (int i = 0; i < expected.length; i++) {
            int row = i / 8;
            for (int k = 0; k < 32; k++) {
                expected[i] += graph.of(tokens)[(int) (index[row] * 32 + k)]
                        * graph.of(weights)[((row < 5 ? 0 : 2) * 32 + k) * 8 + i % 8];
            }
        }
        graph.builder.output(graph.put(y, expected));
        graph.check(Tolerances.product(DType.FLOAT32));
    }

    @Test
    void partsOfMatrices() {
        GraphWitness graph = new GraphWitness(open, "limits");
        GraphTensor a = graph.normal("a", DType.FLOAT16, 2, 1, 16, 16);
        GraphTensor b = graph.normal("b", DType.FLOAT16, 2, 1, 16, 16);
        GraphTensor rows = graph.input(graph.builder.tensor("rows", DType.INT32, 2, 1, 1, 1), 16, 3);
        GraphTensor depth = graph.input(graph.builder.tensor("depth", DType.INT32, 2, 1, 1, 1), 9, 16);
        GraphTensor c = graph.builder.matmul("c", a, b, new MatmulLimits(rows, null, depth));
        double[] expected = new double[2 * 256];
        for (int i = 0; i < expected.length; i++) {
            int matrix = i / 256 * 256;
            for (int k = 0; k < (i < 256 ? 9 : 16) && (i < 256 || i % 256 / 16 < 3); k++) {
                expected[i] += graph.of(a)[matrix + i % 256 / 16 * 16 + k] * graph.of(b)[matrix + k * 16 + i % 16];
            }
        }
        graph.builder.output(graph.put(c, expected));
        graph.check(Tolerances.product(DType.FLOAT32));
    }

    @Test
    void rotaryEmbedding() {
        GraphWitness graph = new GraphWitness(open, "rotary");
        GraphTensor x1 = graph.normal("x1", DType.FLOAT32, 2, 3, 8, 16);
        GraphTensor x2 = graph.normal("x2", DType.FLOAT32, 2, 3, 8, 16);
        GraphTensor cos = graph.normal("cos", DType.FLOAT32, 1, 1, 8, 16);
        GraphTensor sin = graph.normal("sin", DType.FLOAT32, 1, 1, 8, 16);
        GraphTensor y = graph.builder.rotary("y", x1, x2, cos, sin);
        double[] expected = new double[2 * 3 * 8 * 32];
        for (int i = 0; i < expected.length; i++) {
            int half = i / 32 * 16 + i % 16;
            double c = graph.of(cos)[half % 128];
            double s = graph.of(sin)[half % 128];
            expected[i] = i % 32 < 16
                    ? graph.of(x1)[half] * c - graph.of(x2)[half] * s
                    : graph.of(x2)[half] * c + graph.of(x1)[half] * s;
        }
        graph.builder.output(graph.put(y, expected));
        graph.check(1, Tolerances.rounded(DType.FLOAT32));
    }

    /** Scales of blocks need a Blackwell GPU: the refusal names it. */
    @Test
    void namesTheGpuThatItNeeds() {
        GraphBuilder builder = OperationGraph.builder("blocks");
        GraphTensor x = builder.tensor("x", DType.FLOAT8_E4M3, 1, 32, 64);
        GraphTensor scale = builder.tensor("scale", DataType.FP8_E8M0, 1, 32, 2);
        builder.output(builder.blockScales().dequantize("y", x, scale, 1, 32));
        OperationGraph graph = builder.build();
        assertEquals(
                "[operation \"y\": cuDNN 9.19 computes blockScaleDequantize from compute capability 10.0 on, got 9.0]",
                graph.gpuRefusals(90).toString());
        assertEquals("[]", graph.gpuRefusals(100).toString());
        if (Provider.current() == Provider.CUDA && open.device().computeCapability() < 100) {
            assertTrue(assertThrows(UnsupportedGraphException.class, () -> graph.plan(open.device()))
                    .getMessage()
                    .contains("from compute capability 10.0 on"));
        }
    }

    @Test
    void misuse() {
        GraphBuilder builder = OperationGraph.builder("g");
        BlockScales blocks = builder.blockScales();
        GraphTensor x = builder.tensor("x", DType.FLOAT32, 1, 4, 64);
        GraphTensor scale = builder.tensor("scale", DType.FLOAT32, 1, 4, 3);
        GraphTensor count = builder.tensor("count", DType.INT32, 2, 1, 1);
        refused(
                "blockScaleDequantize \"y\", scale: expected [1, 4, 2], got scale FLOAT[1, 4, 3]",
                () -> blocks.dequantize("y", x, scale, 1, 32));
        refused(
                "blockScaleDequantize \"y\", blocks: expected 2 to 3 sizes of at least 1, got [32]",
                () -> blocks.dequantize("y", x, scale, 32));
        refused(
                "blockScaleQuantize \"y\", axis: expected a dimension of x FLOAT[1, 4, 64], from 0, got 3",
                () -> blocks.quantize("y", x, 3, 32, DataType.FP8_E4M3, DataType.FLOAT));
        refused(
                "blockScaleQuantize \"y\", type: expected FP8_E4M3 or FP8_E5M2, got HALF",
                () -> blocks.quantize("y", x, 2, 32, DataType.HALF, DataType.FLOAT));
        refused(
                "blockScaleQuantize \"y\", scaleType: expected FP8_E8M0, FP8_E4M3 or FLOAT, got HALF",
                () -> blocks.quantize("y", x, 2, 32, DataType.FP8_E4M3, DataType.HALF));
        refused(
                "blockScaleQuantize \"y\", block: expected at least 2, of an axis of at least 2, got 1",
                () -> blocks.quantize("y", x, 2, 1, DataType.FP8_E4M3, DataType.FLOAT));
        refused(
                "pagedCacheLoad \"y\", container: expected blocks of tokens [N, H, T, D], got x FLOAT[1, 4, 64]",
                () -> builder.pagedKeys("y", x, count, count, 8));
        refused(
                "groupedMatmul \"y\", weights: expected [E, 64, N], got x FLOAT[1, 4, 64]",
                () -> builder.groupedMatmul("y", x, x, count));
        refused(
                "matmul \"y\", rows: expected INT32[…, 1, 1] with the batch of y FLOAT[1, 4, 4] or 1, got count INT32[2, 1, 1]",
                () -> builder.matmul("y", x, builder.transpose("t", x, 0, 2, 1), new MatmulLimits(count, null, null)));
        refused(
                "rotary \"r\", x2: expected [1, 4, 64], got scale FLOAT[1, 4, 3]",
                () -> builder.rotary("r", x, scale, x, x));
        refused("scalar \"n\", value: expected an INT32, got 0.5", () -> builder.scalar("n", DataType.INT32, 3, 0.5));
        refused(
                "scalar \"n\", type: expected FLOAT or INT32, got HALF",
                () -> builder.scalar("n", DataType.HALF, 3, 0.5));
    }

    private static void refused(String text, org.junit.jupiter.api.function.Executable call) {
        Thrown.assertThrown(IllegalArgumentException.class, text, call);
    }
}
