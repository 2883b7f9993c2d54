package dev.chagres.optim;

import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.nccl.Communicator;
import dev.chagres.parameter.ParameterShard.Part;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.ShardRanks;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * The matrices of {@link Muon} among ranks that shard them: rank k of N computes every N-th one from the k-th on. In a turn of N matrices each rank
 * sends its parts to their owners, computes its own matrix, and gets its parts back; so the ranks compute at the same time, and none has more
 * than one matrix whole.
 *
 * <p>Threading: the device's thread.
 */
final class MatrixOwners {
    /** A part of a matrix that another rank has, or computes. */
    private record Transfer(Tensor tensor, int peer) {}

    /** As many matrices as there are ranks, or the last ones. */
    private final class Turn {
        private final List<MatrixUpdate> matrices;
        /** Null where this rank computes none of them. */
        private final @Nullable MatrixUpdate own;
        /** This rank's parts, to their owners and back. */
        private final List<Transfer> parts = new ArrayList<>();
        /** Parts of the matrix that this rank computes. */
        private final List<Transfer> collected = new ArrayList<>();

        private final @Nullable Tensor place;
        private final Runnable collect = this::collect;
        private final Runnable handOut = this::handOut;

        Turn(Parameters parameters, List<MatrixUpdate> matrices, List<Part> ranks, int rank) {
            this.matrices = matrices;
            own = rank < matrices.size() ? matrices.get(rank) : null;
            for (int owner = 0; owner < matrices.size(); owner++) {
                Tensor part = matrices.get(owner).own;
                if (part != null && owner != rank) {
                    parts.add(new Transfer(part, owner));
                }
            }
            Tensor of = null;
            for (int peer = 0; own != null && peer < ranks.size(); peer++) {
                MatrixPart part = MatrixPart.of(parameters, own.part.matrix(), ranks.get(peer));
                if (part.count() > 0) {
                    Tensor elements = own.whole(part.first(), part.count());
                    if (peer == rank) {
                        of = elements;
                    } else {
                        collected.add(new Transfer(elements, peer));
                    }
                }
            }
            place = of;
        }

        private void collect() {
            Communicator among = among();
            for (int i = 0; i < parts.size(); i++) {
                among.send(parts.get(i).tensor, parts.get(i).peer, stream);
            }
            for (int i = 0; i < collected.size(); i++) {
                among.receive(collected.get(i).tensor, collected.get(i).peer, stream);
            }
        }

        private void handOut() {
            Communicator among = among();
            for (int i = 0; i < collected.size(); i++) {
                among.send(collected.get(i).tensor, collected.get(i).peer, stream);
            }
            for (int i = 0; i < parts.size(); i++) {
                among.receive(parts.get(i).tensor, parts.get(i).peer, stream);
            }
        }

        private void exchange(Runnable transfers) {
            if (!parts.isEmpty() || !collected.isEmpty()) {
                Communicator.group(transfers);
            }
        }

        void run(Tensor gradientScale, Tensor skip) {
            for (int i = 0; i < matrices.size(); i++) {
                matrices.get(i).move(gradientScale, skip);
            }
            exchange(collect);
            if (own != null) {
                Tensor part = own.own;
                if (place != null && part != null) {
                    place.copyFrom(stream, part);
                }
                own.orthogonalize();
                if (place != null && part != null) {
                    part.copyFrom(stream, place);
                }
            }
            exchange(handOut);
            for (int i = 0; i < matrices.size(); i++) {
                matrices.get(i).apply(skip);
            }
        }
    }

    private final Parameters parameters;
    private final Stream stream;
    private final List<Turn> turns = new ArrayList<>();

    /** Divides matrices, which all ranks have in the same order. */
    MatrixOwners(Parameters parameters, List<MatrixUpdate> matrices) {
        this.parameters = parameters;
        stream = parameters.scope().stream();
        ShardRanks ranks = ranks(parameters);
        int count = ranks.parts().size();
        for (int first = 0; first < matrices.size(); first += count) {
            List<MatrixUpdate> some = matrices.subList(first, Math.min(first + count, matrices.size()));
            turns.add(new Turn(
                    parameters, List.copyOf(some), ranks.parts(), ranks.ranks().rank()));
        }
    }

    /** Returns memory for this rank's part of each matrix, null where it has none; turns use the same. */
    static List<@Nullable Tensor> rooms(Parameters parameters, List<MatrixPart> parts, Scope scope) {
        int count = ranks(parameters).parts().size();
        long most = 0;
        for (int first = 0; first < parts.size(); first += count) {
            List<MatrixPart> some = parts.subList(first, Math.min(first + count, parts.size()));
            most = Math.max(most, some.stream().mapToLong(MatrixPart::count).sum());
        }
        Tensor memory = OptimizerState.zeros(most, scope);
        List<@Nullable Tensor> rooms = new ArrayList<>();
        long next = 0;
        for (int i = 0; i < parts.size(); i++) {
            next = i % count == 0 ? 0 : next;
            long elements = parts.get(i).count();
            rooms.add(elements == 0 ? null : scope.view(memory, next, elements));
            next += elements;
        }
        return rooms;
    }

    private static ShardRanks ranks(Parameters parameters) {
        return Checks.given("shardRanks", parameters.access().shardRanks());
    }

    /** After a failure the remaining ranks have another communicator. */
    private Communicator among() {
        return ranks(parameters).ranks();
    }

    /** Enqueues the step. */
    void run(Tensor gradientScale, Tensor skip) {
        for (int i = 0; i < turns.size(); i++) {
            turns.get(i).run(gradientScale, skip);
        }
    }
}
