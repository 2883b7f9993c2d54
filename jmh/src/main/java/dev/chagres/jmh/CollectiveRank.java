package dev.chagres.jmh;

import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.CommunicatorConfig;
import dev.chagres.nccl.UniqueId;

/** A rank of a benchmark: its device and its end of a communicator. */
class CollectiveRank implements AutoCloseable {
    final Device device;
    final Stream stream;
    final Scope scope;
    final Communicator communicator;
    private final UniqueId id;
    private final int rank;

    /** Each rank calls it, on its own thread. */
    CollectiveRank(int rank, int ranks, UniqueId id) {
        this(rank, ranks, id, CommunicatorConfig.standard());
    }

    CollectiveRank(int rank, int ranks, UniqueId id, CommunicatorConfig config) {
        this.id = id;
        this.rank = rank;
        device = Device.open(rank);
        stream = device.stream();
        scope = device.openScope();
        communicator = Communicator.open(device, id, ranks, rank, config);
    }

    /** Waits for the device. */
    final void await() {
        communicator.synchronize(stream);
    }

    /** Releases the other ranks from a collective in which they wait for this one, which has failed. */
    final void fail(Throwable thrown) {
        id.fail(rank, thrown);
    }

    @Override
    public void close() {
        communicator.close();
        device.close();
    }
}
