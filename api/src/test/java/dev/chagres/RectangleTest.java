package dev.chagres;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.SplittableRandom;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Copies of rows of one tensor to rows of another, against plain loops. */
@Tag("L0")
@Tag("L1")
class RectangleTest {
    private static final long SEED = 11;

    @Test
    void rowsAreCopied() {
        SplittableRandom random = new SplittableRandom(SEED);
        try (Device device = Device.open();
                Scope scope = device.openScope()) {
            Stream stream = device.stream();
            for (int i = 0; i < 200; i++) {
                int rows = random.nextInt(6);
                int columns = random.nextInt(6);
                Rectangle to = drawn(random, rows, columns);
                Rectangle from = drawn(random, rows, columns);
                int[] target =
                        IntStream.range(0, (int) to.end() + random.nextInt(3)).toArray();
                int[] source = IntStream.range(1000, 1000 + (int) from.end() + random.nextInt(3))
                        .toArray();
                Tensor x = scope.tensor(DType.INT32, target.length);
                Tensor y = scope.tensor(DType.INT32, source.length);
                x.set(stream, target);
                y.set(stream, source);
                x.copyFrom(stream, to, y, from);
                for (int row = 0; row < rows; row++) {
                    for (int column = 0; column < columns; column++) {
                        target[(int) (to.offset() + row * to.pitch()) + column] =
                                source[(int) (from.offset() + row * from.pitch()) + column];
                    }
                }
                assertArrayEquals(target, x.toInts(stream), "case " + i + " of seed " + SEED + ": " + to + from);
            }
        }
    }

    @Test
    void rowsWithoutElementsChangeNothing() {
        try (Device device = Device.open();
                Scope scope = device.openScope()) {
            Stream stream = device.stream();
            Tensor x = scope.tensor(DType.INT32, 2);
            Tensor y = scope.tensor(DType.INT32, 2);
            x.set(stream, new int[] {1, 2});
            y.set(stream, new int[] {3, 4});
            for (Rectangle none : new Rectangle[] {
                new Rectangle(0, 1L << 30, 0, 1L << 31),
                new Rectangle(0, Long.MAX_VALUE, 0, 0),
                new Rectangle(0, 0, 1L << 61, 1L << 62),
                new Rectangle(2, 0, 3, Long.MAX_VALUE)
            }) {
                x.copyFrom(stream, none, y, none);
                assertArrayEquals(new int[] {1, 2}, x.toInts(stream), none.toString());
            }
        }
    }

    private static Rectangle drawn(SplittableRandom random, int rows, int columns) {
        return new Rectangle(random.nextInt(4), rows, columns, columns + random.nextInt(3));
    }

    @Test
    void misuse() {
        assertThrown(
                IllegalArgumentException.class,
                "offset, rows, columns: expected no negative number, got 0, -1 and 2",
                () -> new Rectangle(0, -1, 2, 2));
        assertThrown(
                IllegalArgumentException.class,
                "pitch: expected at least the 4 elements of a row, got 3",
                () -> new Rectangle(0, 1, 4, 3));
        assertThrown(
                IllegalArgumentException.class,
                "rows: expected fewer elements than a long can count, got 3 of pitch 9223372036854775807",
                () -> new Rectangle(0, 3, 1, Long.MAX_VALUE));
        Rectangle square = new Rectangle(1, 2, 2, 3);
        assertEquals(6, square.end());
        try (Device device = Device.open();
                Scope scope = device.openScope()) {
            Stream stream = device.stream();
            Tensor x = scope.tensor(DType.FLOAT32, 8);
            Tensor y = scope.tensor(DType.FLOAT32, 5);
            Tensor z = scope.tensor(DType.INT32, 8);
            assertThrown(
                    IllegalArgumentException.class,
                    "from: expected elements within FLOAT32[5], got Rectangle[offset=1, rows=2, columns=2, pitch=3]",
                    () -> x.copyFrom(stream, square, y, square));
            assertThrown(
                    IllegalArgumentException.class,
                    "to: expected elements within FLOAT32[5], got Rectangle[offset=1, rows=2, columns=2, pitch=3]",
                    () -> y.copyFrom(stream, square, x, square));
            assertThrown(
                    IllegalArgumentException.class,
                    "source: expected elements of FLOAT32, got INT32",
                    () -> x.copyFrom(stream, square, z, square));
            assertThrown(
                    IllegalArgumentException.class,
                    "from: expected 2 rows of 2 elements, as many as to, got 1 of 2",
                    () -> x.copyFrom(stream, square, y, new Rectangle(0, 1, 2, 2)));
            assertThrown(
                    IllegalArgumentException.class,
                    "this tensor: expected memory of its own, got some of source's; it is written to while that is read",
                    () -> x.copyFrom(stream, square, x, square));
        }
    }
}
