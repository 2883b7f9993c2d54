package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.ops.BlockDequantization;
import dev.chagres.ops.QuantizationStatistics;
import dev.chagres.te.AmaxHistories;
import dev.chagres.te.Cast;
import dev.chagres.te.PartialCast;
import dev.chagres.te.QuantizationConfig;
import dev.chagres.te.RecipeUpdates;
import dev.chagres.te.RecipeUpdates.AmaxAlgorithm;
import dev.chagres.te.Transpose;
import java.util.Arrays;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.OperationsPerInvocation;

/** What does it cost to quantize a layer's tokens from BFLOAT16, and to compute the scales? */
@NullUnmarked
public class CastBenchmark extends OperationBenchmark {
    private static final QuantizationConfig CONFIG = QuantizationConfig.standard();
    private static final int STEPS = 1024;
    private static final int SCALES = 100;

    private Tensor x;
    private QuantizedTensor rowwise;
    private QuantizedTensor both;
    private QuantizedTensor blocks;
    private Tensor[] inputs;
    private QuantizedTensor[] outputs;
    private Tensor transposed;
    private Tensor back;
    private Tensor bySequence;
    private Tensor byToken;
    private Tensor dbias;
    private Tensor scales;
    private Tensor statistics;
    private Tensor part;
    private Tensor partBytes;
    private Tensor partRoom;
    private Tensor partAmax;
    private Tensor partScale;
    private AmaxHistories histories;

    /** For JMH. */
    public CastBenchmark() {}

    @Override
    void prepare() {
        long tokens = shape.tokens();
        x = normal(DType.BFLOAT16, tokens, shape.hidden());
        rowwise = oneScale().allocateRowwise(scope);
        both = oneScale().allocateRowwise(scope).allocateColumnwise(scope);
        inputs = new Tensor[] {x, x, x, x};
        outputs = new QuantizedTensor[inputs.length];
        Arrays.setAll(outputs, i -> oneScale().allocateRowwise(scope).allocateColumnwise(scope));
        blocks = scope.quantized(Scaling.BLOCK_1D, DType.FLOAT8_E4M3, tokens, shape.hidden())
                .allocateRowwise(scope)
                .allocateColumnwise(scope);
        bySequence = scope.view(x, 0, 16, tokens / 16, shape.hidden());
        byToken = scope.tensor(DType.BFLOAT16, Shape.of(tokens / 16, 16, shape.hidden()));
        transposed = empty(DType.FLOAT8_E4M3, shape.hidden(), tokens);
        back = empty(DType.BFLOAT16, tokens, shape.hidden());
        dbias = empty(DType.BFLOAT16, shape.hidden());
        scales = zeros(DType.FLOAT32, SCALES);
        statistics = empty(DType.FLOAT32, QuantizationStatistics.COUNT);
        // The second half of the matrix, as of two ranks.
        long half = tokens / 2 * shape.hidden();
        part = scope.view(x, half, half);
        partRoom = empty(DType.FLOAT8_E4M3, tokens * shape.hidden());
        partBytes = scope.view(partRoom, half, half);
        long down = (tokens + Scaling.BLOCK - 1) / Scaling.BLOCK;
        long across = (shape.hidden() + Scaling.BLOCK - 1) / Scaling.BLOCK;
        partAmax = zeros(DType.FLOAT32, down, across);
        partScale = filled(DType.FLOAT32, 64, down, across);
        Tensor history = filled(DType.FLOAT32, 2, STEPS, SCALES);
        histories = AmaxHistories.of(new Tensor[] {history}, new Tensor[] {scales}, stream);
        check();
    }

    private QuantizedTensor oneScale() {
        Tensor scale = empty(DType.FLOAT32, 1);
        scale.set(stream, 64f);
        return scope.quantized(Scaling.TENSOR, DType.FLOAT8_E4M3, shape.tokens(), shape.hidden())
                .scale(scale)
                .amax(zeros(DType.FLOAT32, 1));
    }

    private void check() {
        float[] values = read(x);
        double largest = 0;
        for (float value : values) {
            largest = Math.max(largest, Math.abs(value));
        }
        computeAmax();
        near("computeAmax", largest, at(rowwise.amax(), 0), 0);
        computeScaleFromAmax();
        near("computeScaleFromAmax", 448 / largest, at(rowwise.scale(), 0), 1e-6);
        quantizeRowwise();
        dequantize();
        near("dequantize", values[0], at(back, 0), 0.07);
        quantizationStatistics();
        near("quantizationStatistics", largest, at(statistics, 0), 0);
        quantizeDbias();
        near("quantizeDbias", columnSum(x), at(dbias, 0), 0.02);
        quantize();
        multiCastTranspose();
        near(
                "multiCastTranspose",
                both.rowwise().toBytes(stream)[1],
                outputs[3].rowwise().toBytes(stream)[1],
                0);
        transpose();
        near("transpose", both.columnwise().toBytes(stream)[1], transposed.toBytes(stream)[1], 0);
        fp8TransposeDbias();
        Cast.dequantize(both, back, stream);
        near("fp8TransposeDbias", columnSum(back), at(dbias, 0), 0.02);
        swapFirstDims();
        int second = Math.toIntExact(shape.hidden());
        int from = Math.toIntExact(shape.tokens() / 16) * second;
        near("swapFirstDims", values[from], at(byToken, second), 0);
        quantizeBlocks();
        double first = 0;
        for (int i = 0; i < Math.min(Scaling.BLOCK, shape.hidden()); i++) {
            first = Math.max(first, Math.abs(values[i]));
        }
        near("quantizeBlocks", first / 448, at(blocks.rowwiseScaleInverse(), 0), 1e-6);
        dequantizeBlocks();
        near("dequantizeBlocks", values[0], at(back, 0), 0.07);
        double lastBlock = 0;
        int columns = Math.toIntExact(shape.hidden());
        int firstRow =
                Math.toIntExact(Math.max(shape.tokens() / 2, (shape.tokens() - 1) / Scaling.BLOCK * Scaling.BLOCK));
        for (int i = firstRow * columns; i < values.length; i++) {
            boolean inLast = i % columns >= (columns - 1) / Scaling.BLOCK * Scaling.BLOCK;
            lastBlock = inLast ? Math.max(lastBlock, Math.abs(values[i])) : lastBlock;
        }
        computePartialAmax();
        float[] magnitudes = read(partAmax);
        near("computePartialAmax", lastBlock, magnitudes[magnitudes.length - 1], 0);
        partialCast();
        int half = Math.toIntExact(part.count());
        near("partialCast", both.rowwise().toBytes(stream)[half], partBytes.toBytes(stream)[0], 0);
        delayedScalingUpdate();
        near("delayedScalingUpdate", 224, at(scales, 0), 1e-6);
    }

    @Override
    public void close() {
        histories.close();
        super.close();
    }

    /** Rowwise data, one scale. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void quantizeRowwise() {
        repeat(() -> Cast.quantize(x, rowwise, stream));
    }

    /** Rowwise and columnwise data, one scale. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void quantize() {
        repeat(() -> Cast.quantize(x, both, stream));
    }

    /** Rowwise and columnwise data of four such matrices. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void multiCastTranspose() {
        repeat(() -> Transpose.multiCastTranspose(inputs, outputs, stream));
    }

    /** Rowwise and columnwise data, a scale for each 128 numbers of a row. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void quantizeBlocks() {
        repeat(() -> Cast.quantize(x, blocks, stream));
    }

    /** The amaxes of the blocks of half a matrix. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void computePartialAmax() {
        repeat(() ->
                PartialCast.computePartialAmax(part, partAmax, shape.tokens(), shape.hidden(), part.count(), stream));
    }

    /** Rowwise data of half a matrix, with block scales. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void partialCast() {
        repeat(() -> PartialCast.partialCast(
                part, partBytes, partRoom, partScale, shape.tokens(), shape.hidden(), part.count(), stream));
    }

    /** Rowwise and columnwise data, and the sum of each column. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void quantizeDbias() {
        repeat(() -> Cast.quantizeDbias(x, both, dbias, stream));
    }

    /** Rowwise data dequantized. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void dequantize() {
        repeat(() -> Cast.dequantize(rowwise, back, stream));
    }

    /** Rowwise data with a scale for each 128 neighbours dequantized. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void dequantizeBlocks() {
        repeat(() -> BlockDequantization.dequantizeBlocks(blocks, back, stream));
    }

    /** Statistics of the quantization error. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void quantizationStatistics() {
        repeat(() -> QuantizationStatistics.quantizationStatistics(x, rowwise, statistics, stream));
    }

    /** Columnwise from rowwise data. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void transpose() {
        repeat(() -> Transpose.transpose(both.rowwise(), transposed, stream));
    }

    /** Columnwise from rowwise data, and the sum of each column. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void fp8TransposeDbias() {
        repeat(() -> Transpose.fp8TransposeDbias(both, dbias, stream));
    }

    /** Tokens of sixteen rows each in the other order. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void swapFirstDims() {
        repeat(() -> Transpose.swapFirstDims(bySequence, byToken, stream));
    }

    /** The amax. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void computeAmax() {
        repeat(() -> RecipeUpdates.computeAmax(x, rowwise, CONFIG, stream));
    }

    /** A scale from it. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void computeScaleFromAmax() {
        repeat(() -> RecipeUpdates.computeScaleFromAmax(rowwise, CONFIG, stream));
    }

    /** 100 scales from histories of 1,024 steps. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void delayedScalingUpdate() {
        repeat(() -> RecipeUpdates.delayedScalingUpdateAfterReduction(
                null, histories, AmaxAlgorithm.MAX, DType.FLOAT8_E4M3, 0, stream));
    }
}
