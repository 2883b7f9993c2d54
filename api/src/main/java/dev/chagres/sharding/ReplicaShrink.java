package dev.chagres.sharding;

import dev.chagres.internal.Inside;
import dev.chagres.internal.RankNames;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.nccl.Agreement;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.optim.Optimizer;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * How sharded copies of a model go on without those of which a rank has failed.
 *
 * <p>Threading: the device's thread.
 */
record ReplicaShrink(
        FullySharded strategy,
        ShardedRanks ranks,
        GatherRanks gathers,
        FullyShardedConfig config,
        ShardedOptimizerStep steps) {
    FullySharded shrink(Optimizer optimizer) {
        ensureShrinks(optimizer);
        var successor = strategy.successor();
        List<State> scales = strategy.reducedScales();
        Communicator from = ranks.world();
        MeshShape shape = ranks.shape();
        Agreement left = steps.agree();
        while (true) {
            WholeReplicas copies = whole(shape, left);
            copies.ensureHas(from.rank());
            FullySharded next = null;
            if (copies.areAllLeft()) {
                try {
                    strategy.stream.synchronize();
                    from = from.shrink(from.config(), left.excluded());
                    shape = copies.remaining();
                    next = remaining(from, shape, scales);
                } catch (RankFailedException another) {
                    // Another rank has failed: the remaining ranks agree again.
                }
            }
            if (next != null) {
                next.beginAfter(strategy);
                successor.accept(next);
                return next;
            }
            // Remaining ranks of incomplete copies leave now.
            left = Agreement.of(from, steps.completed());
        }
    }

    private FullySharded remaining(Communicator from, MeshShape shape, List<State> scales) {
        strategy.handOver();
        Mesh mesh = Mesh.of(from, shape);
        FullySharded next = null;
        GatherRanks weights = null;
        try {
            ShardedRanks among = ShardedRanks.of(mesh, config.optimizer());
            weights = GatherRanks.of(among, gathers);
            next = new FullySharded(config, strategy.parameters(), among, weights, mesh, steps.completed());
            next.gatherWeights();
            // A rank may have failed in the midst of their update.
            scales.forEach(new StateBroadcast(next.communicator, 0, next.stream)::toAll);
            return next;
        } catch (RuntimeException failed) {
            if (next != null) {
                next.free();
            }
            if (weights != null) {
                weights.close();
            }
            mesh.close();
            throw failed;
        }
    }

    private WholeReplicas whole(MeshShape shape, Agreement left) {
        if (left.excluded().length == 0) {
            throw new IllegalStateException("shrink: expected a rank that has failed, got all " + left.of()
                    + " ranks; the communicator is revoked");
        }
        if (Collections.max(left.values()) > steps.completed()) {
            throw new IllegalStateException("shrink: expected " + Collections.max(left.values())
                    + " completed steps, as another rank has, got " + steps.completed()
                    + "; start again from a saved state");
        }
        WholeReplicas copies = WholeReplicas.of(shape, left);
        boolean splits = config.optimizer() == OptimizerSharding.ALL_RANKS;
        if (copies.copies().isEmpty() || splits) {
            String what = splits
                    ? "optimizer state in each copy of the model (EACH_COPY), got it sharded among ALL_RANKS"
                    : "a copy of the model without failed ranks, got ranks " + left.ranks() + " of " + shape;
            throw new IllegalStateException("shrink: expected " + what + lost(shape, left));
        }
        return copies;
    }

    /** After a shrink that failed, ranks have other numbers than the strategy's. */
    private String lost(MeshShape shape, Agreement left) {
        return shape.equals(ranks.shape())
                ? "; "
                        + strategy.explainLoss(
                                Arrays.stream(left.excluded()).boxed().toList())
                : "; start again from a saved state";
    }

    private void ensureShrinks(Optimizer optimizer) {
        strategy.ensureOpen();
        Inside.state(strategy.stream).ensureNotCapturing("shrink");
        Inside.state(strategy.stream).ensureNotGrouping("shrink");
        strategy.ensureOwn(optimizer);
        if (!gathers.communicator.areThreads()) {
            ensureNoWindows("weights gathered in DEVICE memory", gathers.made(), WeightGather.DEVICE);
            ensureNoWindows(
                    "gradients reduced by REDUCE_SCATTER",
                    strategy.gradientReduction(),
                    GradientReduction.REDUCE_SCATTER);
        }
        String refused = refused(strategy.parameters());
        if (refused != null) {
            throw new IllegalStateException("shrink: expected " + refused + lost());
        }
        steps.ensureAllAwaited();
    }

    private static void ensureNoWindows(String expected, Enum<?> made, Enum<?> withoutWindows) {
        if (made != withoutWindows) {
            throw new IllegalStateException("shrink: expected " + expected + " where ranks are processes, got " + made
                    + ", with which NCCL cannot stop waiting for a failed rank; start again from a saved state");
        }
    }

    /** Tells which shards were lost with the failed ranks, if these are known. */
    private String lost() {
        List<Integer> failed = LostLayers.failed(strategy.parameters());
        boolean areKnown =
                !failed.isEmpty() && Collections.max(failed) < ranks.shape().ranks();
        return "; " + (areKnown ? strategy.explainLoss(failed) : "start again from a saved state");
    }

    private @Nullable String refused(Parameters parameters) {
        MeshShape shape = ranks.shape();
        if (shape.size(MeshDimension.REPLICATE) == 1) {
            return "copies of the model along REPLICATE, got one, sharded among all ranks";
        }
        if (shape.ranks() != shape.size(MeshDimension.REPLICATE) * shape.size(MeshDimension.SHARD)
                || parameters.tensorParallel().isSplit()
                || parameters.access().isStaged()) {
            return "only REPLICATE and SHARD in the mesh, got " + shape
                    + ", which also splits layers, stages or tokens";
        }
        return null;
    }

    /**
     * Which sharded copies of a model still have all their ranks when some have failed.
     *
     * @param shape of the mesh before
     * @param left the ranks that are left of it
     * @param copies those that are whole, by their coordinates
     */
    private record WholeReplicas(MeshShape shape, Agreement left, List<Integer> copies) {
        static WholeReplicas of(MeshShape shape, Agreement left) {
            List<Integer> whole = new ArrayList<>();
            for (int copy = 0; copy < shape.size(MeshDimension.REPLICATE); copy++) {
                if (left.ranks().containsAll(ranks(shape, copy))) {
                    whole.add(copy);
                }
            }
            return new WholeReplicas(shape, left, List.copyOf(whole));
        }

        private static List<Integer> ranks(MeshShape shape, int copy) {
            return IntStream.range(0, shape.ranks())
                    .filter(rank -> shape.coordinate(MeshDimension.REPLICATE, rank) == copy)
                    .boxed()
                    .toList();
        }

        /** Returns whether every rank that is left belongs to one of them. */
        boolean areAllLeft() {
            return left.ranks().stream()
                    .allMatch(rank -> copies.contains(shape.coordinate(MeshDimension.REPLICATE, rank)));
        }

        /** Returns the mesh of those copies. */
        MeshShape remaining() {
            return shape.with(MeshDimension.REPLICATE, copies.size());
        }

        /**
         * Checks that a rank is one of a whole copy.
         *
         * @throws RankFailedException when it is not
         */
        void ensureHas(int rank) {
            int copy = shape.coordinate(MeshDimension.REPLICATE, rank);
            if (!copies.contains(copy)) {
                List<Integer> lost = Arrays.stream(left.excluded())
                        .filter(other -> shape.coordinate(MeshDimension.REPLICATE, other) == copy)
                        .boxed()
                        .toList();
                List<Integer> others = copies.stream()
                        .flatMap(one -> ranks(shape, one).stream())
                        .toList();
                throw new RankFailedException(
                        "rank " + rank + " leaves: copy " + copy + " of the model, of which it has a part, has lost "
                                + RankNames.of(lost) + "; " + RankNames.of(others) + " go on with whole copies",
                        lost,
                        null);
            }
        }
    }
}
