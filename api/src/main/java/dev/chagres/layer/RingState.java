package dev.chagres.layer;

import dev.chagres.Event;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.attention.PackedChunks;
import dev.chagres.attention.RingSequences;
import dev.chagres.attention.RingSequences.Order;
import dev.chagres.attention.Sequences;
import dev.chagres.internal.Checks;
import dev.chagres.nccl.Communicator;
import dev.chagres.parallel.ContextParallel;
import dev.chagres.pass.Pass;
import dev.chagres.pass.PassState;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * What one pass has for ring attention: a stream for transfers, and the blocks of the sequences of its micro-batch, which all its layers
 * read.
 *
 * <p>Threading: the device's thread.
 */
final class RingState implements PassState {
    /** Kinds of transfers. */
    enum Cargo {
        KEYS,
        GRADIENTS
    }

    /** Sequences, cut for causal attention or for all. */
    private static final class Cut {
        private final RingSequences sequences;
        private final ContextParallel ranks;
        private final Order order;
        private final long[] bounds;
        private final int[] own;

        Cut(Pass pass, ContextParallel ranks, Order order) {
            this.ranks = ranks;
            this.order = order;
            sequences = new RingSequences(pass.device());
            bounds = new long[ranks.size() * ranks.chunks() + 1];
            own = new int[ranks.chunks()];
            for (int i = 0; i < own.length; i++) {
                own[i] = ranks.chunk(ranks.rank(), i);
            }
        }

        private void set(Sequences whole, Pass pass) {
            for (int chunk = 0; chunk < bounds.length; chunk++) {
                bounds[chunk] = ranks.chunkBegin(whole.tokens(), chunk);
            }
            sequences.set(whole, bounds, own, order, pass.kept());
        }
    }

    /** A rank's part of sequences whose keys are gathered. */
    private static final class Part {
        private final ContextParallel ranks;
        private final PackedChunks cut;

        Part(Pass pass, ContextParallel ranks) {
            this.ranks = ranks;
            cut = new PackedChunks(pass.device());
        }
    }

    private final Pass pass;
    private final List<Cut> cuts = new ArrayList<>();
    private final List<Part> parts = new ArrayList<>();
    private @Nullable Stream transfers;
    private @Nullable Event begun;
    private final @Nullable Event[] arrived = new Event[Cargo.values().length];

    private RingState(Pass pass) {
        this.pass = pass;
    }

    /** Returns that of {@code pass}. */
    static RingState of(Pass pass) {
        return pass.state(RingState.class, RingState::new);
    }

    /** Returns the sequences of the pass, cut up among {@code ranks}. */
    RingSequences cut(ContextParallel ranks, Order order) {
        Sequences whole = pass.sequences().queries();
        Cut idle = null;
        for (int i = 0; i < cuts.size(); i++) {
            Cut one = cuts.get(i);
            if (one.ranks == ranks && one.order == order) {
                if (one.sequences.isOf(whole)) {
                    return one.sequences;
                }
                idle = one.sequences.isLive() ? idle : one;
            }
        }
        if (idle == null) {
            idle = new Cut(pass, ranks, order);
            cuts.add(idle);
        }
        idle.set(whole, pass);
        return idle.sequences;
    }

    /** Returns this rank's stretch of the sequences of the pass, as {@link dev.chagres.attention.PackedChunk} does. */
    Sequences part(ContextParallel ranks) {
        Sequences present = pass.sequences();
        if (present.part() >= 0) {
            return present;
        }
        Sequences whole = present.queries();
        Part idle = null;
        for (int i = 0; i < parts.size(); i++) {
            Part one = parts.get(i);
            if (one.ranks == ranks) {
                if (one.cut.isOf(whole)) {
                    return one.cut.part();
                }
                idle = one.cut.isLive() ? idle : one;
            }
        }
        if (idle == null) {
            idle = new Part(pass, ranks);
            parts.add(idle);
        }
        long tokens = whole.tokens();
        idle.cut.set(whole, ranks.begin(tokens, ranks.rank()), ranks.begin(tokens, ranks.rank() + 1), pass.kept());
        return idle.cut.part();
    }

    /** Makes later work of the returned stream wait for what the pass has enqueued so far. */
    Stream begin() {
        Stream present = transfers;
        if (present == null) {
            present = pass.device().openStream();
            transfers = present;
        }
        Event event = begun;
        if (event == null) {
            event = pass.device().openEvent();
            begun = event;
        }
        event.record(pass.stream());
        present.await(event);
        return present;
    }

    /** Records that a transfer was enqueued, for which {@link #await} waits. */
    void enqueued(Cargo cargo, Stream stream) {
        Event event = arrived[cargo.ordinal()];
        if (event == null) {
            event = pass.device().openEvent();
            arrived[cargo.ordinal()] = event;
        }
        event.record(stream);
    }

    /** Makes later work of the pass wait for the latest transfer of {@code cargo}. */
    void await(Cargo cargo) {
        Event event = arrived[cargo.ordinal()];
        if (event != null) {
            pass.stream().await(event);
        }
    }

    @Override
    public void restart() {
        for (int i = 0; i < cuts.size(); i++) {
            cuts.get(i).sequences.forget();
        }
        for (int i = 0; i < parts.size(); i++) {
            parts.get(i).cut.forget();
        }
    }

    @Override
    public void close() {
        cuts.forEach(cut -> cut.sequences.close());
        cuts.clear();
        parts.forEach(part -> part.cut.close());
        parts.clear();
        if (transfers != null) {
            transfers.close();
        }
        if (begun != null) {
            begun.close();
        }
        for (Event event : arrived) {
            if (event != null) {
                event.close();
            }
        }
    }

    /**
     * One step of the ring: each rank sends two tensors to the next rank and receives two from the previous one, in one NCCL group call.
     *
     * <p>Threading: the device's thread.
     */
    static final class RingTransfer {
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
            Stream transfers = RingState.of(pass).begin();
            stream = transfers;
            try {
                Communicator.group(calls);
                RingState.of(pass).enqueued(cargo, transfers);
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
}
