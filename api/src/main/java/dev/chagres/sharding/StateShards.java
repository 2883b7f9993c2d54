package dev.chagres.sharding;

import dev.chagres.Tensor;
import dev.chagres.io.TensorSpec;
import dev.chagres.optim.StateVector;
import dev.chagres.parameter.FlatParameter;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.ParameterShard;
import dev.chagres.parameter.ParameterShard.Part;
import dev.chagres.parameter.Parameters;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * Lists the tensors of a sharded model in the order in which one rank lists them: the weights, then the optimizer's state.
 *
 * <p>Threading: the device's thread.
 */
final class StateShards {
    private final Parameters parameters;
    /** By rank. */
    private final List<Part> weightParts;

    private final List<Part> updatedParts;

    StateShards(Parameters parameters, ShardedRanks ranks, ZeroStage stage) {
        this.parameters = parameters;
        List<ParameterShard> shards = IntStream.range(0, ranks.all().ranks())
                .mapToObj(rank -> ranks.shard(rank, stage))
                .toList();
        weightParts = shards.stream().map(shard -> wholeOr(shard.weights())).toList();
        updatedParts = shards.stream().map(ParameterShard::updated).toList();
    }

    /** Returns the part, or where it is null the whole. */
    static Part wholeOr(@Nullable Part part) {
        return part == null ? new Part(0, 1) : part;
    }

    /** Returns the weights, and what {@code vectors} have of each trained one. */
    List<StateShard> of(List<StateVector> vectors) {
        List<StateShard> all = new ArrayList<>();
        for (Parameter parameter : parameters.all()) {
            FlatParameter piece = piece(parameters, parameter);
            Tensor vector = parameters.access().vector(piece.dtype());
            all.add(tensor(parameter, new StateVector("", vector, 1), piece, piece.weightOffset(), weightParts));
        }
        for (Parameter parameter : parameters.all()) {
            FlatParameter piece = piece(parameters, parameter);
            if (piece.isTrained()) {
                for (StateVector vector : vectors) {
                    if (vector.isFor(piece.dtype())) {
                        all.add(tensor(parameter, vector, piece, piece.gradientOffset(), updatedParts));
                    }
                }
            }
        }
        return all;
    }

    /** Returns where a parameter lies. */
    static FlatParameter piece(Parameters parameters, Parameter parameter) {
        return parameters.access().groups().get(parameter.group()).pieces().stream()
                .filter(piece -> piece.holds(parameter))
                .findFirst()
                .orElseThrow();
    }

    private static StateShard tensor(
            Parameter parameter, StateVector vector, FlatParameter piece, long pieceOffset, List<Part> parts) {
        TensorSpec spec = new TensorSpec(
                parameter.name() + vector.ending(), vector.elements().dtype(), vector.shapeOf(parameter));
        int width = vector.width();
        return new StateShard(
                spec,
                vector.values(),
                vector.elements(),
                width * pieceOffset,
                width * piece.count(),
                width * piece.offset(parameter),
                parts);
    }
}
