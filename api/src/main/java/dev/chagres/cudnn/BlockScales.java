package dev.chagres.cudnn;

import dev.chagres.bindings.cudnn.Cudnn;
import dev.chagres.internal.Checks;
import java.util.Arrays;

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
        OperationBuilder op = new OperationBuilder(
                graph,
                "blockScaleQuantize",
                operation,
                Cudnn.CUDNN_BACKEND_OPERATION_BLOCK_SCALE_QUANTIZE_DESCRIPTOR());
        if (axis < 0 || axis >= op.own("x", x).rank()) {
            throw op.refusal("axis", "a dimension of " + x + ", from 0", axis);
        }
        if (block < 2 || x.dim(axis) < 2) {
            throw op.refusal("block", "at least 2, of an axis of at least 2", block);
        }
        if (type != DataType.FP8_E4M3 && type != DataType.FP8_E5M2) {
            throw op.refusal("type", "FP8_E4M3 or FP8_E5M2", type);
        }
        checkScale(op, "scaleType", scaleType);
        long[] dims = x.dims();
        GraphTensor y = op.result("", type, dims, GraphTensor.ordered(dims, x));
        long[] scales = x.dims();
        scales[axis] = (scales[axis] + block - 1) / block;
        GraphTensor scale = op.result(".scale", scaleType, scales, GraphTensor.ordered(scales, x));
        op.reads(Cudnn.CUDNN_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_XDESC(), x)
                .writes(Cudnn.CUDNN_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_YDESC(), y)
                .writes(Cudnn.CUDNN_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_SCALE_DESC(), scale)
                .description
                .type(Cudnn.CUDNN_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_MATH_PREC(), graph.compute())
                .integers(Cudnn.CUDNN_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_BLOCK_SIZE(), block);
        graph.add(op.build().needsCapability(BLACKWELL));
        return new Quantized(y, scale);
    }

    /**
     * Adds y = x scale, where a scale belongs to a block of {@code blocks} elements along the last dimensions.
     *
     * @param blocks sizes of a block along the last dimensions, such as 1, 32
     * @throws IllegalArgumentException when scale has not one number a block, or another type than {@link #quantize} gives
     */
    public GraphTensor dequantize(String operation, GraphTensor x, GraphTensor scale, int... blocks) {
        OperationBuilder op = new OperationBuilder(
                graph,
                "blockScaleDequantize",
                operation,
                Cudnn.CUDNN_BACKEND_OPERATION_BLOCK_SCALE_DEQUANTIZE_DESCRIPTOR());
        int rank = op.own("x", x).rank();
        checkScale(op, "scale", op.own("scale", scale).type());
        boolean fits = Checks.given("blocks", blocks).length >= 2
                && blocks.length <= rank
                && Arrays.stream(blocks).allMatch(block -> block >= 1);
        if (!fits) {
            throw op.refusal("blocks", "2 to " + rank + " sizes of at least 1", Arrays.toString(blocks));
        }
        long[] scales = x.dims();
        for (int i = 0; i < blocks.length; i++) {
            int axis = rank - blocks.length + i;
            scales[axis] = (scales[axis] + blocks[i] - 1) / blocks[i];
        }
        if (!scale.hasDims(scales)) {
            throw op.refusal("scale", Arrays.toString(scales), scale);
        }
        GraphTensor y = op.result(x.dims(), x);
        op.reads(Cudnn.CUDNN_ATTR_OPERATION_BLOCK_SCALE_DEQUANTIZE_XDESC(), x)
                .reads(Cudnn.CUDNN_ATTR_OPERATION_BLOCK_SCALE_DEQUANTIZE_SCALE_DESC(), scale)
                .writes(Cudnn.CUDNN_ATTR_OPERATION_BLOCK_SCALE_DEQUANTIZE_YDESC(), y)
                .description
                .type(Cudnn.CUDNN_ATTR_OPERATION_BLOCK_SCALE_DEQUANTIZE_MATH_PREC(), graph.compute())
                .integers(Cudnn.CUDNN_ATTR_OPERATION_BLOCK_SCALE_DEQUANTIZE_BLOCK_SIZE(), blocks);
        graph.add(op.build().needsCapability(BLACKWELL));
        return y;
    }

    private static void checkScale(OperationBuilder op, String argument, DataType type) {
        if (type != DataType.FP8_E8M0 && type != DataType.FP8_E4M3 && type != DataType.FLOAT) {
            throw op.refusal(argument, "FP8_E8M0, FP8_E4M3 or FLOAT", type);
        }
    }
}
