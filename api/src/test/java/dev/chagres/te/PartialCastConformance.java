package dev.chagres.te;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Scaling;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.witness.Float8Witness;
import java.util.Arrays;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Parts of a matrix, cast one by one with the scales of whole blocks, against double precision. */
@Tag("L0")
@Tag("L1")
class PartialCastConformance {
    private static final int BLOCK = (int) Scaling.BLOCK;
    private static final byte UNTOUCHED = 0x55;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static int blocks(int elements) {
        return (elements + BLOCK - 1) / BLOCK;
    }

    /** Parts end anywhere: inside of rows and of blocks. */
    @ParameterizedTest
    @CsvSource({
        "16, 16, 1, FLOAT32, FLOAT8_E4M3",
        "128, 128, 2, BFLOAT16, FLOAT8_E4M3",
        "144, 272, 3, BFLOAT16, FLOAT8_E4M3",
        "300, 128, 4, FLOAT16, FLOAT8_E5M2",
        "400, 132, 7, FLOAT32, FLOAT8_E4M3",
        "1, 4, 1, BFLOAT16, FLOAT8_E5M2",
        "640, 256, 5, BFLOAT16, FLOAT8_E4M3"
    })
    void partsTogetherAreTheWhole(int height, int width, int parts, DType input, DType output) {
        RealMatrix x = open.normal(input, height, width, 1);
        int count = height * width;
        double[] flat = new double[count];
        for (int i = 0; i < count; i++) {
            flat[i] = x.getEntry(i / width, i % width);
        }
        Tensor matrix = open.tensor(input, flat, count);
        double[][] largest = new double[blocks(height)][blocks(width)];
        float[][] scales = new float[largest.length][largest[0].length];
        for (int i = 0; i < count; i++) {
            int row = i / width / BLOCK;
            int column = i % width / BLOCK;
            largest[row][column] = Math.max(largest[row][column], Math.abs(flat[i]));
        }
        double[] found = new double[largest.length * largest[0].length];
        float[] flatScales = new float[found.length];
        for (int i = 0; i < found.length; i++) {
            flatScales[i] = Math.scalb(1f, i - 1); // as the caller finds them
            scales[i / largest[0].length][i % largest[0].length] = flatScales[i];
        }
        Tensor amax = open.unwritten(DType.FLOAT32, largest.length, largest[0].length);
        Tensor scale = open.unwritten(DType.FLOAT32, largest.length, largest[0].length);
        scale.set(open.stream(), flatScales);
        for (int part = 0; part < parts; part++) {
            int begin = begin(count, parts, part);
            int end = begin(count, parts, part + 1);
            Tensor values = open.scope().view(matrix, begin, end - begin);
            PartialCast.computePartialAmax(values, amax, height, width, begin, open.stream());
            float[] ofPart = open.read(amax);
            for (int i = 0; i < found.length; i++) {
                found[i] = Math.max(found[i], ofPart[i]);
            }
            byte[] cast = cast(values, scale, height, width, begin, output);
            for (int i = begin; i < end; i++) {
                double expected =
                        Float8Witness.quantized(flat[i], scales[i / width / BLOCK][i % width / BLOCK], output);
                assertEquals(expected, Float8Witness.value(cast[i - begin], output), "element " + i);
            }
        }
        for (int i = 0; i < found.length; i++) {
            assertEquals(largest[i / largest[0].length][i % largest[0].length], found[i], "magnitude " + i);
        }
    }

    private static int begin(int count, int parts, int part) {
        return part == parts ? count : (int) ((long) count * part / parts / 4 * 4);
    }

    /** What lies beyond the rows of blocks that the part is in stays as it is. */
    private static byte[] cast(Tensor values, Tensor scale, int height, int width, int begin, DType output) {
        long first = PartialCast.firstWritten(width, begin);
        long end = PartialCast.endWritten(height, width, begin + values.count());
        int guarded = 64;
        int room = (int) (end - first);
        Tensor memory = open.scope().tensor(output, room + 2 * guarded);
        byte[] untouched = new byte[room + 2 * guarded];
        Arrays.fill(untouched, UNTOUCHED);
        memory.set(open.stream(), untouched);
        Tensor around = open.scope().view(memory, guarded, room);
        Tensor bytes = open.scope().view(memory, guarded + begin - first, values.count());
        PartialCast.partialCast(values, bytes, around, scale, height, width, begin, open.stream());
        byte[] all = memory.toBytes(open.stream());
        assertArrayEquals(Arrays.copyOf(untouched, guarded), Arrays.copyOf(all, guarded));
        assertArrayEquals(Arrays.copyOf(untouched, guarded), Arrays.copyOfRange(all, all.length - guarded, all.length));
        return bytes.toBytes(open.stream());
    }

    @Test
    void misuse() {
        Tensor x = open.unwritten(DType.BFLOAT16, 256);
        Tensor amax = open.unwritten(DType.FLOAT32, 2, 2);
        Tensor memory = open.scope().tensor(DType.FLOAT8_E4M3, 130 * 200);
        Tensor bytes = open.scope().view(memory, 0, 256);
        assertThrown(
                IllegalArgumentException.class,
                "input: expected a vector of elements of a matrix of 130 x 200, got BFLOAT16[256] from element 25800 on",
                () -> PartialCast.computePartialAmax(x, amax, 130, 200, 25_800, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "height, width: expected 1 to 8388480 rows and columns, got 0 and 200",
                () -> PartialCast.computePartialAmax(x, amax, 0, 200, 0, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "amax: expected FLOAT32 [3, 2] or more, one number for each block of 300 x 200, got FLOAT32[2, 2]",
                () -> PartialCast.computePartialAmax(x, amax, 300, 200, 0, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "around: expected 0 elements before output and 25344 behind, which TE's kernel may write with the rows of"
                        + " blocks that the part begins and ends in, got 0 and 0",
                () -> PartialCast.partialCast(x, bytes, bytes, amax, 130, 200, 0, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "around: expected 256 elements before output and 25088 behind, which TE's kernel may write with the rows of"
                        + " blocks that the part begins and ends in, got 0 and 25744",
                () -> PartialCast.partialCast(x, bytes, memory, amax, 130, 200, 256, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "output: expected memory whose address is that of element 0 of the matrix, a multiple of 4, and begin, got"
                        + " a view that is not; give it another place in around",
                () -> PartialCast.partialCast(
                        x, open.scope().view(memory, 2, 256), memory, amax, 130, 200, 0, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "output: expected FLOAT8_E4M3 or FLOAT8_E5M2 [256], as many as input has, got FLOAT8_E4M3[26000]",
                () -> PartialCast.partialCast(x, memory, memory, amax, 130, 200, 0, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "around: expected a vector of FLOAT8_E4M3 that output is a view of, got BFLOAT16[256]",
                () -> PartialCast.partialCast(x, bytes, x, amax, 130, 200, 0, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "end: expected 1 to 130 x 200 elements, got 26001",
                () -> PartialCast.endWritten(130, 200, 26_001));
        long large = 1L << 40; // Of so many rows and columns a long cannot count the elements.
        assertEquals(128 * large, PartialCast.endWritten(large, large, 5));
        assertThrown(
                IllegalArgumentException.class,
                "width: expected 128 rows whose elements a long counts, got rows of " + (1L << 60),
                () -> PartialCast.endWritten(large, 1L << 60, 5));
        assertThrown(
                IllegalArgumentException.class,
                "begin: expected an element of rows of at least one, got -1 of rows of 200",
                () -> PartialCast.firstWritten(200, -1));
        Allocation.assertNone(
                "partialCast", () -> PartialCast.partialCast(x, bytes, memory, amax, 130, 200, 0, open.stream()));
    }
}
