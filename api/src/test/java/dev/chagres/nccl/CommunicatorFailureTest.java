package dev.chagres.nccl;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.launch.Ranks;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.CyclicBarrier;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Ranks that fail at odd moments: before they open, after a shrink, inside a group; and calls that were refused and caught. */
@Tag("L0")
@Tag("L2")
@Timeout(300)
class CommunicatorFailureTest {
    private static CommunicatorConfig standard(CallMode mode) {
        return CommunicatorConfig.standard().withCallMode(mode);
    }

    private static float sum(Communicator communicator, Scope scope, float value) {
        Stream stream = communicator.device().stream();
        Tensor tensor = scope.tensor(DType.FLOAT32, 1);
        tensor.set(stream, value);
        communicator.allReduce(tensor, tensor, Reduction.SUM, stream);
        communicator.synchronize(stream);
        return tensor.toFloats(stream)[0];
    }

    private static void repeat(Runnable call) {
        for (int i = 0; i < 1000; i++) {
            call.run();
        }
    }

    @ParameterizedTest
    @EnumSource
    void aFailureAfterAShrinkReleasesWhoIsLeft(CallMode mode) {
        DevicesNeeded.assume(3);
        Throwable[] heard = new Throwable[1];
        CountDownLatch summed = new CountDownLatch(2);
        RankFailedException failure = assertThrows(
                RankFailedException.class,
                () -> Ranks.local(3).withConfig(standard(mode)).each(rank -> {
                    try (Scope scope = rank.device().openScope()) {
                        Communicator world = rank.communicator();
                        if (rank.index() == 2) {
                            throw new IllegalStateException("first");
                        }
                        assertThrows(RankFailedException.class, () -> repeat(() -> sum(world, scope, 1)));
                        // Its device closes it, after the others have heard of the failure.
                        Communicator rest = world.shrink(standard(mode).withName("rest"), 2);
                        assertEquals(2, sum(rest, scope, 1));
                        summed.countDown();
                        while (summed.getCount() > 0) {
                            Thread.onSpinWait(); // A rank that waits for a latch is interrupted soon after a failure.
                        }
                        if (rank.index() == 0) {
                            throw new IllegalStateException("second");
                        }
                        heard[0] = assertThrows(RankFailedException.class, () -> repeat(() -> sum(rest, scope, 1)));
                    }
                }));
        assertEquals(List.of(2), failure.ranks());
        assertNotNull(heard[0], () -> "rank 1 heard of no failure: " + Arrays.toString(failure.getSuppressed()));
        assertEquals(
                "communicator \"rest\", rank 1 of 2, after allReduce of 1 FLOAT32, SUM: rank 0 failed:"
                        + " java.lang.IllegalStateException: second",
                heard[0].getMessage().replaceFirst("in (.*) waited \\d+ ms|\\d+ ms after (.*?)(?=:)", "after $1$2"));
        RankFailedException told = assertInstanceOf(RankFailedException.class, heard[0]);
        assertEquals("allReduce of 1 FLOAT32, SUM", told.collective());
        assertTrue(Objects.requireNonNull(told.waited()).toNanos() > 0, told.toString());
    }

    @ParameterizedTest
    @EnumSource
    void aRankThatFailsBeforeItOpensReleasesTheOthers(CallMode mode) {
        UniqueId id = UniqueId.create();
        id.fail(1, new IllegalStateException("no such device"));
        try (Device device = Device.open()) {
            RankFailedException failure =
                    assertThrows(RankFailedException.class, () -> Communicator.open(device, id, 2, 0, standard(mode)));
            assertEquals(
                    "communicator \"world\", rank 0 of 2, in open: rank 1 failed: java.lang.IllegalStateException: no such device",
                    failure.getMessage());
        }
    }

    /** What the program has caught is no wait: nobody is blamed for it when the timeout is over. */
    @ParameterizedTest
    @EnumSource
    void aRefusedCallDoesNotFailTheRanksLater(CallMode mode) {
        DevicesNeeded.assume(2);
        CommunicatorConfig hasty = standard(mode).withTimeout(Duration.ofSeconds(1));
        CyclicBarrier both = new CyclicBarrier(2);
        try (StoppedClock clock = new StoppedClock()) {
            Ranks.local(2).withConfig(hasty).each(rank -> {
                try (Scope scope = rank.device().openScope()) {
                    Tensor tensor = scope.tensor(DType.FLOAT32, 2);
                    tensor.zero(rank.device().stream());
                    Stream closed = rank.device().openStream();
                    closed.close();
                    assertThrows(
                            IllegalStateException.class,
                            () -> rank.communicator().allReduce(tensor, tensor, Reduction.SUM, closed));
                    both.await();
                    if (rank.index() == 0) {
                        clock.pass(hasty.timeout().multipliedBy(3));
                    }
                    both.await();
                    assertEquals(2, sum(rank.communicator(), scope, 1));
                }
            });
        }
    }

    @ParameterizedTest
    @EnumSource
    void whatAnInnerGroupThrewIsNotLost(CallMode mode) {
        DevicesNeeded.assume(2);
        Ranks.local(2).withConfig(standard(mode)).each(rank -> {
            try (Scope scope = rank.device().openScope()) {
                Tensor tensor = scope.tensor(DType.FLOAT32, 2);
                Stream stream = rank.device().stream();
                tensor.set(stream, 1f, 2f);
                assertThrown(
                        IllegalStateException.class,
                        "group: expected the exception of an inner group to propagate, got it caught inside; nothing"
                                + " of the group was enqueued",
                        () -> Communicator.group(() -> {
                            assertThrows(
                                    IllegalArgumentException.class,
                                    () -> Communicator.group(() -> {
                                        throw new IllegalArgumentException("inner");
                                    }));
                            rank.communicator().allReduce(tensor, tensor, Reduction.SUM, stream);
                        }));
                assertEquals(1, tensor.toFloats(stream)[0]);
                assertEquals(2, sum(rank.communicator(), scope, 1));
            }
        });
    }
}
