package dev.chagres.nccl;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Graph;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.CaptureException;
import dev.chagres.bindings.NcclException;
import dev.chagres.bindings.Provider;
import dev.chagres.bindings.nccl.Nccl;
import dev.chagres.bindings.nccl.ncclConfig_v22800;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Memory that NCCL has taken: collectives compute the same, and nothing is left behind. */
@Tag("L0")
@Tag("L2")
class CollectiveMemoryTest {
    private static final int COUNT = 1000;
    /** So many that NCCL registers what it moves: its other protocols copy. */
    private static final int LARGE = 4 << 20;

    private static float[] values(int rank, int times) {
        float[] values = new float[COUNT];
        for (int i = 0; i < COUNT; i++) {
            values[i] = times * (1000f * rank + i);
        }
        return values;
    }

    private static float[] all(int ranks, int times) {
        float[] all = new float[ranks * COUNT];
        for (int rank = 0; rank < ranks; rank++) {
            System.arraycopy(values(rank, times), 0, all, rank * COUNT, COUNT);
        }
        return all;
    }

    @Test
    void bytesOfTensors() {
        assertEquals(256, CollectiveMemory.byteSizeOf(DType.FLOAT32, 0));
        assertEquals(512, CollectiveMemory.byteSizeOf(DType.FLOAT32, 65));
        long most = (Long.MAX_VALUE - 256) / 4;
        assertEquals(Long.MAX_VALUE / 256 * 256, CollectiveMemory.byteSizeOf(DType.FLOAT32, most));
        for (long count : new long[] {-1, most + 1, Long.MAX_VALUE}) {
            assertThrown(
                    IllegalArgumentException.class,
                    "count: expected 0 to " + most + ", got " + count,
                    () -> CollectiveMemory.byteSizeOf(DType.FLOAT32, count));
        }
    }

    @Test
    void example() {
        DevicesNeeded.assume(2);
        Ranks.local(2).each(rank -> {
            Communicator communicator = rank.communicator();
            Stream stream = rank.device().stream();
            // @start region="memory"
            long bytes = 256 + 4L * COUNT * (1 + rank.count());
            try (CollectiveMemory memory = communicator.allocate(bytes, stream)) {
                Tensor part = memory.scope().tensor(DType.FLOAT32, COUNT);
                Tensor whole = memory.scope().tensor(DType.FLOAT32, rank.count() * COUNT);
                part.set(stream, values(rank.index(), 1));
                communicator.allGather(part, whole, stream);
                assertArrayEquals(all(rank.count(), 1), whole.toFloats(stream));
            }
            // @end
        });
    }

    private static void collectives(Rank rank) {
        Stream stream = rank.device().stream();
        Communicator communicator = rank.communicator();
        long held = rank.device().heldBytes();
        try (CollectiveMemory memory = communicator.allocate(8L * COUNT * (1 + rank.count()) + 1024, stream)) {
            if (Provider.current() == Provider.REFERENCE) {
                assertEquals(Registration.Kind.WINDOW, memory.kind());
            }
            assertEquals(held + memory.byteSize(), rank.device().heldBytes());
            Scope scope = memory.scope();
            for (int times = 1; times < 4; times++) {
                Tensor part = scope.tensor(DType.FLOAT32, COUNT);
                Tensor whole = scope.tensor(DType.FLOAT32, (long) rank.count() * COUNT);
                part.set(stream, values(rank.index(), times));
                communicator.allGather(part, whole, stream);
                assertArrayEquals(all(rank.count(), times), whole.toFloats(stream));
                communicator.reduceScatter(whole, part, Reduction.SUM, stream);
                float[] sum = values(rank.index(), times * rank.count());
                assertArrayEquals(sum, part.toFloats(stream), 1e-6f * COUNT * 1000 * times);
                scope.restart();
            }
        }
        assertEquals(held, rank.device().heldBytes());
    }

    @Test
    void aRankThatDoesNotComeIsNamed() {
        DevicesNeeded.assume(2);
        CommunicatorConfig config = CommunicatorConfig.standard().withTimeout(Duration.ofSeconds(2));
        RankFailedException failed = assertThrows(
                RankFailedException.class,
                () -> Ranks.local(2).withConfig(config).each(rank -> {
                    if (rank.index() == 0) {
                        rank.communicator().allocate(1024, rank.device().stream());
                    } else {
                        Thread.sleep(10_000); // It is interrupted when the other one has failed.
                    }
                }));
        assertEquals(List.of(1), failed.ranks());
        assertTrue(
                String.valueOf(failed.getMessage()).contains("in register of 1024 BYTE waited "), failed.getMessage());
    }

    @Test
    void otherSizesAreToldWhereCallsAreCompared() {
        DevicesNeeded.assume(2);
        CommunicatorConfig config = CommunicatorConfig.standard().withChecks(CollectiveChecks.FULL);
        RankFailedException failed = assertThrows(
                RankFailedException.class,
                () -> Ranks.local(2)
                        .withConfig(config)
                        .each(rank ->
                                rank.communicator().allocate(1024L * (1 + rank.index()), rank.device().stream())));
        String text = failed.getMessage() + " " + failed.getCause();
        assertTrue(text.contains("register of 1024 BYTE") && text.contains("register of 2048 BYTE"), text);
    }

    /** On GPUs ranks would write into the wrong tensors. */
    @Test
    void tensorsAtOtherPlacesAreRefused() {
        assumeTrue(Provider.current() == Provider.REFERENCE, "NCCL does not compare places");
        RankFailedException failed = assertThrows(
                RankFailedException.class,
                () -> Ranks.local(2).each(rank -> {
                    Stream stream = rank.device().stream();
                    CollectiveMemory memory = rank.communicator().allocate(16L * COUNT, stream);
                    Tensor first = memory.scope().tensor(DType.FLOAT32, 64 * (1L + rank.index()));
                    Tensor whole = memory.scope().tensor(DType.FLOAT32, COUNT);
                    Tensor part = memory.scope().tensor(DType.FLOAT32, COUNT / 2);
                    first.zero(stream);
                    part.zero(stream);
                    rank.communicator().allGather(part, whole, stream);
                }));
        String text = failed.getMessage() + " " + failed.getCause();
        assertTrue(text.contains("symmetric memory must lie at the same place of the same window on all ranks"), text);
    }

    /** What lies in the memory stays when the communicator that knew it is closed, and another one gets to know it. */
    @Test
    void anotherCommunicatorGetsToKnowIt() {
        DevicesNeeded.assume(2);
        Ranks.local(2).each(rank -> {
            Stream stream = rank.device().stream();
            Communicator world = rank.communicator();
            Communicator first = world.split(0, rank.index(), world.config().withName("first"));
            long bytes = CollectiveMemory.byteSizeOf(DType.FLOAT32, COUNT)
                    + CollectiveMemory.byteSizeOf(DType.FLOAT32, 2 * COUNT);
            try (CollectiveMemory memory = first.allocate(bytes, stream)) {
                assertEquals(bytes, memory.byteSize());
                Tensor part = memory.scope().tensor(DType.FLOAT32, COUNT);
                Tensor whole = memory.scope().tensor(DType.FLOAT32, 2 * COUNT);
                part.set(stream, values(rank.index(), 3));
                memory.deregister();
                memory.deregister();
                first.close();
                assertFails(
                        IllegalStateException.class,
                        "kind: expected memory that a communicator knows, got " + memory.byteSize() + " bytes of "
                                + rank.device()
                                + " that no communicator knows; call register(communicator) on each rank",
                        memory::kind);
                world.allGather(part, whole, stream);
                assertArrayEquals(all(2, 3), whole.toFloats(stream));
                whole.zero(stream);
                memory.register(world);
                world.allGather(part, whole, stream);
                assertArrayEquals(all(2, 3), whole.toFloats(stream));
                assertEquals(memory.byteSize() + " bytes of " + rank.device() + " in a " + memory.kind(), memory + "");
                memory.close();
                assertFails(IllegalStateException.class, memory + " is closed", () -> memory.register(world));
            }
        });
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2, 3, 4, 8})
    void collectivesComputeTheSame(int ranks) {
        DevicesNeeded.assume(ranks);
        Ranks.local(ranks).each(CollectiveMemoryTest::collectives);
    }

    @Test
    void aGraphKeepsTheMemoryUntilItIsClosed() {
        DevicesNeeded.assume(2);
        Ranks.local(2).each(rank -> {
            Device device = rank.device();
            Stream stream = device.stream();
            long held = device.heldBytes();
            CollectiveMemory memory = rank.communicator().allocate(16L * COUNT, stream);
            Tensor part = memory.scope().tensor(DType.FLOAT32, COUNT);
            Tensor whole = memory.scope().tensor(DType.FLOAT32, 2 * COUNT);
            part.set(stream, values(rank.index(), 1));
            rank.communicator().allGather(part, whole, stream);
            try (Graph graph = stream.capture(() -> rank.communicator().allGather(part, whole, stream))) {
                part.set(stream, values(rank.index(), 5));
                graph.launch();
                assertArrayEquals(all(2, 5), whole.toFloats(stream));
                long withGraph = device.heldBytes();
                assertTrue(withGraph >= held + memory.byteSize());
                memory.close();
                assertEquals(withGraph, device.heldBytes());
            }
            assertEquals(held, device.heldBytes());
        });
    }

    /** With some NCCL a collective would read at address 0 then: transfers are refused there, in the memory's communicator alone. */
    @Test
    void collectivesFollowTransfers() {
        DevicesNeeded.assume(2);
        Ranks.local(2).each(rank -> {
            Stream stream = rank.device().stream();
            Communicator world = rank.communicator();
            long size = CollectiveMemory.byteSizeOf(DType.FLOAT32, LARGE);
            try (Communicator other =
                            world.split(0, rank.index(), world.config().withName("other"));
                    CollectiveMemory memory = world.allocate(3 * size, stream)) {
                Tensor x = memory.scope().tensor(DType.FLOAT32, LARGE);
                Tensor y = memory.scope().tensor(DType.FLOAT32, LARGE);
                Tensor z = memory.scope().tensor(DType.FLOAT32, LARGE);
                x.set(stream, filled(rank.index() + 1));
                if (RegisteredMemory.isAffected()) {
                    transfersAreRefused(world, x, y, stream);
                }
                Communicator transferring = RegisteredMemory.isAffected() ? other : world;
                int peer = 1 - rank.index();
                Communicator.group(() -> {
                    transferring.send(x, peer, stream);
                    transferring.receive(y, peer, stream);
                });
                assertArrayEquals(filled(peer + 1), y.toFloats(stream));
                transferring.allToAll(x, z, stream);
                for (Reduction reduction : List.of(Reduction.SUM, Reduction.MAX)) {
                    world.allReduce(x, z, reduction, stream);
                    assertArrayEquals(filled(reduction == Reduction.SUM ? 3 : 2), z.toFloats(stream));
                    world.allReduce(y, y, Reduction.AVERAGE, stream);
                    assertArrayEquals(filled(1.5f), y.toFloats(stream));
                }
                world.broadcast(x, z, 1, stream);
                assertArrayEquals(filled(2), z.toFloats(stream));
                world.allGather(memory.scope().view(x, 0, LARGE / 2), y, stream);
                assertEquals(1, y.toFloats(stream)[LARGE / 2 - 1]);
                assertEquals(2, y.toFloats(stream)[LARGE / 2]);
            }
        });
    }

    private static float[] filled(float value) {
        float[] values = new float[LARGE];
        Arrays.fill(values, value);
        return values;
    }

    private static void transfersAreRefused(Communicator world, Tensor x, Tensor y, Stream stream) {
        String text = ": expected memory other than the communicator's CollectiveMemory, for after a transfer NCCL "
                + UniqueId.ncclVersion()
                + " reads at address 0 in a collective of that memory; copy it into a tensor of"
                + " another scope, got FLOAT32[" + LARGE + "]";
        assertFails(IllegalArgumentException.class, "tensor" + text, () -> world.send(x, 0, stream));
        assertFails(IllegalArgumentException.class, "tensor" + text, () -> world.receive(x, 0, stream));
        assertFails(IllegalArgumentException.class, "send" + text, () -> world.allToAll(x, y, stream));
        assertFails(IllegalArgumentException.class, "send" + text, () -> world.gather(x, y, 0, stream));
        assertFails(IllegalArgumentException.class, "receive" + text, () -> world.scatter(x, y, 0, stream));
    }

    @Test
    void whichVersionsLoseAddresses() {
        assertEquals(
                List.of(false, true, true, true, false, false),
                IntStream.of(22_304, 22_400, 22_803, 22_809, 22_902, 23_004)
                        .mapToObj(RegisteredMemory::isWrong)
                        .toList());
    }

    /** What NCCL is told of a communicator: the thread blocks and the policy where they were chosen, its own choice else. */
    @Test
    void theConfigurationReachesNccl() {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment standard = Membership.write(CommunicatorConfig.standard(), arena);
            assertEquals(Integer.MIN_VALUE, ncclConfig_v22800.minCTAs(standard));
            assertEquals(Integer.MIN_VALUE, ncclConfig_v22800.maxCTAs(standard));
            assertEquals(Nccl.NCCL_CTA_POLICY_DEFAULT(), ncclConfig_v22800.CTAPolicy(standard));
            assertEquals("world", ncclConfig_v22800.commName(standard).getString(0));
            assertEquals(1, ncclConfig_v22800.blocking(standard));
            for (CtaPolicy policy : CtaPolicy.values()) {
                CommunicatorConfig config = CommunicatorConfig.standard()
                        .withMinCtas(3)
                        .withMaxCtas(7)
                        .withCtaPolicy(policy)
                        .withName("few");
                MemorySegment struct = Membership.write(config, arena);
                assertEquals(3, ncclConfig_v22800.minCTAs(struct));
                assertEquals(7, ncclConfig_v22800.maxCTAs(struct));
                assertEquals(
                        switch (policy) {
                            case DEFAULT -> Nccl.NCCL_CTA_POLICY_DEFAULT();
                            case EFFICIENCY -> Nccl.NCCL_CTA_POLICY_EFFICIENCY();
                            case ZERO -> Nccl.NCCL_CTA_POLICY_ZERO();
                        },
                        ncclConfig_v22800.CTAPolicy(struct));
                assertEquals("few", ncclConfig_v22800.commName(struct).getString(0));
            }
        }
    }

    /** Communicators that were made with them compute, however they were made. */
    @Test
    void chosenThreadBlocksCompute() {
        DevicesNeeded.assume(2);
        CommunicatorConfig config = CommunicatorConfig.standard().withMinCtas(1).withMaxCtas(2);
        Ranks.local(2).withConfig(config).each(rank -> {
            collectives(rank);
            try (Communicator split = rank.communicator()
                            .split(
                                    0,
                                    rank.index(),
                                    config.withCtaPolicy(CtaPolicy.ZERO).withName("part"));
                    Scope scope = rank.device().openScope()) {
                Tensor x = scope.tensor(DType.FLOAT32, COUNT);
                x.set(rank.device().stream(), values(1, 1));
                split.allReduce(x, x, Reduction.MAX, rank.device().stream());
                assertArrayEquals(values(1, 1), x.toFloats(rank.device().stream()));
            }
        });
    }

    private static void assertFails(Class<? extends RuntimeException> type, String text, Runnable call) {
        assertEquals(text, assertThrows(type, call::run).getMessage());
    }

    @Test
    void misuse() {
        try (Device device = Device.open();
                Communicator communicator =
                        Communicator.open(device, UniqueId.create(), 1, 0, CommunicatorConfig.standard())) {
            Stream stream = device.stream();
            assertFails(
                    IllegalArgumentException.class,
                    "byteSize: expected 1 to 9223372036854775551, got 0",
                    () -> communicator.allocate(0, stream));
            assertFails(
                    IllegalArgumentException.class,
                    "byteSize: expected 1 to 9223372036854775551, got 9223372036854775552",
                    () -> communicator.allocate(Long.MAX_VALUE - 255, stream));
            String text =
                    String.valueOf(assertThrows(NcclException.class, () -> communicator.allocate(1L << 50, stream))
                            .getMessage());
            assertTrue(
                    text.matches(
                            ".*; 1125899906842624 bytes were asked for, the device has \\d+ free; ask for less, or give"
                                    + " memory of the device back.*"),
                    text);
            try (CollectiveMemory memory = communicator.allocate(1000, stream)) {
                assertEquals(1024, memory.byteSize());
                Tensor tensor = memory.scope().tensor(DType.FLOAT32, 128);
                assertFails(
                        IllegalStateException.class,
                        "memory: expected at most 1024 bytes, of which 512 are handed out, got 768 more; allocate more at"
                                + " once",
                        () -> memory.scope().tensor(DType.FLOAT32, 129));
                memory.scope().tensor(DType.FLOAT32, 128);
                memory.close();
                assertThrows(IllegalStateException.class, () -> tensor.zero(stream));
                assertThrows(IllegalStateException.class, () -> memory.scope().tensor(DType.FLOAT32));
            }
            assertThrows(CaptureException.class, () -> stream.capture(() -> communicator.allocate(256, stream)));
            assertThrows(
                    IllegalStateException.class, () -> Communicator.group(() -> communicator.allocate(256, stream)));
            long free = device.heldBytes();
            CollectiveMemory left = communicator.allocate(1 << 20, stream);
            assertEquals(free + (1 << 20), device.heldBytes());
            communicator.close();
            left.close();
            assertEquals(free, device.heldBytes());
        }
        try (Device device = Device.open()) {
            Communicator communicator =
                    Communicator.open(device, UniqueId.create(), 1, 0, CommunicatorConfig.standard());
            communicator.allocate(4096, device.stream());
        } // Closes both.
    }
}
