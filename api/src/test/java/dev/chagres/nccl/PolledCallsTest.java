package dev.chagres.nccl;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;

import dev.chagres.DType;
import dev.chagres.DevicesNeeded;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.bindings.nccl.Nccl;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.time.Duration;
import java.util.concurrent.CyclicBarrier;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** What NCCL itself answers for communicators that are not blocking, which {@link Polling} and {@link Membership} rely on: by the bindings alone. */
@Tag("L0")
@Tag("L2")
@Timeout(60)
class PolledCallsTest {
    private static final Duration PATIENCE = Duration.ofSeconds(30);

    /** What a rank asks NCCL. */
    private interface Body {
        void run(Rank rank, MemorySegment comm, CyclicBarrier together) throws Exception;
    }

    /** Runs the body on communicators that nothing else uses. */
    private static void onRanks(int ranks, Body body) {
        DevicesNeeded.assume(ranks);
        CyclicBarrier together = new CyclicBarrier(ranks);
        CommunicatorConfig polled = CommunicatorConfig.standard().withCallMode(CallMode.NON_BLOCKING);
        Ranks.local(ranks).withConfig(polled).each(rank -> {
            MemorySegment world = rank.communicator().endpoint().handle();
            MemorySegment comm = split(world, rank.index());
            together.await();
            body.run(rank, comm, together);
            together.await();
            assertEquals(Nccl.ncclSuccess(), Nccl.ncclCommAbort(comm));
        });
    }

    private static MemorySegment place() {
        return Arena.global().allocate(ValueLayout.ADDRESS); // NCCL writes it on another thread.
    }

    private static int polled(MemorySegment comm) {
        return Polling.await(comm, PATIENCE, () -> false);
    }

    /** Makes a copy, and asserts that it is handed over when the parent is done, and is ready then. */
    private static MemorySegment split(MemorySegment parent, int key) {
        MemorySegment out = place();
        out.set(ValueLayout.ADDRESS, 0, parent);
        assertEquals(Nccl.ncclSuccess(), Nccl.ncclCommSplit(parent, 0, key, out, MemorySegment.NULL));
        assertEquals(0, out.get(ValueLayout.ADDRESS, 0).address(), "written too early");
        assertEquals(Nccl.ncclSuccess(), polled(parent));
        MemorySegment made = out.get(ValueLayout.ADDRESS, 0);
        assertNotEquals(0, made.address(), "not written");
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment answer = arena.allocate(ValueLayout.JAVA_INT);
            assertEquals(Nccl.ncclSuccess(), Nccl.ncclCommGetAsyncError(made, answer));
            assertEquals(Nccl.ncclSuccess(), answer.get(ValueLayout.JAVA_INT, 0));
            assertEquals(Nccl.ncclSuccess(), Nccl.ncclCommUserRank(made, answer));
            assertEquals(key, answer.get(ValueLayout.JAVA_INT, 0));
        }
        return made;
    }

    private static int allReduce(MemorySegment comm, Tensor tensor, MemorySegment stream) {
        return NcclCalls.call(
                Operation.ALL_REDUCE,
                tensor.address(),
                tensor.address(),
                1,
                Nccl.ncclFloat32(),
                Nccl.ncclSum(),
                0,
                comm,
                stream);
    }

    @Test
    void windowsAreWrittenWhenTheCallIsDone() {
        onRanks(2, (rank, comm, together) -> {
            MemorySegment memory = place();
            assertEquals(Nccl.ncclSuccess(), Nccl.ncclMemAlloc(memory, 1 << 21));
            MemorySegment address = memory.get(ValueLayout.ADDRESS, 0);
            MemorySegment window = place();
            int symmetric = Nccl.NCCL_WIN_COLL_SYMMETRIC();
            assertEquals(Nccl.ncclSuccess(), Nccl.ncclCommWindowRegister(comm, address, 1 << 21, window, symmetric));
            assertEquals(Nccl.ncclSuccess(), polled(comm));
            MemorySegment made = window.get(ValueLayout.ADDRESS, 0);
            assertNotEquals(0, made.address());
            assertEquals(Nccl.ncclSuccess(), Nccl.ncclCommWindowDeregister(comm, made));
            assertEquals(Nccl.ncclSuccess(), Nccl.ncclMemFree(address));
        });
    }

    @Test
    void aRefusedCallFailsTheCommunicatorUntilItIsRevoked() {
        onRanks(1, (rank, comm, together) -> {
            try (Scope scope = rank.device().openScope()) {
                Tensor tensor = scope.tensor(DType.FLOAT32, 1);
                MemorySegment stream = rank.device().stream().handle();
                int refused = NcclCalls.call(
                        Operation.BROADCAST,
                        tensor.address(),
                        tensor.address(),
                        1,
                        Nccl.ncclFloat32(),
                        0,
                        -1,
                        comm,
                        stream);
                assertEquals(Nccl.ncclInvalidArgument(), refused);
                assertEquals(Nccl.ncclInvalidArgument(), polled(comm));
                assertEquals(Nccl.ncclInvalidArgument(), allReduce(comm, tensor, stream));
                assertEquals(Nccl.ncclInvalidArgument(), polled(comm));
                int revoking = Nccl.ncclCommRevoke(comm, Nccl.NCCL_REVOKE_DEFAULT());
                assertEquals(Nccl.ncclInProgress(), revoking == 0 ? Nccl.ncclInProgress() : revoking);
                assertEquals(Nccl.ncclSuccess(), polled(comm));
            }
        });
    }

    @Test
    void aGroupWithARefusedCallFailsAllItsCommunicators() {
        onRanks(2, (rank, comm, together) -> {
            MemorySegment other = split(comm, rank.index());
            together.await();
            try (Scope scope = rank.device().openScope()) {
                Tensor tensor = scope.tensor(DType.FLOAT32, 1);
                MemorySegment stream = rank.device().stream().handle();
                assertEquals(Nccl.ncclSuccess(), Nccl.ncclGroupStart());
                assertEquals(Nccl.ncclSuccess(), allReduce(other, tensor, stream));
                int refused = NcclCalls.call(
                        Operation.BROADCAST,
                        tensor.address(),
                        tensor.address(),
                        1,
                        Nccl.ncclFloat32(),
                        0,
                        -1,
                        comm,
                        stream);
                assertEquals(Nccl.ncclInvalidArgument(), refused);
                assertEquals(Nccl.ncclInvalidArgument(), Nccl.ncclGroupEnd());
                assertEquals(Nccl.ncclInvalidArgument(), polled(comm));
                assertEquals(Nccl.ncclInvalidArgument(), polled(other));
                // A group without a call does nothing to anyone.
                assertEquals(Nccl.ncclSuccess(), Nccl.ncclGroupStart());
                assertEquals(Nccl.ncclSuccess(), Nccl.ncclGroupEnd());
            }
            assertEquals(Nccl.ncclSuccess(), Nccl.ncclCommAbort(other));
        });
    }

    /** The others are not there: a revocation ends the call, and the communicator can be shrunk, by its parent's polling. */
    @Test
    void aRevokedCallEndsAndTheRestIsShrunk() {
        onRanks(3, (rank, comm, together) -> {
            try (Scope scope = rank.device().openScope();
                    Arena arena = Arena.ofConfined()) {
                Tensor tensor = scope.tensor(DType.FLOAT32, 1);
                tensor.zero(rank.device().stream());
                MemorySegment stream = rank.device().stream().handle();
                if (rank.index() == 0) {
                    int called = allReduce(comm, tensor, stream);
                    assertEquals(Nccl.ncclInProgress(), called == 0 ? Nccl.ncclInProgress() : called);
                    Thread.sleep(100);
                }
                if (rank.index() != 2) {
                    int revoking = Nccl.ncclCommRevoke(comm, Nccl.NCCL_REVOKE_DEFAULT());
                    assertEquals(Nccl.ncclInProgress(), revoking == 0 ? Nccl.ncclInProgress() : revoking);
                    assertEquals(Nccl.ncclSuccess(), polled(comm));
                }
                together.await();
                if (rank.index() != 2) {
                    MemorySegment out = place();
                    MemorySegment excluded = arena.allocateFrom(ValueLayout.JAVA_INT, 2);
                    int status =
                            Nccl.ncclCommShrink(comm, excluded, 1, out, MemorySegment.NULL, Nccl.NCCL_SHRINK_ABORT());
                    assertEquals(Nccl.ncclSuccess(), status);
                    assertEquals(Nccl.ncclSuccess(), polled(comm));
                    MemorySegment rest = out.get(ValueLayout.ADDRESS, 0);
                    allReduce(rest, tensor, rank.device().stream().handle());
                    assertEquals(Nccl.ncclSuccess(), polled(rest));
                    assertEquals(Nccl.ncclSuccess(), Nccl.ncclCommAbort(rest));
                }
            }
        });
    }
}
