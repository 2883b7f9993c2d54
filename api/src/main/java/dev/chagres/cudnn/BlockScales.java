package dev.chagres.cudnn;

import dev.chagres.bindings.cudnn.Cudnn;
import dev.chagres.internal.Checks;
import java.util.Arrays;
import java.util.List;

/**
 * Adds tensors whose blocks have a scale each to a graph.
 *
 * <p>cuDNN 9.19 has engines for them on Blackwell GPUs alone; the reference computes them.
 *
 * <p>Threading: that of the builder.
 *
 * <p>Source: {@code CUDNN_BACKEND_OPERATION_BLOCK_SCALE_QUANTIZE_DESCRIPTOR} and {@code …DEQUANTIZE_DESCRIPTOR} of {@code cudnn_graph.h}.
 */
public final class BlockScales {
    /** Ten times the first compute capability whose GPUs compute them. */
    private static final int BLACKWELL = 100;

    private final GraphBuilder graph;

    BlockScales(GraphBuilder graph) {
        this.graph = graph;
    }

    /**
     * A tensor and its scales; x is y scale.
     *
     * @param y with the sizes of x, of the smaller type
     * @param scale one number a block
     */
    public record Quantized(GraphTensor y, GraphTensor scale) {}

    /**
     * Adds y = x / scale and scale = max |x| / the largest number of {@code type}, over blocks of {@code block} elements along {@code axis}. A
     * scale of {@link DataType#FP8_E8M0} is the next power of two that is not below.
     *
     * @param type {@link DataType#FP8_E4M3} or {@link DataType#FP8_E5M2}
     * @param scaleType {@link DataType#FP8_E8M0}, {@link DataType#FP8_E4M3} or {@link DataType#FLOAT}
     * @throws IllegalArgumentException when the axis is none of x, the block is below 2, or the types are others
     */
    public Quantized quantize(String operation, GraphTensor x, int axis, int block, DataType type, DataType scaleType) {
        String kind = "blockScaleQuantize";
        if (axis < 0 || axis >= graph.own(kind, operation, "x", x).rank()) {
            throw GraphChecks.refusal(kind, operation, "axis", "a dimension of " + x + ", from 0", axis);
        }
        if (block < 2 || x.dim(axis) < 2) {
            throw GraphChecks.refusal(kind, operation, "block", "at least 2, of an axis of at least 2", block);
        }
        if (type != DataType.FP8_E4M3 && type != DataType.FP8_E5M2) {
            throw GraphChecks.refusal(kind, operation, "type", "FP8_E4M3 or FP8_E5M2", type);
        }
        checkScale(kind, operation, "scaleType", scaleType);
        long[] dims = x.dims();
        GraphTensor y = graph.result(kind, operation, type, dims, GraphTensor.ordered(dims, x));
        long[] scales = x.dims();
        scales[axis] = (scales[axis] + block - 1) / block;
        GraphTensor scale = graph.result(kind, operation + ".scale", scaleType, scales, GraphTensor.ordered(scales, x));
        graph.add(new Operation(
                        kind,
                        operation,
                        List.of(x),
                        List.of(y, scale),
                        new Description(Cudnn.CUDNN_BACKEND_OPERATION_BLOCK_SCALE_QUANTIZE_DESCRIPTOR())
                                .tensor(Cudnn.CUDNN_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_XDESC(), x)
                                .tensor(Cudnn.CUDNN_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_YDESC(), y)
                                .tensor(Cudnn.CUDNN_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_SCALE_DESC(), scale)
                                .type(Cudnn.CUDNN_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_MATH_PREC(), graph.compute())
                                .integers(Cudnn.CUDNN_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_BLOCK_SIZE(), block))
                .needsCapability(BLACKWELL));
        return new Quantized(y, scale);
    }

    /**
     * Adds y = x scale, where a scale belongs to a block of {@code blocks} elements along the last dimensions.
     *
     * @param blocks sizes of a block along the last dimensions, such as 1, 32
     * @throws IllegalArgumentException when scale has not one number a block, or another type than {@link #quantize} gives
     */
    public GraphTensor dequantize(String operation, GraphTensor x, GraphTensor scale, int... blocks) {
        String kind = "blockScaleDequantize";
        int rank = graph.own(kind, operation, "x", x).rank();
        checkScale(
                kind,
                operation,
                "scale",
                graph.own(kind, operation, "scale", scale).type());
        boolean fits = Checks.given("blocks", blocks).length >= 2
                && blocks.length <= rank
                && Arrays.stream(blocks).allMatch(block -> block >= 1);
        if (!fits) {
            throw GraphChecks.refusal(
                    kind, operation, "blocks", "2 to " + rank + " sizes of at least 1", Arrays.toString(blocks));
        }
        long[] scales = x.dims();
        for (int i = 0; i < blocks.length; i++) {
            int axis = rank - blocks.length + i;
            scales[axis] = (scales[axis] + blocks[i] - 1) / blocks[i];
        }
        if (!scale.hasDims(scales)) {
            throw GraphChecks.refusal(kind, operation, "scale", Arrays.toString(scales), scale);
        }
        long[] dims = x.dims();
        GraphTensor y = graph.result(kind, operation, graph.intermediate(), dims, GraphTensor.ordered(dims, x));
        graph.add(new Operation(
                        kind,
                        operation,
                        List.of(x, scale),
                        List.of(y),
                        new Description(Cudnn.CUDNN_BACKEND_OPERATION_BLOCK_SCALE_DEQUANTIZE_DESCRIPTOR())
                                .tensor(Cudnn.CUDNN_ATTR_OPERATION_BLOCK_SCALE_DEQUANTIZE_XDESC(), x)
                                .tensor(Cudnn.CUDNN_ATTR_OPERATION_BLOCK_SCALE_DEQUANTIZE_SCALE_DESC(), scale)
                                .tensor(Cudnn.CUDNN_ATTR_OPERATION_BLOCK_SCALE_DEQUANTIZE_YDESC(), y)
                                .type(Cudnn.CUDNN_ATTR_OPERATION_BLOCK_SCALE_DEQUANTIZE_MATH_PREC(), graph.compute())
                                .integers(Cudnn.CUDNN_ATTR_OPERATION_BLOCK_SCALE_DEQUANTIZE_BLOCK_SIZE(), blocks))
                .needsCapability(BLACKWELL));
        return y;
    }

    private static void checkScale(String kind, String operation, String argument, DataType type) {
        if (type != DataType.FP8_E8M0 && type != DataType.FP8_E4M3 && type != DataType.FLOAT) {
            throw GraphChecks.refusal(kind, operation, argument, "FP8_E8M0, FP8_E4M3 or FLOAT", type);
        }
    }
}
