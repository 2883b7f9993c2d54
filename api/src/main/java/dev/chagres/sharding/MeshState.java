package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Shape;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.io.TensorSpec;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.Reduction;
import dev.chagres.optim.StateVector;
import dev.chagres.parallel.ParameterSplit;
import dev.chagres.parameter.FlatParameter;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.ParameterShard.Part;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import dev.chagres.parameter.WeightStorage;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;
import java.util.function.Function;
import java.util.function.IntFunction;
import org.jspecify.annotations.Nullable;

/**
 * Lists the tensors of a model that is split into stages, or by heads and columns, in the order of one rank: the weights, then the
 * optimizer's state, which copies of whole layers may shard.
 *
 * <p>Threading: the device's thread.
 */
final class MeshState {
    /** A parameter's place: the elements of its piece of a group, and its first element among them. */
    private static final int NUMBERS = 2;

    /** The places of the whole model, group by group. */
    private final List<Parameter> all;
    /** Which coordinates along the pipeline have a parameter. */
    private final Function<Parameter, BitSet> stages;

    private final Strategy strategy;
    private final Parameters parameters;
    private final Mesh mesh;

    private MeshState(List<Parameter> all, Function<Parameter, BitSet> stages, Strategy strategy, Mesh mesh) {
        this.all = all;
        this.stages = stages;
        this.strategy = strategy;
        this.mesh = mesh;
        parameters = strategy.parameters();
        strategy.checkMesh(mesh);
    }

    /** Makes the state of ranks that each have some stages of {@code whole}; {@code ranks} of the pipeline have a parameter. */
    static MeshState ofStages(ModelPlan whole, Function<Parameter, BitSet> ranks, Strategy strategy, Mesh mesh) {
        List<Parameter> all =
                whole.groups().values().stream().flatMap(List::stream).toList();
        return new MeshState(all, ranks, strategy, mesh);
    }

    /** Makes the state of ranks that each have a part of each layer. */
    static MeshState ofLayers(Strategy copies, Mesh mesh) {
        BitSet first = new BitSet();
        first.set(0);
        return new MeshState(copies.parameters().all(), parameter -> first, copies, mesh);
    }

    /**
     * Returns the weights, and the {@code vectors} of trained ones. Each rank calls it, since only the ranks of a parameter's stages know
     * its place.
     */
    List<StateTensor> of(List<StateVector> vectors) {
        long[] places = places();
        List<StateTensor> tensors = new ArrayList<>();
        for (int i = 0; i < all.size(); i++) {
            Parameter parameter = all.get(i);
            TensorSpec spec = new TensorSpec(parameter.name(), type(parameter), parameter.wholeShape());
            tensors.add(weight(parameter, spec, i, places));
        }
        for (int i = 0; i < all.size(); i++) {
            Parameter parameter = all.get(i);
            for (StateVector vector : vectors) {
                if (!parameter.isFrozen() && vector.isFor(type(parameter))) {
                    TensorSpec spec = new TensorSpec(
                            parameter.name() + vector.ending(),
                            vector.elements().dtype(),
                            vector.wholeShapeOf(parameter));
                    tensors.add(kept(parameter, spec, vector, i, places));
                }
            }
        }
        return tensors;
    }

    private DType type(Parameter parameter) {
        if (parameter.storage() == WeightStorage.QUANTIZED) {
            return DType.FLOAT32; // the master, which stands for the weight
        }
        DType ownType = parameter.ownType();
        return ownType == null ? parameters.dtype() : ownType;
    }

    private StateTensor weight(Parameter parameter, TensorSpec spec, int index, long[] places) {
        FlatParameter own = own(parameter);
        Tensor vector = own == null ? null : parameters.access().vector(own.dtype());
        long pieceOffset = own == null ? 0 : own.weightOffset();
        if (parameters.tensorParallel().isSplit()) {
            return split(parameter, spec, State.Values.ANY, vector, pieceOffset, strategy::weightsOf);
        }
        return new StateShard(
                spec,
                State.Values.ANY,
                vector,
                pieceOffset,
                places[NUMBERS * index],
                places[NUMBERS * index + 1],
                holders(parameter, strategy::weightsOf));
    }

    private StateTensor kept(Parameter parameter, TensorSpec spec, StateVector vector, int index, long[] places) {
        FlatParameter own = own(parameter);
        Tensor elements = own == null ? null : vector.elements();
        long pieceOffset = own == null ? 0 : own.gradientOffset();
        if (parameters.tensorParallel().isSplit()) {
            return split(parameter, spec, vector.values(), elements, pieceOffset, strategy::updatedBy);
        }
        int width = vector.width();
        return new StateShard(
                spec,
                vector.values(),
                elements,
                width * pieceOffset,
                width * places[NUMBERS * index],
                width * places[NUMBERS * index + 1],
                holders(parameter, strategy::updatedBy));
    }

    /** With split layers, pieces may differ between ranks, and each rank knows only its own. */
    private SplitTensor split(
            Parameter parameter,
            TensorSpec spec,
            State.Values may,
            @Nullable Tensor vector,
            long pieceOffset,
            IntFunction<Part> part) {
        ParameterSplit split = parameter.split();
        FlatParameter own = own(parameter);
        SplitTensor.Own held = own == null || vector == null
                ? null
                : SplitTensor.Own.of(
                        vector,
                        pieceOffset,
                        own.count(),
                        own.offset(parameter),
                        parameter.shape().count(),
                        part.apply(mesh.world().rank()));
        return new SplitTensor(spec, may, held, split == null ? whole(parameter) : split, gives(parameter, part));
    }

    private static ParameterSplit whole(Parameter parameter) {
        Shape shape = parameter.shape();
        return new ParameterSplit(shape, 0, List.of(shape.size(0)), 0, 1);
    }

    /** The first of the ranks that hold the same elements sends them. */
    private SplitTensor.Copy gives(Parameter parameter, IntFunction<Part> part) {
        MeshShape shape = mesh.shape();
        int rank = mesh.world().rank();
        int stage = stages.apply(parameter).nextSetBit(0);
        int share = parameter.split() == null ? 0 : mesh.coordinate(MeshDimension.TENSOR);
        Part own = part.apply(rank);
        for (int other = 0; other < shape.ranks(); other++) {
            if (shape.coordinate(MeshDimension.PIPELINE, other) == stage
                    && shape.coordinate(MeshDimension.TENSOR, other) == share
                    && part.apply(other).equals(own)) {
                return other == rank ? SplitTensor.Copy.GIVES : SplitTensor.Copy.RECEIVES_ONLY;
            }
        }
        return SplitTensor.Copy.RECEIVES_ONLY;
    }

    /** Returns the place of a parameter of this rank's stages; null for others, and if it has no element here. */
    private @Nullable FlatParameter own(Parameter parameter) {
        boolean isHere = stages.apply(parameter).get(mesh.coordinate(MeshDimension.PIPELINE));
        return isHere && parameter.shape().count() > 0 ? StateShards.piece(parameters, parameter) : null;
    }

    /** Returns the numbers of all parameters; one that several stages have is at the same place in each. */
    private long[] places() {
        long[] places = new long[NUMBERS * all.size()];
        for (int i = 0; i < all.size(); i++) {
            FlatParameter own = own(all.get(i));
            if (own != null) {
                places[NUMBERS * i] = own.count();
                places[NUMBERS * i + 1] = own.offset(all.get(i));
            }
        }
        if (mesh.size(MeshDimension.PIPELINE) == 1) {
            return places;
        }
        Communicator along = mesh.along(MeshDimension.PIPELINE);
        Stream stream = parameters.scope().stream();
        try (Scope scope = stream.device().openScope(stream)) {
            Tensor most = scope.tensor(DType.INT64, places.length);
            most.set(stream, places);
            along.allReduce(most, most, Reduction.MAX, stream);
            along.synchronize(stream);
            return most.toLongs(stream);
        }
    }

    /** Returns each rank's shard of a parameter; null for ranks without its stages. */
    private List<@Nullable Part> holders(Parameter parameter, IntFunction<Part> part) {
        BitSet present = stages.apply(parameter);
        List<@Nullable Part> parts = new ArrayList<>();
        for (int rank = 0; rank < mesh.shape().ranks(); rank++) {
            boolean holds = present.get(mesh.shape().coordinate(MeshDimension.PIPELINE, rank));
            parts.add(holds ? part.apply(rank) : null);
        }
        return parts;
    }
}
