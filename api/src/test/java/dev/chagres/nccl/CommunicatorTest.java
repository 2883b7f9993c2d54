package dev.chagres.nccl;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Graph;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.launch.Ranks;
import java.time.Duration;
import java.util.SplittableRandom;
import java.util.concurrent.CountDownLatch;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Communicators: made from others, captured, without garbage, closed. */
@Tag("L0")
@Tag("L2")
class CommunicatorTest {
    private static final CommunicatorConfig STANDARD = CommunicatorConfig.standard();

    @ParameterizedTest
    @ValueSource(strings = {"0", " 0", "0x0", "no"})
    void aVariableByWhichCallsReturnTooEarlyIsRefused(String value) {
        assertThrown(
                IllegalStateException.class,
                "NCCL_COMM_BLOCKING: expected 1, or the variable unset, got \"" + value
                        + "\", with which NCCL's calls return before they are done; start the program without it,"
                        + " or choose CallMode.NON_BLOCKING",
                () -> Membership.ensureAgreed(value, CallMode.BLOCKING));
        Membership.ensureAgreed(value, CallMode.NON_BLOCKING);
    }

    @Test
    void aVariableByWhichCallsWaitIsTaken() {
        Membership.ensureAgreed(null, CallMode.BLOCKING);
        Membership.ensureAgreed("", CallMode.BLOCKING);
        Membership.ensureAgreed("1", CallMode.BLOCKING);
        Membership.ensureAgreed("0x1", CallMode.BLOCKING);
        Membership.ensureAgreed("-1", CallMode.BLOCKING);
    }

    @Test
    void aVariableByWhichCallsWaitIsRefusedForThoseThatDoNot() {
        Membership.ensureAgreed(null, CallMode.NON_BLOCKING);
        Membership.ensureAgreed("", CallMode.NON_BLOCKING);
        assertThrown(
                IllegalStateException.class,
                "NCCL_COMM_BLOCKING: expected 0, or the variable unset, for CallMode.NON_BLOCKING, got \"1\"; start the"
                        + " program without it, or choose CallMode.BLOCKING",
                () -> Membership.ensureAgreed("1", CallMode.NON_BLOCKING));
    }

    private static float sum(Communicator communicator, Scope scope, float value) {
        Stream stream = communicator.device().stream();
        Tensor tensor = scope.tensor(DType.FLOAT32, 1);
        tensor.set(stream, value);
        communicator.allReduce(tensor, tensor, Reduction.SUM, stream);
        communicator.synchronize(stream);
        return tensor.toFloats(stream)[0];
    }

    /** What ranks share of communicators that are closed goes: a program may split at each step. */
    @Test
    void nothingOfClosedCommunicatorsIsKept() {
        DevicesNeeded.assume(2);
        CountDownLatch closed = new CountDownLatch(2);
        Ranks.local(2).each(rank -> {
            Communicator world = rank.communicator();
            ThreadRanks meeting = world.endpoint().meeting;
            for (int i = 0; i < 20; i++) {
                try (Communicator half = world.split(rank.index(), 0, STANDARD);
                        Communicator both = world.split(0, rank.index(), STANDARD);
                        Communicator below = both.split(0, rank.index(), STANDARD)) {
                    assertEquals(1, half.ranks());
                    assertEquals(2, below.ranks());
                    assertEquals(1, both.endpoint().meeting.descendants.all().size());
                }
            }
            closed.countDown();
            closed.await();
            assertEquals(0, meeting.descendants.all().size());
        });
    }

    @Test
    void splitsByColorAndKey() {
        DevicesNeeded.assume(3);
        Ranks.local(3).each(rank -> {
            try (Scope scope = rank.device().openScope()) {
                Communicator world = rank.communicator();
                if (rank.index() == 1) {
                    world.splitWithoutPart();
                } else {
                    try (Communicator part = world.split(4, 9 - rank.index(), STANDARD.withName("ends"))) {
                        assertEquals(2, part.ranks());
                        assertEquals(rank.index() == 2 ? 0 : 1, part.rank());
                        assertEquals("communicator \"ends\", rank " + part.rank() + " of 2", part.toString());
                        assertEquals(2, sum(part, scope, rank.index()));
                    }
                }
                assertEquals(3, sum(world, scope, 1));
            }
        });
    }

    @Test
    void shrinksAfterARevoke() {
        DevicesNeeded.assume(3);
        CountDownLatch summed = new CountDownLatch(3);
        Ranks.local(3).each(rank -> {
            try (Scope scope = rank.device().openScope()) {
                Communicator world = rank.communicator();
                assertEquals(3, sum(world, scope, 1));
                summed.countDown();
                summed.await();
                if (rank.index() == 1) {
                    world.revoke();
                    return;
                }
                RankFailedException failure =
                        assertThrows(RankFailedException.class, () -> repeat(() -> sum(world, scope, 1)));
                assertTrue(
                        failure.getMessage()
                                .matches(
                                        "communicator \"world\", rank . of 3, (in allReduce of 1 FLOAT32, SUM waited \\d+ ms|"
                                                + "\\d+ ms after allReduce of 1 FLOAT32, SUM): rank 1 revoked the communicator"),
                        failure.getMessage());
                try (Communicator rest = world.shrink(STANDARD.withName("rest"), 1)) {
                    assertEquals(2, rest.ranks());
                    assertEquals(2, sum(rest, scope, rank.index()));
                    assertEquals(2, sum(rest, scope, 1));
                }
            }
        });
    }

    @Test
    void shrinkNamesARankThatDoesNotCome() {
        DevicesNeeded.assume(3);
        CommunicatorConfig patient = STANDARD.withTimeout(Duration.ofMillis(200));
        CountDownLatch late = new CountDownLatch(1);
        Ranks.local(3).each(rank -> {
            if (rank.index() == 2) {
                RankFailedException failure = assertThrows(
                        RankFailedException.class, () -> rank.communicator().shrink(patient, 0));
                late.countDown();
                assertEquals(
                        "communicator \"world\", rank 2 of 3, in shrink waited 200 ms: rank 1 did not come",
                        failure.getMessage());
            }
            late.await();
        });
    }

    /** A rank that is revoked may have a call left before it hears of that. */
    private static void repeat(Runnable call) {
        for (int i = 0; i < 1_000_000; i++) {
            call.run();
        }
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2, 4})
    void replaysEqualEnqueuedCollectives(int ranks) {
        DevicesNeeded.assume(ranks);
        Ranks.local(ranks).each(rank -> {
            try (Scope scope = rank.device().openScope()) {
                Stream stream = rank.device().stream();
                Communicator communicator = rank.communicator();
                Tensor enqueued = scope.tensor(DType.FLOAT32, 33);
                Tensor replayed = scope.tensor(DType.FLOAT32, 33);
                Tensor gathered = scope.tensor(DType.FLOAT32, 33L * ranks);
                try (PremultipliedSum sum = communicator.premultipliedSum(DType.FLOAT32, 1.0 / (1 + rank.index()));
                        Graph graph = stream.capture(() -> {
                            communicator.allReduce(replayed, replayed, sum, stream);
                            communicator.allGather(replayed, gathered, stream);
                        })) {
                    SplittableRandom random = new SplittableRandom(7);
                    for (int step = 0; step < 1000; step++) {
                        float[] values = new float[33];
                        for (int i = 0; i < values.length; i++) {
                            values[i] = (float) random.nextDouble() + rank.index();
                        }
                        enqueued.set(stream, values);
                        replayed.set(stream, values);
                        communicator.allReduce(enqueued, enqueued, sum, stream);
                        graph.launch();
                        assertArrayEquals(enqueued.toFloats(stream), replayed.toFloats(stream));
                    }
                    float[] all = gathered.toFloats(stream);
                    assertEquals(enqueued.toFloats(stream)[32], all[all.length - 1]);
                }
            }
        });
    }

    @Test
    void steadyCollectivesMakeNoGarbage() {
        Ranks.local(1).each(rank -> {
            try (Scope scope = rank.device().openScope()) {
                Stream stream = rank.device().stream();
                Communicator communicator = rank.communicator();
                Tensor a = scope.tensor(DType.BFLOAT16, 64);
                Tensor b = scope.tensor(DType.BFLOAT16, 64);
                a.zero(stream);
                Runnable transfer = () -> {
                    communicator.send(a, 0, stream);
                    communicator.receive(b, 0, stream);
                };
                Allocation.assertNone("allReduce", () -> communicator.allReduce(a, b, Reduction.AVERAGE, stream));
                Allocation.assertNone("allGather", () -> communicator.allGather(a, b, stream));
                Allocation.assertNone("reduceScatter", () -> communicator.reduceScatter(a, b, Reduction.SUM, stream));
                Allocation.assertNone("broadcast", () -> communicator.broadcast(a, b, 0, stream));
                Allocation.assertNone("group", () -> Communicator.group(transfer));
                Allocation.assertNone("synchronize", () -> communicator.synchronize(stream));
            }
        });
    }

    @Test
    void configurationsTravelToNccl() {
        DevicesNeeded.assume(2);
        CommunicatorConfig config = STANDARD.withName("few")
                .withMinCtas(1)
                .withMaxCtas(4)
                .withCtaPolicy(CtaPolicy.EFFICIENCY)
                .withTimeout(Duration.ofSeconds(30))
                .withChecks(CollectiveChecks.ARGUMENTS);
        Ranks.local(2).withConfig(config).each(rank -> {
            assertSame(config, rank.communicator().config());
            try (Scope scope = rank.device().openScope()) {
                assertEquals(3, sum(rank.communicator(), scope, rank.index() + 1f));
            }
        });
    }

    @Test
    void memoryIsRegisteredOneWayOrTheOther() {
        DevicesNeeded.assume(2);
        Ranks.local(2).each(rank -> {
            try (Scope scope = rank.device().openScope()) {
                Tensor tensor = scope.tensor(DType.FLOAT32, 1024);
                try (Registration registration = rank.communicator().register(tensor)) {
                    // Scopes take memory from cudaMalloc, of which NCCL makes no window.
                    assertEquals(Registration.Kind.BUFFER, registration.kind());
                    tensor.zero(rank.device().stream());
                    rank.communicator().allReduce(tensor, tensor, Reduction.SUM, rank.device().stream());
                }
            }
        });
    }

    @Test
    void closingTheDeviceClosesItsCommunicators() {
        Device device = Device.open();
        Communicator communicator = Communicator.open(device, UniqueId.create(), 1, 0, STANDARD);
        PremultipliedSum sum = communicator.premultipliedSum(DType.FLOAT32, 2);
        communicator.check();
        device.close();
        communicator.close();
        sum.close();
    }

    @Test
    void anIdentifierTravelsAsBytes() {
        UniqueId id = UniqueId.create();
        byte[] bytes = id.toBytes();
        assertEquals(128, bytes.length);
        try (Device device = Device.open();
                Communicator communicator = Communicator.open(device, UniqueId.of(bytes), 1, 0, STANDARD);
                Scope scope = device.openScope()) {
            assertEquals(5, sum(communicator, scope, 5));
        }
    }
}
