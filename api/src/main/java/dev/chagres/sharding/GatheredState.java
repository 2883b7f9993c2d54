package dev.chagres.sharding;

import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.model.GroupPiece;
import dev.chagres.model.Parameter;
import dev.chagres.model.ParameterShard;
import dev.chagres.model.ParameterShard.Extent;
import dev.chagres.model.Parameters;
import dev.chagres.model.PlacedGroup;
import dev.chagres.nccl.Communicator;
import java.util.function.BiConsumer;

/**
 * Makes whole tensors of the ranks' parts, one piece of a group at a time.
 *
 * <p>Threading: the device's thread.
 */
final class GatheredState {
    private final Parameters parameters;
    private final Communicator communicator;
    private final Stream stream;

    GatheredState(Parameters parameters, Communicator communicator) {
        this.parameters = parameters;
        this.communicator = communicator;
        stream = parameters.scope().stream();
    }

    /** Hands out the weights of the members of {@code piece}. */
    void weights(PlacedGroup group, GroupPiece piece, BiConsumer<String, Tensor> sink) {
        Tensor vector = parameters.sharing().vector(piece.dtype());
        ParameterShard shard = parameters.sharing().shard();
        if (shard != null && shard.weights() == Extent.PART) {
            gather(group, piece, "", vector, piece.weightOffset(), sink);
            return;
        }
        try (Scope views = stream.device().openScope(stream)) {
            handOut(group, piece, "", views.view(vector, piece.weightOffset(), piece.count()), views, sink);
        }
    }

    /** Hands out what {@code vector}, in the order of the gradients, has of the members of {@code piece}. */
    void vector(PlacedGroup group, GroupPiece piece, String ending, Tensor vector, BiConsumer<String, Tensor> sink) {
        gather(group, piece, ending, vector, piece.gradientOffset(), sink);
    }

    private void gather(
            PlacedGroup group,
            GroupPiece piece,
            String ending,
            Tensor vector,
            long offset,
            BiConsumer<String, Tensor> sink) {
        int ranks = communicator.ranks();
        try (Scope room = stream.device().openScope(stream)) {
            Tensor whole = room.tensor(vector.dtype(), piece.count());
            communicator.allGather(room.view(vector, offset / ranks, piece.count() / ranks), whole, stream);
            handOut(group, piece, ending, whole, room, sink);
        }
    }

    private static void handOut(
            PlacedGroup group,
            GroupPiece piece,
            String ending,
            Tensor whole,
            Scope views,
            BiConsumer<String, Tensor> sink) {
        for (Parameter member : group.members()) {
            if (piece.holds(member)) {
                sink.accept(member.name() + ending, views.view(whole, piece.offset(member), member.shape()));
            }
        }
    }
}
