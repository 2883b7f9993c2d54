package dev.chagres.sharding;

import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Opened;
import dev.chagres.parameter.FlatGroup;
import dev.chagres.parameter.FlatParameter;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.ParameterAccess;
import dev.chagres.parameter.Parameters;
import dev.chagres.sharding.AllGatherBuffers.GatherStreams;
import dev.chagres.sharding.FlatBufferPool.Buffer;
import java.util.ArrayList;
import java.util.List;

/**
 * Weights of groups in their own types.
 *
 * <p>Threading: the device's thread.
 */
final class UnshardedGroups extends AllGatherBuffers {
    /** By group, this rank's part of each piece. */
    private final List<List<Tensor>> parts = new ArrayList<>();

    UnshardedGroups(Parameters parameters, GatherStreams streams, ByteCounts bytes) {
        super(parameters, new UnshardedWeights(parameters.access()), streams, bytes);
        int ranks = communicator.ranks();
        for (FlatGroup group : parameters.access().groups()) {
            List<Tensor> own = new ArrayList<>();
            for (FlatParameter piece : group.pieces()) {
                own.add(part(parameters, piece, ranks));
            }
            parts.add(own);
        }
        try (Opened opened = new Opened()) {
            opened.add(buffers);
            buffers.lendAll();
            opened.keep();
        }
    }

    /** Returns this rank's part of a piece. */
    static Tensor part(Parameters parameters, FlatParameter piece, int ranks) {
        Tensor vector = parameters.access().vector(piece.dtype());
        return parameters.scope().view(vector, piece.weightOffset() / ranks, piece.count() / ranks);
    }

    @Override
    void enqueue(int group, Buffer buffer) {
        List<Tensor> own = parts.get(group);
        for (int i = 0; i < own.size(); i++) {
            communicator.allGather(own.get(i), buffer.vector(i), gathers);
            bytes.allGather(buffer.vector(i));
        }
    }

    /** Weights of groups in their own types, a vector a piece. */
    record UnshardedWeights(ParameterAccess sharing) implements FlatBufferContent {
        @Override
        public List<Vector> vectors(int group) {
            return sharing.groups().get(group).pieces().stream()
                    .map(piece -> new Vector(piece.dtype(), piece.count()))
                    .toList();
        }

        @Override
        public Tensor[] views(int group, Tensor[] vectors, Scope scope) {
            return views(
                    sharing.groups().get(group).pieces(),
                    sharing.groups().get(group).members(),
                    vectors,
                    scope);
        }

        /** Returns a view for each member of what a vector for each piece has of it; the first vector where none has. */
        static Tensor[] views(List<FlatParameter> pieces, List<Parameter> members, Tensor[] vectors, Scope scope) {
            Tensor[] views = new Tensor[members.size()];
            for (int i = 0; i < views.length; i++) {
                Parameter member = members.get(i);
                views[i] = vectors[0]; // A frozen member has no gradient: nobody is lent this.
                for (int piece = 0; piece < pieces.size(); piece++) {
                    if (pieces.get(piece).holds(member)) {
                        views[i] = scope.view(vectors[piece], pieces.get(piece).offset(member), member.shape());
                    }
                }
            }
            return views;
        }

        @Override
        public void lend(int group, Tensor[] views) {
            List<Parameter> members = sharing.groups().get(group).members();
            for (int i = 0; i < views.length; i++) {
                sharing.lendWeight(members.get(i), views[i]);
            }
        }
    }
}
