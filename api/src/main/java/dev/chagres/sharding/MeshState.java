package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.io.TensorSpec;
import dev.chagres.model.GroupPiece;
import dev.chagres.model.Parameter;
import dev.chagres.model.ParameterShard.Part;
import dev.chagres.model.ParameterSplit;
import dev.chagres.model.Parameters;
import dev.chagres.model.State;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.Reduction;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.StateVector;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import java.util.function.IntFunction;
import org.jspecify.annotations.Nullable;

/**
 * Lists the tensors of a model whose stages, or parts of whose layers, lie on several ranks, in the order in which one rank lists them: the
 * weights, then what the optimizer keeps, which copies of whole layers may share out.
 *
 * <p>Threading: the device's thread.
 */
final class MeshState {
    /** Of a parameter: elements of its piece of a group, and the first one that is its own. */
    private static final int NUMBERS = 2;

    /** Of the whole model, group by group. */
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
        if (parameters.tensorParallel().isSplit() && parameters.sharing().shard() != null) {
            throw new IllegalStateException(
                    "state: expected copies that share nothing out of layers that are split, got " + strategy
                            + "; save the state of ranks that have whole layers, or of DataParallel");
        }
    }

    /**
     * Makes that of ranks that have some of the stages of {@code plan} each.
     *
     * @throws IllegalStateException when copies of parts of layers share something out
     */
    static MeshState ofStages(PipelinePlan plan, Strategy strategy, Mesh mesh) {
        List<Parameter> all =
                plan.whole().groups().values().stream().flatMap(List::stream).toList();
        return new MeshState(all, plan::ranksOf, strategy, mesh);
    }

    /** Makes that of ranks that have some of each layer. */
    static MeshState ofLayers(DataParallel copies, Mesh mesh) {
        BitSet first = new BitSet();
        first.set(0);
        return new MeshState(copies.parameters().all(), parameter -> first, copies, mesh);
    }

    /** Each rank calls it, for where a parameter lies is known to the ranks of its stages alone. */
    List<StateTensor> of(AdamW optimizer) {
        long[] places = places();
        Map<String, Tensor> split = parameters.tensorParallel().isSplit()
                ? State.of(parameters.state(), optimizer.state()).tensors()
                : Map.of();
        List<StateTensor> tensors = new ArrayList<>();
        for (int i = 0; i < all.size(); i++) {
            Parameter parameter = all.get(i);
            TensorSpec spec = new TensorSpec(parameter.name(), type(parameter), parameter.wholeShape());
            tensors.add(parameter.split() != null ? split(parameter, spec, split) : weight(parameter, spec, i, places));
        }
        for (int i = 0; i < all.size(); i++) {
            Parameter parameter = all.get(i);
            for (StateVector vector : optimizer.vectors()) {
                if (!parameter.isFrozen() && vector.isFor(type(parameter))) {
                    TensorSpec spec = new TensorSpec(
                            parameter.name() + vector.ending(),
                            vector.elements().dtype(),
                            vector.wholeShapeOf(parameter));
                    tensors.add(
                            parameter.split() != null
                                    ? split(parameter, spec, split)
                                    : kept(parameter, spec, vector, i, places));
                }
            }
        }
        return tensors;
    }

    private DType type(Parameter parameter) {
        DType ownType = parameter.ownType();
        return ownType == null ? parameters.dtype() : ownType;
    }

    private SharedTensor weight(Parameter parameter, TensorSpec spec, int index, long[] places) {
        GroupPiece own = own(parameter);
        return new SharedTensor(
                spec,
                own == null ? null : parameters.sharing().vector(own.dtype()),
                own == null ? 0 : own.weightOffset(),
                places[NUMBERS * index],
                places[NUMBERS * index + 1],
                holders(parameter, rank -> new Part(0, 1)));
    }

    private SharedTensor kept(Parameter parameter, TensorSpec spec, StateVector vector, int index, long[] places) {
        GroupPiece own = own(parameter);
        int width = vector.width();
        return new SharedTensor(
                spec,
                own == null ? null : vector.elements(),
                own == null ? 0 : width * own.gradientOffset(),
                width * places[NUMBERS * index],
                width * places[NUMBERS * index + 1],
                holders(parameter, strategy::updatedBy));
    }

    private SplitTensor split(Parameter parameter, TensorSpec spec, Map<String, Tensor> own) {
        ParameterSplit split = Checks.given("parameter.split", parameter.split());
        return new SplitTensor(spec, own.get(spec.name()), split, gives(parameter));
    }

    /** Of ranks that differ in anything but which part of the layers they have, the first gives. */
    private SplitTensor.Copy gives(Parameter parameter) {
        for (MeshDimension dimension : MeshDimension.values()) {
            int first = dimension == MeshDimension.PIPELINE
                    ? stages.apply(parameter).nextSetBit(0)
                    : 0;
            if (dimension != MeshDimension.TENSOR && mesh.coordinate(dimension) != first) {
                return SplitTensor.Copy.RECEIVES_ONLY;
            }
        }
        return SplitTensor.Copy.GIVES;
    }

    /** Returns where a whole parameter of this rank's stages lies, null of others. */
    private @Nullable GroupPiece own(Parameter parameter) {
        return parameter.split() == null && stages.apply(parameter).get(mesh.coordinate(MeshDimension.PIPELINE))
                ? SharedTensors.piece(parameters, parameter)
                : null;
    }

    /** Returns the numbers of all parameters; where several stages have one, it lies alike. */
    private long[] places() {
        long[] places = new long[NUMBERS * all.size()];
        for (int i = 0; i < all.size(); i++) {
            GroupPiece own = own(all.get(i));
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

    /** Returns what each rank keeps of a parameter, null for the ranks that do not have its stages. */
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
