package dev.chagres.nccl;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.Device;
import dev.chagres.bindings.NcclException;
import dev.chagres.bindings.nccl.Nccl;
import java.lang.foreign.MemorySegment;
import java.util.List;
import java.util.Objects;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Errors that NCCL gives a rank because a process has ended: they name that process's rank, not the one that met them. */
@Tag("L0")
class ErrorFromPeerTest {
    private final Device device = Device.open(0);
    private final ProcessRanks peers = new ProcessRanks();
    private final Endpoint endpoint = open();

    /** A communicator of this rank alone, of which its rank believes that there is a second rank in another process. */
    private Endpoint open() {
        CommunicatorConfig config = CommunicatorConfig.standard();
        return new Endpoint(device, config, null, PeerPlace.ofAll(peers, 2), alone(config));
    }

    private static MemorySegment alone(CommunicatorConfig config) {
        return new Opening(0, UniqueId.create(), 1, 0, config).call(() -> false);
    }

    @AfterEach
    void close() {
        endpoint.close();
        device.close();
    }

    static List<Integer> errorsThatAPeerMayCause() {
        return List.of(
                Nccl.ncclRemoteError(),
                Nccl.ncclSystemError(),
                Nccl.ncclInternalError(),
                Nccl.ncclUnhandledCudaError());
    }

    @ParameterizedTest
    @MethodSource("errorsThatAPeerMayCause")
    void namesTheRankThatHasEnded(int status) {
        IllegalStateException ended = new IllegalStateException("its process has ended");
        Thread.ofPlatform().start(() -> peers.fail(1, ended)); // comes while the rank waits for it, or before
        RankFailedException told =
                assertThrows(RankFailedException.class, () -> endpoint.failures.settle(status, "ncclAllReduce", null));
        assertEquals(List.of(1), told.ranks());
        assertSame(ended, told.getCause());
    }

    @Test
    void isTheRanksOwnWhereNoProcessHasEnded() {
        assertThrows(
                NcclException.class, () -> endpoint.failures.settle(Nccl.ncclSystemError(), "ncclAllReduce", null));
        assertThrows(
                NcclException.class, () -> endpoint.failures.settle(Nccl.ncclInvalidUsage(), "ncclAllReduce", null));
    }

    @Test
    void communicatorsOfAFamilyThatHasFailedAreAborted() {
        CommunicatorConfig config = CommunicatorConfig.standard();
        PeerPlace part = Objects.requireNonNull(endpoint.elsewhere).split(1, 0, false);
        try (Endpoint split = new Endpoint(device, config, null, part, alone(config));
                Endpoint other =
                        new Endpoint(device, config, null, PeerPlace.ofAll(new ProcessRanks(), 2), alone(config))) {
            assertFalse(split.endsByAbort());
            endpoint.failures.fail(new RankFailure(List.of(1), "rank 1 is ill", null));
            assertTrue(endpoint.endsByAbort());
            assertTrue(split.endsByAbort());
            assertFalse(other.endsByAbort());
            endpoint.close();
            assertTrue(split.endsByAbort());
        }
    }

    @Test
    void ofUnknownProcessesIsOfUnknownRanks() {
        RankFailedException told = assertThrows(
                RankFailedException.class,
                () -> endpoint.failures.settle(Nccl.ncclRemoteError(), "ncclAllReduce", null));
        assertEquals(List.of(), told.ranks());
    }
}
