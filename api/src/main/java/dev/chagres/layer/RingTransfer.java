package dev.chagres.layer;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.layer.PassRing.Cargo;
import dev.chagres.nccl.Communicator;
import dev.chagres.parallel.ContextParallel;
import org.jspecify.annotations.Nullable;

/**
 * One step of the ring: each rank sends two tensors to the next rank and receives two from the previous one, in one NCCL group call.
 *
 * <p>Threading: the device's thread.
 */
final class RingTransfer {
    private final ContextParallel ranks;
    private final Runnable calls = this::call;
    private @Nullable Tensor firstSent;
    private @Nullable Tensor secondSent;
    private @Nullable Tensor firstReceived;
    private @Nullable Tensor secondReceived;
    private @Nullable Stream stream;

    RingTransfer(ContextParallel ranks) {
        this.ranks = ranks;
    }

    /** Returns the rank whose tensors this rank has after {@code step} steps. */
    int holder(int step) {
        return Math.floorMod(ranks.rank() - step, ranks.size());
    }

    /** Enqueues a step on the pass's stream of transfers, which waits for what the pass has enqueued so far. */
    void move(Tensor first, Tensor second, Tensor firstTarget, Tensor secondTarget, Cargo cargo, Pass pass) {
        firstSent = first;
        secondSent = second;
        firstReceived = firstTarget;
        secondReceived = secondTarget;
        Stream transfers = pass.ring().begin();
        stream = transfers;
        try {
            Communicator.group(calls);
            pass.ring().enqueued(cargo, transfers);
        } finally {
            firstSent = null;
            secondSent = null;
            firstReceived = null;
            secondReceived = null;
            stream = null;
        }
    }

    private void call() {
        Stream on = Checks.given("stream", stream);
        int next = Math.floorMod(ranks.rank() + 1, ranks.size());
        int before = holder(1);
        ranks.group().send(Checks.given("firstSent", firstSent), next, on);
        ranks.group().send(Checks.given("secondSent", secondSent), next, on);
        ranks.group().receive(Checks.given("firstReceived", firstReceived), before, on);
        ranks.group().receive(Checks.given("secondReceived", secondReceived), before, on);
    }
}
