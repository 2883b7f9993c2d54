package dev.chagres.sharding;

import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Inside;
import dev.chagres.nccl.Communicator;
import dev.chagres.parameter.FlatGroup;
import dev.chagres.parameter.FlatParameter;
import dev.chagres.parameter.ParameterShard.Part;
import dev.chagres.parameter.Parameters;

/**
 * Weights of which each rank has updated a part: they are gathered in place at the end of a step, as far as ranks have more than that.
 *
 * <p>Threading: the device's thread.
 */
record UpdatedWeights(
        Parameters parameters, ShardedRanks ranks, ZeroStage stage, Communicator gathers, ByteCounts bytes) {
    private static final Part WHOLE = new Part(0, 1);

    void gather() {
        Communicator copies = ranks.copies();
        if (copies != null && ranks.splitsOptimizer()) {
            gather(ranks.part(), copies);
        }
        gatherWhole();
    }

    /** Gathers what ranks of a copy have updated, where each has all weights. */
    void gatherWhole() {
        if (stage != ZeroStage.THREE) {
            gather(WHOLE, gathers);
        }
    }

    /** Gathers in place {@code part} of all updated weights, of which each rank {@code among} those has updated a part. */
    private void gather(Part part, Communicator among) {
        Communicator.group(() -> {
            for (FlatGroup group : parameters.access().groups()) {
                for (FlatParameter piece : group.pieces()) {
                    if (piece.isTrained()) {
                        gather(piece, part, among);
                    }
                }
            }
        });
    }

    private void gather(FlatParameter piece, Part part, Communicator among) {
        Tensor vector = parameters.access().vector(piece.dtype());
        Stream stream = parameters.scope().stream();
        long count = part.of(piece.count());
        boolean whole = stage != ZeroStage.THREE;
        long begin = whole ? piece.weightOffset() + part.begin(piece.count()) : part.of(piece.weightOffset());
        long own = count / among.ranks();
        try (Scope views = Inside.scratch(stream).open()) {
            Tensor all = views.view(vector, begin, count);
            bytes.allGather(all);
            among.allGather(views.view(vector, begin + among.rank() * own, own), all, stream);
        }
    }
}
