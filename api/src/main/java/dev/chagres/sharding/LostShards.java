package dev.chagres.sharding;

import dev.chagres.model.Parameter;
import dev.chagres.model.ParameterShard;
import dev.chagres.model.ParameterShard.Part;
import dev.chagres.model.Parameters;
import dev.chagres.model.PlacedGroup;
import java.util.List;
import java.util.TreeSet;
import java.util.stream.IntStream;

/**
 * What went with ranks that shared a model out with others.
 *
 * <p>Threading: the device's thread.
 */
record LostShards(FullySharded strategy, Parameters parameters, ShardedRanks ranks, FullyShardedConfig config) {
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
        if (!ranks.isAlike(rank, ranks.world().rank())) {
            return "with rank " + rank
                    + " went other stages, heads or columns than this rank has; a rank that has the same"
                    + " can say which parts";
        }
        ParameterShard shard = shard(rank);
        Part part = shard.updated();
        String what = shard.weights() == null ? "masters and moments" : "weights, masters and moments";
        StringBuilder text = new StringBuilder("with rank " + rank + " went part " + part.index() + " of "
                + part.count() + " of the " + what + " of:");
        for (PlacedGroup group : parameters.sharing().groups()) {
            List<String> names = group.members().stream()
                    .filter(parameter -> !parameter.isFrozen())
                    .map(Parameter::name)
                    .toList();
            if (!names.isEmpty()) {
                text.append("\n  ").append(String.join(", ", names));
            }
        }
        List<Integer> others = IntStream.range(0, ranks.world().ranks())
                .filter(other -> !lost.contains(other)
                        && ranks.isAlike(rank, other)
                        && shard(other).equals(shard))
                .boxed()
                .toList();
        return text.append(
                        others.isEmpty()
                                ? "\nnobody else has them: start again from a saved state"
                                : "\nranks " + others + " have the same part, in other copies of the model")
                .toString();
    }

    private ParameterShard shard(int rank) {
        return ranks.shard(ranks.place(rank), config.stage());
    }
}
