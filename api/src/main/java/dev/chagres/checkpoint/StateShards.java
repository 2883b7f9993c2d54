package dev.chagres.checkpoint;

import dev.chagres.DType;
import dev.chagres.Scope;
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
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.ParameterShard.Part;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import dev.chagres.parameter.WeightStorage;
import dev.chagres.pipeline.PipelineParallel;
import dev.chagres.pipeline.PipelinePlan;
import dev.chagres.sharding.Strategy;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;
import java.util.function.Function;
import java.util.function.IntFunction;
import org.jspecify.annotations.Nullable;

/**
 * Lists the tensors of a model of which each rank keeps a part, in the order of one rank: the weights, then the optimizer's state. Ranks may
 * divide stages, heads and columns, and those with the same ones may shard what they have.
 *
 * <p>Threading: the device's thread.
 */
final class StateShards {
    /** A parameter's place: the elements of its piece of a group, and its first element among them. */
    private static final int NUMBERS = 2;

    /** The places of the whole model, group by group. */
    private final List<Parameter> all;
    /** Which coordinates along the pipeline have a parameter. */
    private final Function<Parameter, BitSet> stages;

    private final Strategy strategy;
    private final Parameters parameters;
    private final MeshShape shape;
    /** The communicator of all ranks. */
    final Communicator world;
    /** Null where ranks have neither stages nor parts of layers. */
    private final @Nullable Mesh mesh;

    /**
     * Names what ranks share.
     *
     * @param pipeline whose stages the ranks have; null where each has all layers
     * @param mesh of all ranks, which the strategy was asked about; null where those of the strategy are all
     */
    StateShards(Strategy strategy, @Nullable PipelineParallel pipeline, @Nullable Mesh mesh) {
        this.strategy = strategy;
        this.mesh = mesh;
        parameters = strategy.parameters();
        if (mesh == null) {
            world = strategy.communicator();
            shape = MeshShape.ofOne().with(MeshDimension.SHARD, world.ranks());
        } else {
            world = mesh.world();
            shape = mesh.shape();
        }
        if (pipeline == null) {
            BitSet first = new BitSet();
            first.set(0);
            all = parameters.all();
            stages = parameter -> first;
        } else {
            PipelinePlan plan = pipeline.plan();
            all = plan.whole().groups().values().stream().flatMap(List::stream).toList();
            stages = plan::ranksOf;
        }
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

    /** Returns which of the tensors are codes and their scales, as a state that has nothing else. */
    State coded(List<StateVector> vectors) {
        State.Builder codes = new State.Builder();
        all.stream()
                .filter(parameter -> !parameter.isFrozen())
                .forEach(parameter -> vectors.stream()
                        .filter(vector -> vector.block() > 1)
                        .forEach(vector -> codes.coded(vector.coded(parameter))));
        return codes.build();
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
            Elements elements = new Elements(spec, 1, 1, 1, State.Values.ANY, vector, pieceOffset);
            return split(parameter, elements, strategy::weightsOf);
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
            int unit = vector.block() > 1 ? vector.coded(parameter).unit() : 1;
            Elements kept = new Elements(
                    spec, vector.width(), unit, vector.block() / unit, vector.values(), elements, pieceOffset);
            return split(parameter, kept, strategy::updatedBy);
        }
        return new StateShard(
                spec,
                vector.values(),
                elements,
                vector.countOf(pieceOffset),
                vector.countOf(places[NUMBERS * index]),
                vector.countOf(places[NUMBERS * index + 1]),
                holders(parameter, strategy::updatedBy));
    }

    /**
     * Numbers of a rank for the elements of a parameter.
     *
     * @param width how many for each element
     * @param unit how many neighbours have one in a file
     * @param repeat how many of these the rank has one for
     * @param vector has them, and others; null where the rank holds none
     * @param pieceOffset first element of the parameter's piece
     */
    private record Elements(
            TensorSpec spec,
            int width,
            int unit,
            int repeat,
            State.Values may,
            @Nullable Tensor vector,
            long pieceOffset) {
        private long units(long count) {
            return Math.ceilDiv(count, (long) unit);
        }
    }

    /** With split layers, pieces may differ between ranks, and each rank knows only its own. */
    private SplitTensor split(Parameter parameter, Elements elements, IntFunction<Part> part) {
        FlatParameter own = own(parameter);
        Tensor vector = elements.vector();
        SplitTensor.Own held = own == null || vector == null
                ? null
                : SplitTensor.Own.of(
                        vector,
                        elements.repeat(),
                        elements.units(elements.pieceOffset()),
                        elements.units(own.count()),
                        elements.units(own.offset(parameter)),
                        elements.units(parameter.shape().count()),
                        part.apply(world.rank()));
        ParameterSplit places =
                ParameterSplit.of(parameter.split(), parameter.shape()).ofUnits(elements.unit());
        return new SplitTensor(
                elements.spec(), elements.width(), elements.may(), held, places, copies(parameter, part));
    }

    /** Of the ranks of the first stage that has a parameter: those that hold the same elements as this one. */
    private SplitTensor.Copies copies(Parameter parameter, IntFunction<Part> part) {
        int rank = world.rank();
        int index = -1;
        int count = 0;
        int stage = stages.apply(parameter).nextSetBit(0);
        int share = parameter.split() == null ? 0 : shape.coordinate(MeshDimension.TENSOR, rank);
        Part own = part.apply(rank);
        for (int other = 0; other < shape.ranks(); other++) {
            if (shape.coordinate(MeshDimension.PIPELINE, other) == stage
                    && shape.coordinate(MeshDimension.TENSOR, other) == share
                    && part.apply(other).equals(own)) {
                index = other == rank ? count : index;
                count++;
            }
        }
        return new SplitTensor.Copies(index, count);
    }

    /** Returns the place of a parameter of this rank's stages; null for others, and if it has no element here. */
    private @Nullable FlatParameter own(Parameter parameter) {
        boolean isHere = stages.apply(parameter).get(shape.coordinate(MeshDimension.PIPELINE, world.rank()));
        return isHere && parameter.shape().count() > 0 ? piece(parameter) : null;
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
        if (mesh == null || mesh.size(MeshDimension.PIPELINE) == 1) {
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
        for (int rank = 0; rank < shape.ranks(); rank++) {
            boolean holds = present.get(shape.coordinate(MeshDimension.PIPELINE, rank));
            parts.add(holds ? part.apply(rank) : null);
        }
        return parts;
    }

    private FlatParameter piece(Parameter parameter) {
        return parameters.access().groups().get(parameter.group()).pieces().stream()
                .filter(piece -> piece.holds(parameter))
                .findFirst()
                .orElseThrow();
    }
}
