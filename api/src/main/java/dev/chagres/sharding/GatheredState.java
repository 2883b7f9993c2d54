package dev.chagres.sharding;

import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.memory.PinnedMemory;
import dev.chagres.nccl.Communicator;
import dev.chagres.optim.StateVector;
import dev.chagres.parameter.FlatGroup;
import dev.chagres.parameter.FlatParameter;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.ParameterShard;
import dev.chagres.parameter.ParameterShard.Part;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import java.util.List;
import java.util.function.BiConsumer;

/**
 * Gathers whole tensors from the ranks' shards, one piece of a group at a time.
 *
 * <p>Threading: the device's thread.
 */
final class GatheredState {
    private final Parameters parameters;
    private final ShardedRanks ranks;
    private final Stream stream;

    GatheredState(Parameters parameters, ShardedRanks ranks) {
        this.parameters = parameters;
        this.ranks = ranks;
        stream = parameters.scope().stream();
    }

    /** Passes on the weights of every group, and the {@code vectors} of trained ones, as tensors of whole layers. */
    void all(List<StateVector> vectors, BiConsumer<String, Tensor> sink) {
        allOfRank(
                vectors,
                (name, tensor) -> WholeLayers.gather(
                        parameters, new State.Builder().tensor(name, tensor).build(), sink));
    }

    /** The same, with this tensor-parallel rank's part of layers. */
    private void allOfRank(List<StateVector> vectors, BiConsumer<String, Tensor> sink) {
        for (FlatGroup group : parameters.access().groups()) {
            for (FlatParameter piece : group.pieces()) {
                weights(group, piece, sink);
                for (StateVector vector : vectors) {
                    if (piece.isTrained() && vector.isFor(piece.dtype())) {
                        vector(group, piece, vector, sink);
                    }
                }
            }
        }
    }

    /** Passes on the weights of the members of {@code piece}. */
    private void weights(FlatGroup group, FlatParameter piece, BiConsumer<String, Tensor> sink) {
        Tensor vector = parameters.access().vector(piece.dtype());
        ParameterShard shard = parameters.access().shard();
        if (shard != null && shard.weights() != null) {
            Part part = ranks.part();
            try (Scope room = stream.device().openScope(stream)) {
                Tensor own = room.view(vector, part.of(piece.weightOffset()), part.of(piece.count()));
                handOut(group, piece, weights(ofCopy(own, room)), room, sink);
            }
            return;
        }
        try (Scope views = stream.device().openScope(stream)) {
            handOut(group, piece, weights(views.view(vector, piece.weightOffset(), piece.count())), views, sink);
        }
    }

    /** Passes on the elements in {@code vector} of the members of {@code piece}. */
    private void vector(FlatGroup group, FlatParameter piece, StateVector vector, BiConsumer<String, Tensor> sink) {
        Part updated = ranks.shard(ZeroStage.ONE).updated();
        try (Scope room = stream.device().openScope(stream)) {
            Tensor own = room.view(
                    vector.elements(),
                    vector.countOf(updated.of(piece.gradientOffset())),
                    vector.countOf(updated.of(piece.count())));
            if (PinnedMemory.holds(own.address())) { // NCCL takes memory of the device
                Tensor there = room.like(own);
                there.copyFrom(stream, own);
                own = there;
            }
            Communicator copies = ranks.splitsOptimizer() ? ranks.copies() : null;
            Tensor part = copies == null ? own : gathered(own, copies, room);
            handOut(group, piece, vector.with(ofCopy(part, room)), room, sink);
        }
    }

    private Tensor ofCopy(Tensor part, Scope room) {
        return gathered(part, ranks.copy(), room);
    }

    private Tensor gathered(Tensor part, Communicator among, Scope room) {
        Tensor whole = room.tensor(part.dtype(), part.count() * among.ranks());
        among.allGather(part, whole, stream);
        return whole;
    }

    private static StateVector weights(Tensor whole) {
        return new StateVector("", whole, 1);
    }

    private static void handOut(
            FlatGroup group, FlatParameter piece, StateVector whole, Scope views, BiConsumer<String, Tensor> sink) {
        for (Parameter member : group.members()) {
            if (piece.holds(member)) {
                long offset = whole.countOf(piece.offset(member));
                sink.accept(
                        member.name() + whole.ending(), views.view(whole.elements(), offset, whole.shapeOf(member)));
            }
        }
    }
}
