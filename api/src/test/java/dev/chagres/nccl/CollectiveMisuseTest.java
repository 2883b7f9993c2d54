package dev.chagres.nccl;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Graph;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.CaptureException;
import dev.chagres.launch.Ranks;
import java.time.Duration;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

/** Wrong calls: the text of each error, and that nothing is lost by them. */
@Tag("L0")
@Tag("L2")
class CollectiveMisuseTest {
    private static final CommunicatorConfig STANDARD = CommunicatorConfig.standard();

    private static void argument(String text, Executable call) {
        assertThrown(IllegalArgumentException.class, text, call);
    }

    @Test
    void argumentsOfCollectives() {
        DevicesNeeded.assume(2);
        Ranks.local(2).each(rank -> {
            Communicator world = rank.communicator();
            Stream stream = rank.device().stream();
            try (Scope scope = rank.device().openScope()) {
                Tensor four = scope.tensor(DType.FLOAT32, 4);
                Tensor eight = scope.tensor(DType.FLOAT32, 8);
                Tensor ints = scope.tensor(DType.INT32, 4);
                Tensor odd = scope.tensor(DType.FLOAT32, 3);
                Tensor late = scope.view(eight, 1, 4);
                argument(
                        "receive: expected as many elements of send, 4 of FLOAT32, got FLOAT32[8]",
                        () -> world.allReduce(four, eight, Reduction.SUM, stream));
                argument(
                        "receive: expected as many elements of send, 4 of FLOAT32, got INT32[4]",
                        () -> world.allReduce(four, ints, Reduction.SUM, stream));
                argument(
                        "receive: expected 2 times the elements of send, 8 of FLOAT32, got FLOAT32[4]",
                        () -> world.allGather(four, four, stream));
                argument(
                        "send: expected memory of its own, or in place part " + rank.index()
                                + " of receive, got other memory of receive",
                        () -> world.allGather(late, eight, stream));
                argument(
                        "receive: expected memory of its own, or in place part " + rank.index()
                                + " of send, got other memory of send",
                        () -> world.reduceScatter(eight, late, Reduction.SUM, stream));
                argument(
                        "receive: expected memory of its own, got some of send's; it is written to while that is read or"
                                + " written",
                        () -> world.allReduce(scope.view(eight, 0, 4), late, Reduction.SUM, stream));
                argument("root: expected a rank from 0 to 1, got 2", () -> world.broadcast(four, four, 2, stream));
                argument("peer: expected a rank from 0 to 1, got -1", () -> world.send(four, -1, stream));
                argument("peer: expected a rank from 0 to 1, got 2", () -> world.receive(four, 2, stream));
                assertThrown(
                        IllegalStateException.class,
                        "send: expected a call inside Communicator.group, beside the other half of the transfer, for rank "
                                + rank.index() + " is this one, got one outside",
                        () -> world.send(four, rank.index(), stream));
                assertThrown(
                        IllegalStateException.class,
                        "receive: expected a call inside Communicator.group, beside the other half of the transfer, for rank "
                                + rank.index() + " is this one, got one outside",
                        () -> world.receive(four, rank.index(), stream));
                argument(
                        "send: expected a number of elements that the 2 ranks divide, got FLOAT32[3]",
                        () -> world.allToAll(odd, scope.like(odd), stream));
                argument(
                        "receive: expected memory of its own, got some of send's; it is written to while that is read or"
                                + " written",
                        () -> world.allToAll(four, four, stream));
                assertThrown(
                        NullPointerException.class,
                        "reduction: expected a value, got null",
                        () -> world.allReduce(four, four, null, stream));
                assertThrown(
                        NullPointerException.class,
                        "stream: expected a value, got null",
                        () -> world.allReduce(four, four, Reduction.SUM, null));
                assertThrown(
                        NullPointerException.class,
                        "send: expected a value, got null",
                        () -> world.allReduce(null, four, Reduction.SUM, stream));
                if (rank.index() == 0) {
                    assertThrown(
                            NullPointerException.class,
                            "send: expected a tensor on the root, got null",
                            () -> world.broadcast(null, four, 0, stream));
                    assertThrown(
                            NullPointerException.class,
                            "receive: expected a tensor on the root, got null",
                            () -> world.gather(four, null, 0, stream));
                }
                four.set(stream, 1f, 2f, 3f, 4f);
                world.allReduce(four, four, Reduction.SUM, stream);
                assertArrayEquals(new float[] {2, 4, 6, 8}, four.toFloats(stream));
            }
        });
    }

    @Test
    void devicesAndLifetimes() {
        DevicesNeeded.assume(2);
        try (Device device = Device.open(0);
                Device other = Device.open(1);
                Scope scope = device.openScope();
                Scope far = other.openScope()) {
            Stream stream = device.stream();
            Communicator world = Communicator.open(device, UniqueId.create(), 1, 0, STANDARD);
            Tensor tensor = scope.tensor(DType.FLOAT32, 4);
            argument(
                    "stream: expected a stream of device 0, got one of device 1",
                    () -> world.allReduce(tensor, tensor, Reduction.SUM, other.stream()));
            argument(
                    "receive: expected a tensor of device 0, got FLOAT32[4] of device 1",
                    () -> world.allReduce(tensor, far.tensor(DType.FLOAT32, 4), Reduction.SUM, stream));
            argument(
                    "tensor: expected a tensor of device 0, got FLOAT32[4] of device 1",
                    () -> world.register(far.tensor(DType.FLOAT32, 4)));
            try (Device again = Device.open(0);
                    Scope there = again.openScope()) {
                String stranger = "stream: expected a stream of device 0, got one of device 0, opened another time";
                argument(stranger, () -> world.allReduce(tensor, tensor, Reduction.SUM, again.stream()));
                argument(stranger, () -> world.synchronize(again.stream()));
                argument(
                        "tensor: expected a tensor of device 0, got FLOAT32[4] of device 0, opened another time",
                        () -> world.register(there.tensor(DType.FLOAT32, 4)));
            }
            argument("tensor: expected elements, got BYTE[0]", () -> world.register(scope.tensor(DType.BYTE, 0)));
            argument(
                    "stream: expected a stream of device 0, got one of device 1",
                    () -> world.synchronize(other.stream()));
            try (Graph graph = stream.capture(() -> world.allReduce(tensor, tensor, Reduction.SUM, stream))) {
                assertThrows(CaptureException.class, () -> stream.capture(world::close));
                graph.launch();
            }
            world.close();
            world.close();
            String closed = "communicator \"world\", rank 0 of 1 is closed";
            assertThrown(
                    IllegalStateException.class, closed, () -> world.allReduce(tensor, tensor, Reduction.SUM, stream));
            assertThrown(IllegalStateException.class, closed, () -> world.synchronize(stream));
            assertThrown(IllegalStateException.class, closed, world::check);
            assertThrown(IllegalStateException.class, closed, world::revoke);
            assertThrown(IllegalStateException.class, closed, () -> world.premultipliedSum(DType.FLOAT32, 1));
        }
    }

    @Test
    void openingAndSplitting() {
        DevicesNeeded.assume(3);
        try (Device device = Device.open()) {
            UniqueId id = UniqueId.create();
            argument("ranks: expected at least 1, got 0", () -> Communicator.open(device, id, 0, 0, STANDARD));
            argument("rank: expected 0 to 1, got 2", () -> Communicator.open(device, id, 2, 2, STANDARD));
            argument("bytes: expected 128 bytes, got 3", () -> UniqueId.of(new byte[3]));
            argument(
                    "ranks: expected at most 1024 that are threads of one program, got 40000",
                    () -> Communicator.open(device, UniqueId.create(), 40_000, 0, STANDARD));
            CommunicatorConfig quick =
                    STANDARD.withTimeout(Duration.ofMillis(100)).withName("quick");
            assertThrown(
                    RankFailedException.class,
                    "communicator \"quick\", rank 0 of 3, in open waited 100 ms: ranks 1, 2 did not come",
                    () -> Communicator.open(device, UniqueId.create(), 3, 0, quick));
            argument(
                    "ranks: expected at most 1048576, got 100000000",
                    () -> Communicator.open(device, UniqueId.create(), 100_000_000, 0, STANDARD));
            assertThrown(
                    RankFailedException.class,
                    "communicator \"quick\", rank 0 of 2, in open waited 100 ms: not all ranks called; which did not"
                            + " is unknown, for ranks may be in other processes",
                    () -> Communicator.open(
                            device, UniqueId.of(UniqueId.create().toBytes()), 2, 0, quick));
            UniqueId travelled = UniqueId.of(UniqueId.create().toBytes());
            argument(
                    "checks: expected ARGUMENTS where ranks are in several processes that Ranks has not joined, got FULL",
                    () -> Communicator.open(device, travelled, 1, 0, STANDARD.withChecks(CollectiveChecks.FULL)));
            try (Communicator alone = Communicator.open(device, id, 1, 0, STANDARD)) {
                argument("rank: expected 0 to 0, got 7", () -> id.finish(7));
                argument("rank: expected 0 to 0, got -1", () -> id.goesOn(-1));
                argument("rank: expected -1 to 0, got 2", () -> id.fail(2, new IllegalStateException("on purpose")));
                argument(
                        "color: expected at least 0, got -1; splitWithoutPart leaves this rank out",
                        () -> alone.split(-1, 0, STANDARD));
                argument("excluded: expected 1 to 0 ranks, got 1", () -> alone.shrink(STANDARD, 0));
                assertThrown(
                        IllegalStateException.class,
                        "split: expected a call outside of Communicator.group, got one inside",
                        () -> Communicator.group(() -> alone.split(0, 0, STANDARD)));
                assertThrown(
                        IllegalStateException.class,
                        "toBytes: expected before a rank opens the communicator, got it after: that rank waits for threads"
                                + " of this program; make another with UniqueId.create()",
                        id::toBytes);
                argument(
                        "ranks: expected 1, as another rank said, got 2",
                        () -> Communicator.open(device, id, 2, 1, STANDARD));
                argument(
                        "rank: expected one that has not opened this communicator, got 0 a second time",
                        () -> Communicator.open(device, id, 1, 0, STANDARD));
            }
        }
        Ranks.local(3).each(rank -> {
            argument(
                    "excluded: expected a rank from 0 to 2, got 3",
                    () -> rank.communicator().shrink(STANDARD, 3));
            argument(
                    "excluded: expected other ranks, each once, got [" + rank.index() + "] on rank " + rank.index(),
                    () -> rank.communicator().shrink(STANDARD, rank.index()));
        });
    }

    @Test
    void configurations() {
        argument("timeout: expected 1 ms to 1 day, got PT0S", () -> STANDARD.withTimeout(Duration.ZERO));
        argument(
                "timeout: expected 1 ms to 1 day, got PT0.0009S",
                () -> STANDARD.withTimeout(Duration.ofNanos(900_000)));
        Duration endless = Duration.ofSeconds(Long.MAX_VALUE);
        argument("timeout: expected 1 ms to 1 day, got " + endless, () -> STANDARD.withTimeout(endless));
        argument("timeout: expected 1 ms to 1 day, got PT48H", () -> STANDARD.withTimeout(Duration.ofDays(2)));
        argument("minCtas: expected at least 1, or 0 for NCCL's choice, got -1", () -> STANDARD.withMinCtas(-1));
        argument(
                "maxCtas: expected at least 8, or 0 for NCCL's choice, got 4",
                () -> STANDARD.withMinCtas(8).withMaxCtas(4));
        System.setProperty("chagres.collective.checks", "all");
        try {
            argument(
                    "-Dchagres.collective.checks: expected arguments or full, got \"all\"",
                    CommunicatorConfig::standard);
            System.setProperty("chagres.collective.checks", "full");
            assertEquals(CollectiveChecks.FULL, CommunicatorConfig.standard().checks());
        } finally {
            System.clearProperty("chagres.collective.checks");
        }
        System.setProperty("chagres.collective.calls", "polled");
        try {
            argument(
                    "-Dchagres.collective.calls: expected blocking or non-blocking, got \"polled\"",
                    CommunicatorConfig::standard);
            System.setProperty("chagres.collective.calls", "non-blocking");
            assertEquals(CallMode.NON_BLOCKING, CommunicatorConfig.standard().callMode());
        } finally {
            System.clearProperty("chagres.collective.calls");
        }
    }

    @Test
    void premultipliedSums() {
        Ranks.local(1).each(rank -> {
            Communicator world = rank.communicator();
            Stream stream = rank.device().stream();
            try (Scope scope = rank.device().openScope();
                    Communicator second = world.split(0, 0, STANDARD.withName("second"))) {
                Tensor halves = scope.tensor(DType.FLOAT16, 4);
                argument(
                        "factor: expected a whole number that INT32 holds, got 0.5",
                        () -> world.premultipliedSum(DType.INT32, 0.5));
                argument(
                        "factor: expected a whole number that INT64 holds, got 9.223372036854776E18",
                        () -> world.premultipliedSum(DType.INT64, 0x1p63));
                world.premultipliedSum(DType.INT64, -0x1p63).close();
                argument(
                        "factor: expected a whole number that BYTE holds, got 256.0",
                        () -> world.premultipliedSum(DType.BYTE, 256));
                argument(
                        "dtype: expected no FP8, whose values stand for numbers only together with a scale, got"
                                + " FLOAT8_E4M3",
                        () -> world.premultipliedSum(DType.FLOAT8_E4M3, 1));
                argument(
                        "dtype: expected a type that NCCL has, got INT16",
                        () -> world.premultipliedSum(DType.INT16, 1));
                Tensor shorts = scope.tensor(DType.INT16, 4);
                argument(
                        "tensor: expected elements of a type that NCCL has, got INT16",
                        () -> world.allReduce(shorts, shorts, Reduction.SUM, stream));
                argument(
                        "tensor: expected elements of a type that NCCL has, got INT16",
                        () -> world.broadcast(shorts, shorts, 0, stream));
                PremultipliedSum sum = world.premultipliedSum(DType.FLOAT32, 2);
                argument(
                        "reduction: expected a pre-multiplied sum of FLOAT16, got one of FLOAT32",
                        () -> world.allReduce(halves, halves, sum, stream));
                argument(
                        "reduction: expected a pre-multiplied sum of communicator \"second\", rank 0 of 1, got one of"
                                + " communicator \"world\", rank 0 of 1; make one with Communicator.premultipliedSum",
                        () -> second.allReduce(halves, halves, sum, stream));
                try (Communicator namesake = world.split(0, 0, STANDARD)) {
                    argument(
                            "reduction: expected a pre-multiplied sum of communicator \"world\", rank 0 of 1, got one of"
                                    + " another of that name; make one with Communicator.premultipliedSum",
                            () -> namesake.allReduce(halves, halves, sum, stream));
                }
                sum.close();
                sum.close();
                Tensor singles = scope.tensor(DType.FLOAT32, 4);
                assertThrown(
                        IllegalStateException.class,
                        "reduction: the pre-multiplied sum of FLOAT32 is closed",
                        () -> world.allReduce(singles, singles, sum, stream));
            }
        });
    }

    @Test
    void aGroupWhoseBodyThrowsDoesNothing() {
        DevicesNeeded.assume(2);
        Ranks.local(2).each(rank -> {
            Communicator world = rank.communicator();
            Stream stream = rank.device().stream();
            try (Scope scope = rank.device().openScope()) {
                Tensor tensor = scope.tensor(DType.FLOAT32, 2);
                tensor.set(stream, 1f, 2f);
                assertThrown(
                        IllegalStateException.class,
                        "changed my mind",
                        () -> Communicator.group(() -> {
                            world.allReduce(tensor, tensor, Reduction.SUM, stream);
                            throw new IllegalStateException("changed my mind");
                        }));
                assertArrayEquals(new float[] {1, 2}, tensor.toFloats(stream));
                Communicator.group(() -> world.allReduce(tensor, tensor, Reduction.SUM, stream));
                Communicator.group(() -> {});
                assertArrayEquals(new float[] {2, 4}, tensor.toFloats(stream));
            }
        });
    }
}
