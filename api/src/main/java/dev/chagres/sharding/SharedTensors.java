package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.io.TensorSpec;
import dev.chagres.model.GroupPiece;
import dev.chagres.model.Parameter;
import dev.chagres.model.ParameterShard;
import dev.chagres.model.ParameterShard.Part;
import dev.chagres.model.Parameters;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * Lists the tensors of a model that ranks share out, in the order in which one rank lists them: the weights, then what the optimizer keeps.
 *
 * <p>Threading: the device's thread.
 */
final class SharedTensors {
    private final Parameters parameters;
    /** By rank. */
    private final List<Part> weightParts;

    private final List<Part> updatedParts;

    SharedTensors(Parameters parameters, ShardedRanks ranks, ZeroStage stage) {
        this.parameters = parameters;
        List<ParameterShard> shards = IntStream.range(0, ranks.all().ranks())
                .mapToObj(rank -> ranks.shard(rank, stage))
                .toList();
        weightParts = shards.stream().map(shard -> wholeOr(shard.weights())).toList();
        updatedParts = shards.stream().map(ParameterShard::updated).toList();
    }

    private static Part wholeOr(@Nullable Part part) {
        return part == null ? new Part(0, 1) : part;
    }

    /** Returns the weights, and what {@code vectors}, in the order of the gradients, have of each trained one by an ending of its name. */
    List<SharedTensor> of(Map<String, Tensor> vectors) {
        List<SharedTensor> all = new ArrayList<>();
        for (Parameter parameter : parameters.all()) {
            GroupPiece piece = piece(parameter);
            Tensor vector = parameters.sharing().vector(piece.dtype());
            all.add(tensor(parameter, "", vector, piece, piece.weightOffset(), weightParts));
        }
        for (Parameter parameter : parameters.all()) {
            GroupPiece piece = piece(parameter);
            if (piece.isTrained()) {
                vectors.forEach((ending, vector) -> {
                    if (!ending.equals(".master") || piece.dtype() != DType.FLOAT32) {
                        all.add(tensor(parameter, ending, vector, piece, piece.gradientOffset(), updatedParts));
                    }
                });
            }
        }
        return all;
    }

    private GroupPiece piece(Parameter parameter) {
        return parameters.sharing().groups().get(parameter.group()).pieces().stream()
                .filter(piece -> piece.holds(parameter))
                .findFirst()
                .orElseThrow();
    }

    private static SharedTensor tensor(
            Parameter parameter, String ending, Tensor vector, GroupPiece piece, long pieceOffset, List<Part> parts) {
        TensorSpec spec = new TensorSpec(parameter.name() + ending, vector.dtype(), parameter.shape());
        return new SharedTensor(spec, vector, pieceOffset, piece.count(), piece.offset(parameter), parts);
    }
}
