package dev.chagres.nccl;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.launch.Ranks;
import dev.chagres.ops.Elementwise;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Types that NCCL has and Transformer Engine has not: copied, sent and reduced in their own numbers, refused by all that computes. */
@Tag("L0")
@Tag("L2")
class CollectiveTypesTest {
    /** What one of two ranks does with its communicator. */
    private interface Body {
        void run(Communicator ranks, Scope scope, Stream stream, boolean second);
    }

    private static void onTwo(Body body) {
        DevicesNeeded.assume(2);
        Ranks.local(2).each(rank -> {
            try (Scope scope = rank.device().openScope()) {
                body.run(rank.communicator(), scope, rank.device().stream(), rank.index() == 1);
            }
        });
    }

    @Test
    void signedBytes() {
        onTwo((ranks, scope, stream, second) -> {
            Tensor x = scope.tensor(DType.INT8, 3);
            Tensor y = scope.tensor(DType.INT8, 3);
            x.set(stream, second ? new byte[] {100, 3, -1} : new byte[] {100, -5, -128});
            ranks.allReduce(x, y, Reduction.SUM, stream);
            assertArrayEquals(new byte[] {-56, -2, 127}, y.toBytes(stream));
            ranks.allReduce(x, y, Reduction.MIN, stream);
            assertArrayEquals(new byte[] {100, -5, -128}, y.toBytes(stream));
            ranks.allReduce(x, y, Reduction.MAX, stream);
            assertArrayEquals(new byte[] {100, 3, -1}, y.toBytes(stream));
            try (PremultipliedSum sum = ranks.premultipliedSum(DType.INT8, -2)) {
                x.set(stream, (byte) 5, (byte) 6, second ? (byte) -7 : (byte) 1);
                ranks.allReduce(x, y, sum, stream);
                assertArrayEquals(new byte[] {-20, -24, 12}, y.toBytes(stream));
            }
        });
    }

    @Test
    void unsignedInts() {
        onTwo((ranks, scope, stream, second) -> {
            Tensor x = scope.tensor(DType.UINT32, 2);
            Tensor y = scope.tensor(DType.UINT32, 2);
            x.set(stream, second ? new int[] {-2, 7} : new int[] {0, -1});
            ranks.allReduce(x, y, Reduction.MAX, stream);
            assertArrayEquals(new int[] {-2, -1}, y.toInts(stream));
            ranks.allReduce(x, y, Reduction.MIN, stream);
            assertArrayEquals(new int[] {0, 7}, y.toInts(stream));
            ranks.allReduce(x, y, Reduction.AVERAGE, stream);
            assertArrayEquals(new int[] {Integer.MAX_VALUE, 3}, y.toInts(stream));
            try (PremultipliedSum sum = ranks.premultipliedSum(DType.UINT32, 3e9)) {
                x.set(stream, 1, second ? 1 : 0);
                ranks.allReduce(x, y, sum, stream);
                assertArrayEquals(new int[] {(int) 6_000_000_000L, (int) 3_000_000_000L}, y.toInts(stream));
            }
        });
    }

    @Test
    void unsignedLongs() {
        onTwo((ranks, scope, stream, second) -> {
            Tensor x = scope.tensor(DType.UINT64, 2);
            Tensor y = scope.tensor(DType.UINT64, 2);
            x.set(stream, second ? new long[] {-2, 7} : new long[] {0, -1});
            ranks.allReduce(x, y, Reduction.MAX, stream);
            assertArrayEquals(new long[] {-2, -1}, y.toLongs(stream));
            ranks.allReduce(x, y, Reduction.MIN, stream);
            assertArrayEquals(new long[] {0, 7}, y.toLongs(stream));
            ranks.allReduce(x, y, Reduction.AVERAGE, stream);
            assertArrayEquals(new long[] {Long.MAX_VALUE, 3}, y.toLongs(stream));
            try (PremultipliedSum sum = ranks.premultipliedSum(DType.UINT64, 0x1p63)) {
                x.set(stream, 3, second ? 1L : 0);
                ranks.allReduce(x, y, sum, stream);
                assertArrayEquals(new long[] {0, Long.MIN_VALUE}, y.toLongs(stream));
            }
        });
    }

    @Test
    void doubles() {
        onTwo((ranks, scope, stream, second) -> {
            Tensor x = scope.tensor(DType.FLOAT64, 2);
            Tensor y = scope.tensor(DType.FLOAT64, 4);
            x.set(stream, second ? new double[] {0x1p-50, -3} : new double[] {1, 1e300});
            ranks.allGather(x, y, stream);
            assertArrayEquals(new double[] {1, 1e300, 0x1p-50, -3}, y.toDoubles(stream));
            ranks.allReduce(x, x, Reduction.SUM, stream);
            assertArrayEquals(new double[] {1 + 0x1p-50, 1e300}, x.toDoubles(stream));
            try (PremultipliedSum sum = ranks.premultipliedSum(DType.FLOAT64, 0.1)) {
                x.set(stream, 1.0, second ? 10 : 0);
                ranks.allReduce(x, x, sum, stream);
                assertArrayEquals(new double[] {0.2, 1}, x.toDoubles(stream), 1e-16);
            }
        });
    }

    private static void refused(String text, Runnable call) {
        assertThrown(IllegalArgumentException.class, text, call::run);
    }

    @Test
    void factorsThatATypeDoesNotHold() {
        try (Device device = Device.open();
                Communicator alone =
                        Communicator.open(device, UniqueId.create(), 1, 0, CommunicatorConfig.standard())) {
            String whole = "factor: expected a whole number that ";
            refused(whole + "INT8 holds, got 128.0", () -> alone.premultipliedSum(DType.INT8, 128));
            refused(whole + "UINT32 holds, got -1.0", () -> alone.premultipliedSum(DType.UINT32, -1));
            refused(
                    whole + "UINT64 holds, got 1.8446744073709552E19",
                    () -> alone.premultipliedSum(DType.UINT64, 0x1p64));
            refused(whole + "UINT64 holds, got NaN", () -> alone.premultipliedSum(DType.UINT64, Double.NaN));
        }
    }

    @Test
    void whatComputesRefusesThem() {
        String none =
                "dtype: expected one that Transformer Engine and our operations have, got FLOAT64, which only copies"
                        + " and collectives take";
        try (Device device = Device.open();
                Scope scope = device.openScope()) {
            Stream stream = device.stream();
            Tensor x = scope.tensor(DType.FLOAT64, 4);
            Tensor y = scope.tensor(DType.FLOAT64, 4);
            x.set(stream, 1.0, 2.5, -3, Math.PI);
            y.copyFrom(stream, x);
            assertArrayEquals(new double[] {1, 2.5, -3, Math.PI}, y.toDoubles(stream));
            refused(none, x::handle);
            refused(none, () -> DType.FLOAT64.code());
            refused(
                    "tensor: expected elements of FLOAT32, FLOAT16 or BFLOAT16, got FLOAT64[4]; double values (1.0, 2.0) and"
                            + " toDoubles are for it",
                    () -> x.toFloats(stream));
            refused(
                    "tensor: expected INT64 or UINT64, got FLOAT64[4]; double values (1.0, 2.0) and toDoubles are for it",
                    () -> x.toLongs(stream));
            refused(
                    "tensor: expected FLOAT64, got INT8[2]; byte values ((byte) 1, (byte) 2) and toBytes are for it",
                    () -> scope.tensor(DType.INT8, 2).toDoubles(stream));
            refused(
                    "x: expected elements of FLOAT32, FLOAT16 or BFLOAT16, got FLOAT64[4]",
                    () -> Elementwise.add(x, y, y, stream));
            ModelPlan plan = new ModelPlan();
            refused(
                    "dtype: expected FLOAT32, BFLOAT16 or FLOAT16, got FLOAT64",
                    () -> Parameters.allocate(device, plan, DType.FLOAT64, 1));
        }
    }
}
