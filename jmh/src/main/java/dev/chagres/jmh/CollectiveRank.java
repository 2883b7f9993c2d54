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

    /** Each rank calls it, on its own thread. */
    CollectiveRank(int rank, int ranks, UniqueId id) {
        device = Device.open(rank);
        stream = device.stream();
        scope = device.openScope();
        communicator = Communicator.open(device, id, ranks, rank, CommunicatorConfig.standard());
    }

    /** Waits for the device. */
    final void await() {
        communicator.synchronize(stream);
    }

    @Override
    public void close() {
        communicator.close();
        device.close();
    }
}
