package dev.chagres.te;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import java.util.Arrays;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** {@code SplitsToOffsets} against running sums in Java, and what it refuses. */
@Tag("L0")
@Tag("L1")
class SplitsToOffsetsConformance {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static long[] drawn(int count) {
        long[] values = new long[count];
        for (int i = 0; i < count; i++) {
            values[i] = open.random().nextInt(5) == 0 ? 0 : open.random().nextInt(1000);
        }
        return values;
    }

    private static Tensor integers(DType dtype, long... values) {
        if (dtype == DType.INT64) {
            return open.longs(values);
        }
        int[] narrow = new int[values.length];
        for (int i = 0; i < values.length; i++) {
            narrow[i] = (int) values[i];
        }
        return open.ints(narrow);
    }

    private static long[] read(Tensor tensor) {
        if (tensor.dtype() == DType.INT64) {
            return tensor.toLongs(open.stream());
        }
        int[] narrow = tensor.toInts(open.stream());
        long[] values = new long[narrow.length];
        Arrays.setAll(values, i -> narrow[i]);
        return values;
    }

    private static long[] offsets(long[] sizes, long[] factors, long stride) {
        long[] offsets = new long[sizes.length + 1];
        for (int i = 0; i < sizes.length; i++) {
            offsets[i + 1] = offsets[i] + sizes[i] * factors[i] * stride;
        }
        return offsets;
    }

    private static long[] ones(int count) {
        long[] ones = new long[count];
        Arrays.fill(ones, 1);
        return ones;
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2, 31, 32, 33, 255, 256, 257, 1023, 1024, 1025, 5000})
    void runningSums(int count) {
        long[] sizes = drawn(count);
        Tensor output = open.scope().tensor(DType.INT64, count + 1L);
        SplitsToOffsets.splitsToOffsets(open.longs(sizes), output, 4096, open.stream());
        assertArrayEquals(offsets(sizes, ones(count), 4096), read(output));
        long[] last = drawn(count);
        for (DType dtype : new DType[] {DType.INT32, DType.INT64}) {
            DType other = dtype == DType.INT32 ? DType.INT64 : DType.INT32;
            Tensor sums = open.scope().tensor(other, count + 1L);
            SplitsToOffsets.splitsToOffsets2d(integers(dtype, sizes), integers(other, last), sums, open.stream());
            long[] expected = offsets(sizes, last, 1);
            for (int i = 0; other == DType.INT32 && i < expected.length; i++) {
                expected[i] = (int) expected[i];
            }
            assertArrayEquals(expected, read(sums));
            Tensor[] several = {
                open.scope().tensor(DType.INT32, count + 1L),
                open.scope().tensor(DType.INT64, count),
                open.scope().tensor(DType.INT64, count + 1L)
            };
            SplitsToOffsets.splitsToOffsetsMulti(
                    integers(dtype, sizes), several, new long[] {1, 2, 1L << 40}, open.stream());
            assertArrayEquals(offsets(sizes, ones(count), 1), read(several[0]));
            long[] doubled = offsets(sizes, ones(count), 2);
            assertArrayEquals(Arrays.copyOfRange(doubled, 1, doubled.length), read(several[1]));
            assertArrayEquals(offsets(sizes, ones(count), 1L << 40), read(several[2]));
        }
    }

    @Test
    void withoutPartsAndWithoutGarbage() {
        Tensor none = open.scope().tensor(DType.INT64, 0);
        Tensor one = open.longs(5);
        SplitsToOffsets.splitsToOffsets(none, one, 1, open.stream());
        assertArrayEquals(new long[1], read(one));
        Tensor other = open.longs(5);
        SplitsToOffsets.splitsToOffsets2d(none, none, other, open.stream());
        assertArrayEquals(new long[1], read(other));
        Tensor third = open.longs(5);
        SplitsToOffsets.splitsToOffsetsMulti(none, new Tensor[] {third, none}, new long[] {1, 1}, open.stream());
        assertArrayEquals(new long[1], read(third));
        SplitsToOffsets.splitsToOffsetsMulti(one, new Tensor[0], new long[0], open.stream());
        Tensor sizes = open.longs(1, 2, 3);
        Tensor offsets = open.longs(0, 0, 0, 0);
        Tensor[] outputs = {open.longs(0, 0, 0)};
        long[] strides = {3};
        Allocation.assertNone("offsets", () -> {
            SplitsToOffsets.splitsToOffsets(sizes, offsets, 2, open.stream());
            SplitsToOffsets.splitsToOffsets2d(sizes, sizes, offsets, open.stream());
            SplitsToOffsets.splitsToOffsetsMulti(sizes, outputs, strides, open.stream());
        });
    }

    private static void refused(String text, Runnable call) {
        assertThrown(IllegalArgumentException.class, text, call::run);
    }

    @Test
    void refusals() {
        Tensor sizes = open.longs(1, 2, 3);
        Tensor output = open.longs(0, 0, 0, 0);
        refused(
                "stride: expected a positive number, got 0",
                () -> SplitsToOffsets.splitsToOffsets(sizes, output, 0, open.stream()));
        refused(
                "splitSizes: expected elements of INT64, got INT32[3]",
                () -> SplitsToOffsets.splitsToOffsets(open.ints(1, 2, 3), output, 1, open.stream()));
        refused(
                "output: expected INT64[4], got INT64[3]",
                () -> SplitsToOffsets.splitsToOffsets(sizes, sizes, 1, open.stream()));
        refused(
                "firstDims: expected a vector of INT32 or INT64, got FLOAT32[3]",
                () -> SplitsToOffsets.splitsToOffsets2d(
                        open.scope().tensor(DType.FLOAT32, 3), sizes, output, open.stream()));
        refused(
                "lastDims: expected [3], as firstDims has, got INT64[4]",
                () -> SplitsToOffsets.splitsToOffsets2d(sizes, output, output, open.stream()));
        refused(
                "output: expected [4], one more than firstDims has, got INT64[3]",
                () -> SplitsToOffsets.splitsToOffsets2d(sizes, sizes, sizes, open.stream()));
        refused(
                "strides: expected 1, one per output, got 2",
                () -> SplitsToOffsets.splitsToOffsetsMulti(
                        sizes, new Tensor[] {output}, new long[] {1, 1}, open.stream()));
        refused(
                "outputs[0], output: expected [3], or [4] with a leading 0, got INT64[2]",
                () -> SplitsToOffsets.splitsToOffsetsMulti(
                        sizes, new Tensor[] {open.longs(0, 0)}, new long[] {1}, open.stream()));
        refused(
                "outputs[1], output: expected memory of its own, got some of another output's; it is written to while that is read or"
                        + " written",
                () -> SplitsToOffsets.splitsToOffsetsMulti(
                        sizes, new Tensor[] {output, output}, new long[] {1, 1}, open.stream()));
        refused(
                "outputs[0], output: expected memory of its own, got some of splitSizes's; it is written to while that is read or"
                        + " written",
                () -> SplitsToOffsets.splitsToOffsetsMulti(sizes, new Tensor[] {sizes}, new long[] {1}, open.stream()));
    }
}
