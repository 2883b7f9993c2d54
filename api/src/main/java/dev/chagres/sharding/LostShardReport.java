package dev.chagres.sharding;

import dev.chagres.mesh.MeshDimension;
import dev.chagres.parameter.FlatGroup;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.ParameterShard;
import dev.chagres.parameter.ParameterShard.Part;
import dev.chagres.parameter.Parameters;
import java.util.List;
import java.util.TreeSet;
import java.util.stream.IntStream;

/**
 * Tells which shards were lost with failed ranks.
 *
 * <p>Threading: the device's thread.
 */
record LostShardReport(FullySharded strategy, Parameters parameters, ShardedRanks ranks, FullyShardedConfig config) {
    String explain(List<Integer> lost) {
        StringBuilder text = new StringBuilder();
        for (int rank : new TreeSet<>(lost)) {
            if (rank < 0 || rank >= ranks.world().ranks()) {
                throw new IllegalArgumentException(
                        "ranks: expected ranks from 0 to " + (ranks.world().ranks() - 1) + ", got " + lost);
            }
            text.append(text.isEmpty() ? "" : "\n").append(explain(rank, lost));
        }
        return text.toString();
    }

    private String explain(int rank, List<Integer> lost) {
        ParameterShard shard = shard(rank);
        Part part = shard.updated();
        String what = shard.weights() == null ? "masters and moments" : "weights, masters and moments";
        StringBuilder text = new StringBuilder(
                "with rank " + rank + " went part " + part.index() + " of " + part.count() + " of the " + what + " of");
        if (isOneOf(MeshDimension.PIPELINE) && isOneOf(MeshDimension.TENSOR)) {
            nameGroups(text.append(':'));
        } else {
            int own = ranks.world().rank();
            text.append(' ').append(new LostLayers(parameters, ranks.shape(), own).what(rank));
        }
        List<Integer> others = IntStream.range(0, ranks.world().ranks())
                .filter(other -> !lost.contains(other)
                        && ranks.isAlike(rank, other)
                        && shard(other).equals(shard))
                .boxed()
                .toList();
        return text.append(
                        others.isEmpty()
                                ? "\nno other rank has them: start again from a saved state"
                                : "\nranks " + others + " have the same part, in other copies of the model")
                .toString();
    }

    private boolean isOneOf(MeshDimension dimension) {
        return ranks.shape().size(dimension) == 1;
    }

    private void nameGroups(StringBuilder text) {
        for (FlatGroup group : parameters.access().groups()) {
            List<String> names = group.members().stream()
                    .filter(parameter -> !parameter.isFrozen())
                    .map(Parameter::name)
                    .toList();
            if (!names.isEmpty()) {
                text.append("\n  ").append(String.join(", ", names));
            }
        }
    }

    private ParameterShard shard(int rank) {
        return ranks.shard(ranks.place(rank), config.stage());
    }
}
