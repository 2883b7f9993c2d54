package dev.chagres.sharding;

import dev.chagres.Tensor;
import dev.chagres.internal.Opened;
import dev.chagres.parameter.FlatGroup;
import dev.chagres.parameter.FlatParameter;
import dev.chagres.parameter.Parameters;
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
}
