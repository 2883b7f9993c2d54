package dev.chagres.sharding;

import dev.chagres.internal.Checks;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.nccl.Communicator;
import dev.chagres.parameter.ParameterShard;
import dev.chagres.parameter.ParameterShard.Part;
import dev.chagres.parameter.ShardRanks;
import java.util.List;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * The ranks among which a model is sharded: those of one copy, and there may be several copies. If the model is divided along other dimensions, too, they are the ranks with the same stages, heads and columns.
 *
 * <p>Threading: the device's thread.
 *
 * @param world every rank of the mesh
 * @param shape of the mesh
 * @param all every rank of every copy
 * @param copy the ranks of this rank's copy
 * @param copies the ranks with the same shard of each copy; null with one copy
 * @param optimizer among which ranks the optimizer's state is sharded
 */
record ShardedRanks(
        Communicator world,
        MeshShape shape,
        Communicator all,
        Communicator copy,
        @Nullable Communicator copies,
        OptimizerSharding optimizer) {
    static ShardedRanks of(Communicator all) {
        MeshShape shape = MeshShape.ofOne().with(MeshDimension.SHARD, all.ranks());
        return new ShardedRanks(all, shape, all, all, null, OptimizerSharding.EACH_COPY);
    }

    static ShardedRanks of(Mesh mesh, OptimizerSharding optimizer) {
        Communicator all = mesh.along(MeshDimension.REPLICATE, MeshDimension.SHARD, MeshDimension.CONTEXT);
        Communicator copy = mesh.along(MeshDimension.SHARD, MeshDimension.CONTEXT);
        Communicator copies = mesh.size(MeshDimension.REPLICATE) == 1 ? null : mesh.along(MeshDimension.REPLICATE);
        return new ShardedRanks(mesh.world(), mesh.shape(), all, copy, copies, optimizer);
    }

    /** Returns the number among {@link #all} of a rank of the mesh, or of the rank that corresponds to it with other layers. */
    int place(int rank) {
        int place = 0;
        for (MeshDimension dimension : List.of(MeshDimension.REPLICATE, MeshDimension.SHARD, MeshDimension.CONTEXT)) {
            place = place * shape.size(dimension) + shape.coordinate(dimension, rank);
        }
        return place;
    }

    /** Returns whether two ranks of the mesh have the same stages, heads and columns. */
    boolean isAlike(int rank, int other) {
        return shape.coordinate(MeshDimension.PIPELINE, rank) == shape.coordinate(MeshDimension.PIPELINE, other)
                && shape.coordinate(MeshDimension.TENSOR, rank) == shape.coordinate(MeshDimension.TENSOR, other);
    }

    /** Returns whether the optimizer's state of a copy is sharded further among the copies. */
    boolean splitsOptimizer() {
        return copies != null && optimizer == OptimizerSharding.ALL_RANKS;
    }

    /** Returns this rank's shard of the weights of its copy. */
    Part part() {
        return new Part(copy.rank(), copy.ranks());
    }

    /** Returns this rank's shard in {@code stage}. */
    ParameterShard shard(ZeroStage stage) {
        return shard(all.rank(), stage);
    }

    /**
     * Returns the shard of {@code rank} of all in {@code stage}: shards of a copy's ranks are neighbours, and if all ranks shard the
     * optimizer's state, each of these is split among the copies.
     */
    ParameterShard shard(int rank, ZeroStage stage) {
        Part part = new Part(rank % copy.ranks(), copy.ranks());
        Part weights = stage == ZeroStage.THREE ? part : null;
        if (!splitsOptimizer()) {
            return new ParameterShard(part, weights);
        }
        int others = Checks.given("copies", copies).ranks();
        Part updated = new Part(part.index() * others + rank / copy.ranks(), copy.ranks() * others);
        return new ParameterShard(updated, weights);
    }

    /** Throws if a collective among them that has returned has failed. */
    void check() {
        all.check();
        copy.check();
        if (copies != null) {
            copies.check();
        }
    }

    /** Returns the ranks whose gradient shards form the whole. */
    Communicator updating() {
        return splitsOptimizer() ? all : copy;
    }

    /** Returns these ranks with the part that each updates. */
    ShardRanks sharingUpdates() {
        Communicator ranks = updating();
        return new ShardRanks(
                ranks,
                IntStream.range(0, ranks.ranks())
                        .mapToObj(rank -> shard(rank, ZeroStage.ONE).updated())
                        .toList());
    }

    /** Describes how gradients and weights are communicated. */
    String explain(FullyShardedConfig config, boolean quantized) {
        boolean summedLate =
                config.stage() == ZeroStage.THREE && config.gradientSync() == GradientSync.LAST_MICRO_BATCH;
        String memory = config.stage() == ZeroStage.ONE
                ? "for all"
                : "for two groups of each size"
                        + (summedLate ? ", for all where a step has several micro-batches" : "");
        String gathered = config.stage() == ZeroStage.THREE
                ? "weights gathered group by group on another stream before their layers run, one group ahead"
                        + (config.reshard() == Reshard.AFTER_STEP ? ", and kept until the step changes them" : "")
                        + (quantized ? ", those of products in eight bits" : "")
                : "weights gathered after the step";
        return "gradients reduce-scattered group by group on their own stream, from memory " + memory + "; " + gathered
                + explainCopies();
    }

    /** Describes how copies exchange gradients or weights; empty with one copy. */
    private String explainCopies() {
        if (copies == null) {
            return "";
        }
        String among = "; of " + copies.ranks() + " copies of the model ";
        return splitsOptimizer()
                ? among + "each rank updates another shard: gradients are reduce-scattered among them, too, and"
                        + " updated weights gathered"
                : among
                        + "each updates its own weights: gradient shards are all-reduced over them once a step on"
                        + " their own stream";
    }
}
