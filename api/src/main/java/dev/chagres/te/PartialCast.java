package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Scaling;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;

/**
 * Casts one rank's shard of a matrix to eight bits with a scale for each 128 x 128 block ({@link Scaling#BLOCK_2D}): first computes the
 * amaxes of the shard, which the caller all-reduces, then casts with the scales of the whole blocks.
 *
 * <p>The matrix is [height, width], row-major; the part, or shard, is any contiguous range of its elements, from element {@code begin} on.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code nvte_fp8_block_scaling_compute_partial_amax} and {@code nvte_fp8_block_scaling_partial_cast} in TE's {@code recipe.h}.
 */
public final class PartialCast {
    private PartialCast() {}

    /**
     * Enqueues {@code amax[i, j] = max |x|} over the elements of the part in block [i, j], 0 where it has none.
     *
     * @param input [n], FLOAT32, FLOAT16 or BFLOAT16, n above 0: elements begin to begin + n - 1 of the matrix
     * @param amax FLOAT32 [a, b], a at least ceil(height / 128), b at least ceil(width / 128); what is beyond them stays as it is
     * @param height above 0
     * @param width above 0
     * @param begin from 0 on
     * @throws IllegalArgumentException when shapes, types or devices do not fit, the part ends outside of the matrix, or memory is shared
     */
    public static void computePartialAmax(
            Tensor input, Tensor amax, long height, long width, long begin, Stream stream) {
        checkPart(input, height, width, begin, stream);
        checkBlocks("amax", amax, height, width, stream);
        Checks.written("amax", amax, "input", input);
        Status.te(
                TransformerEngine.te_fp8_block_scaling_compute_partial_amax(
                        input.handle(),
                        amax.handle(),
                        height,
                        width,
                        amax.size(1),
                        1,
                        begin,
                        Scaling.BLOCK,
                        stream.handle()),
                "te_fp8_block_scaling_compute_partial_amax");
    }

    /**
     * Enqueues {@code output[k] = input[k] scale[i, j]}, rounded to nearest even, where element begin + k of the matrix lies in block
     * [i, j]. TE's kernel stores whole rows of blocks, so memory around the output is written, too, and undefined afterwards.
     *
     * @param input as for {@link #computePartialAmax}
     * @param output [n], FLOAT8_E4M3 or FLOAT8_E5M2
     * @param around the vector that {@code output} is a view of. It must hold, up to the end of the matrix, every row of blocks in which
     *     the part has an element. What it has beyond them stays as it is
     * @param scale FLOAT32 [a, b], as amax for {@link #computePartialAmax}
     * @throws IllegalArgumentException when shapes, types or devices do not fit, the part ends outside of the matrix, there is no room
     *     round the output, or memory is shared
     */
    public static void partialCast(
            Tensor input,
            Tensor output,
            Tensor around,
            Tensor scale,
            long height,
            long width,
            long begin,
            Stream stream) {
        checkPart(input, height, width, begin, stream);
        checkBlocks("scale", scale, height, width, stream);
        checkOutput(input, output, around, stream);
        checkRoom(output, around, height, width, begin);
        Checks.apart("around", around, "input", input, "scale", scale);
        Status.te(
                TransformerEngine.te_fp8_block_scaling_partial_cast(
                        input.handle(),
                        output.handle(),
                        scale.handle(),
                        height,
                        width,
                        scale.size(1),
                        1,
                        begin,
                        Scaling.BLOCK,
                        output.dtype().code(),
                        stream.handle()),
                "te_fp8_block_scaling_partial_cast");
    }

    /**
     * Returns the first element that {@link #partialCast} may write for a part that begins at {@code begin}: the first of a row of blocks.
     *
     * @throws IllegalArgumentException when width is not above 0, or begin is negative
     */
    public static long firstWritten(long width, long begin) {
        if (width < 1 || begin < 0) {
            throw new IllegalArgumentException(
                    "begin: expected an element of rows of at least one, got " + begin + " of rows of " + width);
        }
        return begin / width / Scaling.BLOCK * Scaling.BLOCK * width;
    }

    /**
     * Returns the end of what {@link #partialCast} may write for a part that ends before element {@code end}.
     *
     * @throws IllegalArgumentException when there is no such part of the matrix, or a long cannot count what may be written
     */
    public static long endWritten(long height, long width, long end) {
        if (height < 1 || width < 1 || end < 1 || (end - 1) / width >= height) {
            throw new IllegalArgumentException(
                    "end: expected 1 to " + height + " x " + width + " elements, got " + end);
        }
        long rows = ((end - 1) / width / Scaling.BLOCK + 1) * Scaling.BLOCK;
        long written = Math.min(rows, height);
        if (written > Long.MAX_VALUE / width) {
            throw new IllegalArgumentException(
                    "width: expected " + written + " rows whose elements a long counts, got rows of " + width);
        }
        return written * width;
    }

    private static void checkPart(Tensor input, long height, long width, long begin, Stream stream) {
        Checks.floats(stream, "input", input);
        // TE's kernels count the rows of blocks in 16 bits, and elements of a block in 32.
        long mostBlocks = 65_535;
        if (height < 1 || width < 1 || blocks(height) > mostBlocks || blocks(width) > mostBlocks) {
            throw new IllegalArgumentException("height, width: expected 1 to " + mostBlocks * Scaling.BLOCK
                    + " rows and columns, got " + height + " and " + width);
        }
        if (input.rank() != 1 || input.count() < 1 || begin < 0 || begin > height * width - input.count()) {
            throw new IllegalArgumentException("input: expected a vector of elements of a matrix of " + height + " x "
                    + width + ", got " + Checks.describe(input) + " from element " + begin + " on");
        }
    }

    private static void checkBlocks(String argument, Tensor blocks, long height, long width, Stream stream) {
        Checks.on(stream, argument, blocks);
        if (blocks.dtype() != DType.FLOAT32
                || blocks.rank() != 2
                || blocks.size(0) < blocks(height)
                || blocks.size(1) < blocks(width)) {
            throw new IllegalArgumentException(argument + ": expected FLOAT32 [" + blocks(height) + ", "
                    + blocks(width) + "] or more, one number for each block of " + height + " x " + width + ", got "
                    + Checks.describe(blocks));
        }
    }

    private static void checkOutput(Tensor input, Tensor output, Tensor around, Stream stream) {
        Checks.on(stream, "output", output);
        Checks.on(stream, "around", around);
        if (!output.dtype().isFloat8() || output.rank() != 1 || output.count() != input.count()) {
            throw new IllegalArgumentException("output: expected FLOAT8_E4M3 or FLOAT8_E5M2 [" + input.count()
                    + "], as many as input has, got " + Checks.describe(output));
        }
        if (around.dtype() != output.dtype() || around.rank() != 1) {
            throw new IllegalArgumentException("around: expected a vector of " + output.dtype()
                    + " that output is a view of" + ", got " + Checks.describe(around));
        }
        Checks.writable("around", around);
    }

    private static void checkRoom(Tensor output, Tensor around, long height, long width, long begin) {
        long before = Inside.address(output) - Inside.address(around);
        long behind = around.count() - before - output.count();
        long end = begin + output.count();
        long least = begin - firstWritten(width, begin);
        long most = endWritten(height, width, end) - end;
        if (before < least || behind < most) {
            throw new IllegalArgumentException("around: expected " + least + " elements before output and " + most
                    + " behind, which TE's kernel may write with the rows of blocks that the part begins and ends in,"
                    + " got "
                    + before + " and " + behind);
        }
        // The kernel stores four numbers at once where the width is a multiple of 128, at multiples of four from
        // element 0 on.
        if ((Inside.address(output) - begin) % Integer.BYTES != 0) {
            throw new IllegalArgumentException(
                    "output: expected memory whose address is that of element 0 of the matrix, a"
                            + " multiple of 4, and begin, got a view that is not; give it another place in around");
        }
    }

    private static long blocks(long elements) {
        return (elements + Scaling.BLOCK - 1) / Scaling.BLOCK;
    }
}
