package dev.chagres.nccl;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.CaptureException;
import dev.chagres.bindings.NcclException;
import dev.chagres.bindings.nccl.Nccl;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import java.time.Duration;
import java.util.concurrent.CountDownLatch;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Communicators whose calls wait in NCCL, and those whose calls are polled. */
@Tag("L0")
@Tag("L2")
class CallModeTest {
    private final StoppedClock clock = new StoppedClock();

    @AfterEach
    void goOn() {
        clock.close();
    }

    private static final CommunicatorConfig STANDARD = CommunicatorConfig.standard();
    private static final CommunicatorConfig POLLED = STANDARD.withCallMode(CallMode.NON_BLOCKING);

    private static Tensor tensor(Rank rank, Scope scope, float... values) {
        Tensor tensor = scope.tensor(DType.FLOAT32, values.length);
        tensor.set(rank.device().stream(), values);
        return tensor;
    }

    private static float sum(Communicator communicator, Scope scope, float value) {
        Stream stream = communicator.device().stream();
        Tensor tensor = scope.tensor(DType.FLOAT32, 1);
        tensor.set(stream, value);
        communicator.allReduce(tensor, tensor, Reduction.SUM, stream);
        communicator.synchronize(stream);
        return tensor.toFloats(stream)[0];
    }

    @ParameterizedTest
    @EnumSource
    void collectivesAndGroupsGiveTheSame(CallMode mode) {
        DevicesNeeded.assume(2);
        Ranks.local(2).withConfig(STANDARD.withCallMode(mode)).each(rank -> {
            Communicator world = rank.communicator();
            Stream stream = rank.device().stream();
            try (Scope scope = rank.device().openScope()) {
                int index = rank.index();
                Tensor own = tensor(rank, scope, 10f * index + 1, 10f * index + 2);
                Tensor two = tensor(rank, scope, 0, 0);
                Tensor one = tensor(rank, scope, 0);
                Tensor four = tensor(rank, scope, 0, 0, 0, 0);
                world.allReduce(own, two, Reduction.SUM, stream);
                assertArrayEquals(new float[] {12, 14}, two.toFloats(stream));
                world.allGather(own, four, stream);
                assertArrayEquals(new float[] {1, 2, 11, 12}, four.toFloats(stream));
                world.reduceScatter(own, one, Reduction.SUM, stream);
                assertArrayEquals(new float[] {12 + 2 * index}, one.toFloats(stream));
                world.broadcast(own, two, 1, stream);
                assertArrayEquals(new float[] {11, 12}, two.toFloats(stream));
                world.reduce(own, two, Reduction.MAX, 0, stream);
                assertArrayEquals(new float[] {11, 12}, two.toFloats(stream));
                world.allToAll(own, two, stream);
                assertArrayEquals(new float[] {1 + index, 11 + index}, two.toFloats(stream));
                try (PremultipliedSum half = world.premultipliedSum(DType.FLOAT32, 0.5)) {
                    world.allReduce(own, two, half, stream);
                    assertArrayEquals(new float[] {6, 7}, two.toFloats(stream));
                }
                Communicator.group(() -> {
                    world.send(own, 1 - index, stream);
                    world.receive(two, 1 - index, stream);
                    world.allReduce(one, one, Reduction.SUM, stream);
                });
                world.synchronize(stream);
                assertArrayEquals(new float[] {26}, one.toFloats(stream));
                assertArrayEquals(new float[] {11 - 10f * index, 12 - 10f * index}, two.toFloats(stream));
                try (CollectiveMemory memory = world.allocate(1024, stream)) {
                    Tensor part = memory.scope().tensor(DType.FLOAT32, 1);
                    part.set(stream, index + 1f);
                    world.allReduce(part, part, Reduction.SUM, stream);
                    assertEquals(3, part.toFloats(stream)[0]);
                }
            }
        });
    }

    @ParameterizedTest
    @EnumSource
    void communicatorsAreMadeFromOthersInEitherMode(CallMode mode) {
        DevicesNeeded.assume(3);
        CommunicatorConfig made = STANDARD.withCallMode(mode);
        Ranks.local(3).withConfig(POLLED).each(rank -> {
            Communicator world = rank.communicator();
            try (Scope scope = rank.device().openScope();
                    Communicator part = world.split(rank.index() == 2 ? 1 : 0, 0, made)) {
                assertEquals(rank.index() == 2 ? 1 : 2, sum(part, scope, 1));
                if (rank.index() != 2) {
                    try (Communicator rest = world.shrink(made, 2)) {
                        assertEquals(2, sum(rest, scope, 1));
                    }
                }
            }
        });
    }

    @Test
    void ranksOfOneCommunicatorMayDiffer() {
        DevicesNeeded.assume(2);
        Ranks.local(2).each(rank -> {
            CommunicatorConfig config = rank.index() == 0 ? POLLED : STANDARD;
            try (Scope scope = rank.device().openScope();
                    Communicator mixed = rank.communicator().split(0, rank.index(), config)) {
                assertEquals(2, sum(mixed, scope, 1));
            }
        });
    }

    @Test
    void aGroupOfBothModesIsRefused() {
        DevicesNeeded.assume(1);
        Ranks.local(1).each(rank -> {
            Stream stream = rank.device().stream();
            try (Scope scope = rank.device().openScope();
                    Communicator polled = rank.communicator().split(0, 0, POLLED.withName("polled"))) {
                Tensor tensor = tensor(rank, scope, 3);
                assertThrown(
                        IllegalArgumentException.class,
                        "group: expected communicators of one callMode, got communicator \"world\", rank 0 of 1 with"
                                + " BLOCKING and communicator \"polled\", rank 0 of 1 with NON_BLOCKING; NCCL runs a"
                                + " group in one mode",
                        () -> Communicator.group(() -> {
                            rank.communicator().allReduce(tensor, tensor, Reduction.SUM, stream);
                            polled.allReduce(tensor, tensor, Reduction.SUM, stream);
                        }));
                assertEquals(4, sum(polled, scope, 4));
                assertEquals(5, sum(rank.communicator(), scope, 5));
            }
        });
    }

    @Test
    void aStreamThatCapturesIsRefused() {
        DevicesNeeded.assume(1);
        Ranks.local(1).withConfig(POLLED).each(rank -> {
            Stream stream = rank.device().stream();
            try (Scope scope = rank.device().openScope()) {
                Tensor tensor = tensor(rank, scope, 3);
                assertThrown(
                        CaptureException.class,
                        "callMode: expected BLOCKING for ncclAllReduce while a stream captures, got NON_BLOCKING in"
                                + " communicator \"world\", rank 0 of 1; open the communicator with"
                                + " CommunicatorConfig.withCallMode(CallMode.BLOCKING)",
                        () -> stream.capture(
                                () -> rank.communicator().allReduce(tensor, tensor, Reduction.SUM, stream)));
            }
        });
    }

    @Test
    void aRankThatIsSilentIsNamed() {
        DevicesNeeded.assume(2);
        CountDownLatch ended = new CountDownLatch(1);
        Ranks.local(2).withConfig(POLLED.withTimeout(Duration.ofMillis(300))).each(rank -> {
            if (rank.index() == 0) {
                clock.pass();
                try (Scope scope = rank.device().openScope()) {
                    RankFailedException failure =
                            assertThrows(RankFailedException.class, () -> sum(rank.communicator(), scope, 1));
                    assertTrue(failure.getMessage().contains("rank 1"), failure.getMessage());
                }
                ended.countDown();
            }
            ended.await();
        });
    }

    /** A call that NCCL itself refuses would leave its non-blocking communicators failed. */
    @ParameterizedTest
    @EnumSource
    void aGroupWhoseBodyThrowsLeavesItsCommunicatorsAsTheyWere(CallMode mode) {
        DevicesNeeded.assume(2);
        Ranks.local(2).withConfig(STANDARD.withCallMode(mode)).each(rank -> {
            Communicator world = rank.communicator();
            Stream stream = rank.device().stream();
            try (Scope scope = rank.device().openScope();
                    Communicator part = world.split(0, rank.index(), world.config())) {
                Tensor tensor = tensor(rank, scope, 3);
                assertThrown(
                        UnsupportedOperationException.class,
                        "the body's own",
                        () -> Communicator.group(() -> {
                            world.allReduce(tensor, tensor, Reduction.SUM, stream);
                            part.allReduce(tensor, tensor, Reduction.SUM, stream);
                            throw new UnsupportedOperationException("the body's own");
                        }));
                world.check();
                assertEquals(3, tensor.toFloats(stream)[0]);
                assertEquals(2, sum(world, scope, 1));
                assertEquals(4, sum(part, scope, 2));
            }
        });
    }

    @Test
    void aRefusedCallLeavesAFailedCommunicatorThatCanBeClosed() {
        DevicesNeeded.assume(1);
        Ranks.local(1).each(rank -> {
            Stream stream = rank.device().stream();
            try (Scope scope = rank.device().openScope();
                    Communicator polled = rank.communicator().split(0, 0, POLLED)) {
                Tensor tensor = tensor(rank, scope, 3);
                // The api checks arguments itself: only a test gets here.
                int refused = NcclCalls.call(
                        Operation.BROADCAST,
                        tensor.address(),
                        tensor.address(),
                        1,
                        CollectiveArguments.type(DType.FLOAT32),
                        0,
                        -1,
                        polled.endpoint().handle(),
                        stream.handle());
                assertEquals(Nccl.ncclInvalidArgument(), refused);
                assertThrows(NcclException.class, polled::check);
                assertThrows(NcclException.class, () -> polled.allReduce(tensor, tensor, Reduction.SUM, stream));
                assertThrows(NcclException.class, polled::check);
            }
            // Nothing is left open on this thread.
            try (Scope scope = rank.device().openScope()) {
                assertEquals(7, sum(rank.communicator(), scope, 7));
            }
        });
    }

    @ParameterizedTest
    @EnumSource
    void theWayOutIsToRevokeAndShrink(CallMode mode) {
        DevicesNeeded.assume(3);
        CountDownLatch met = new CountDownLatch(3);
        CountDownLatch summed = new CountDownLatch(2);
        Ranks.local(3).withConfig(STANDARD.withCallMode(mode)).each(rank -> {
            Communicator world = rank.communicator();
            try (Scope scope = rank.device().openScope()) {
                assertEquals(3, sum(world, scope, 1));
                met.countDown();
                met.await();
                if (rank.index() == 2) {
                    summed.await(); // It is silent.
                    return;
                }
                if (rank.index() == 0) {
                    world.revoke();
                }
                assertThrows(RankFailedException.class, () -> sum(world, scope, 1));
                try (Communicator rest = world.shrink(world.config().withName("rest"), 2)) {
                    assertEquals(4, sum(rest, scope, 2));
                    summed.countDown();
                    summed.await();
                }
            }
        });
    }

    /** NCCL makes no window of ordinary memory; with polled calls it must not be asked for one. */
    @ParameterizedTest
    @EnumSource
    void registeredMemoryOfEitherKind(CallMode mode) {
        DevicesNeeded.assume(2);
        Ranks.local(2).withConfig(STANDARD.withCallMode(mode)).each(rank -> {
            Communicator world = rank.communicator();
            Stream stream = rank.device().stream();
            try (Scope scope = rank.device().openScope();
                    CollectiveMemory memory = world.allocate(4096, stream)) {
                Tensor ordinary = tensor(rank, scope, 3);
                try (Registration registration = world.register(ordinary)) {
                    assertEquals(Registration.Kind.BUFFER, registration.kind());
                    world.allReduce(ordinary, ordinary, Reduction.SUM, stream);
                    assertEquals(6, ordinary.toFloats(stream)[0]);
                }
                Tensor own = memory.scope().tensor(DType.FLOAT32, 1);
                own.set(stream, 5f);
                world.allReduce(own, own, Reduction.SUM, stream);
                assertEquals(10, own.toFloats(stream)[0]);
                try (Registration again = world.register(own)) {
                    assertEquals(memory.kind(), again.kind());
                }
                world.check();
            }
        });
    }

    @ParameterizedTest
    @EnumSource
    void closing(CallMode mode) {
        DevicesNeeded.assume(2);
        CountDownLatch ended = new CountDownLatch(1);
        int watched = Watchdog.watched();
        Ranks.local(2).withConfig(STANDARD.withCallMode(mode)).each(rank -> {
            Communicator world = rank.communicator();
            CommunicatorConfig hasty = world.config().withTimeout(Duration.ofMillis(500));
            try (Scope scope = rank.device().openScope();
                    Communicator part = world.split(0, rank.index(), world.config())) {
                assertEquals(2, sum(part, scope, 1));
                Throwable[] thrown = new Throwable[1];
                Thread other = Thread.ofPlatform().start(() -> {
                    try {
                        part.close();
                    } catch (RuntimeException refused) {
                        thrown[0] = refused;
                    }
                });
                other.join();
                assertInstanceOf(WrongThreadException.class, thrown[0]);
                part.close();
                part.close();
                assertThrows(IllegalStateException.class, () -> sum(part, scope, 1));
            }
            try (Scope scope = rank.device().openScope()) {
                Communicator late = world.split(0, rank.index(), hasty);
                if (rank.index() == 0) {
                    clock.pass();
                    assertThrows(RankFailedException.class, () -> sum(late, scope, 1));
                    long begin = System.nanoTime();
                    late.close(); // It waits neither for the other rank nor for the call.
                    assertTrue(System.nanoTime() - begin < 10_000_000_000L);
                    ended.countDown();
                }
                ended.await();
                late.close();
            }
        });
        assertTrue(Watchdog.watched() <= watched, Watchdog.watched() + " communicators are watched");
    }

    @Test
    void openingEndsAfterTheTimeoutOnTheCallingThread() {
        DevicesNeeded.assume(2);
        goOn(); // No rank that is watched over is open, with which time would pass.
        // As another process gets it: nothing in this program knows who else has it.
        UniqueId id = UniqueId.of(UniqueId.create().toBytes());
        try (Device device = Device.open()) {
            RankFailedException failure = assertThrows(
                    RankFailedException.class,
                    () -> new Opening(device.index(), id, 2, 0, POLLED).within(Duration.ofMillis(300)));
            assertEquals(
                    "communicator \"world\", rank 0 of 2, in open waited 300 ms: not all ranks called; which did not is"
                            + " unknown, for ranks may be in other processes",
                    failure.getMessage());
        }
    }
}
