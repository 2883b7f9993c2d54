package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.io.TensorSpec;
import dev.chagres.model.Parameter;
import dev.chagres.model.ParameterShard.Part;
import dev.chagres.model.ParameterSplit;
import dev.chagres.model.Parameters;
import dev.chagres.model.State;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.StateVector;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;

/**
 * Lists the tensors of a model whose stages, or parts of whose layers, lie on several ranks, in the order in which one rank lists them: the
 * weights, then what the optimizer keeps.
 *
 * <p>Threading: the device's thread.
 */
final class MeshState {
    /** Of the whole model, group by group. */
    private final List<Parameter> all;
    /** Which coordinates along the pipeline have a parameter. */
    private final Function<Parameter, BitSet> stages;

    private final Parameters parameters;
    private final Mesh mesh;

    private MeshState(List<Parameter> all, Function<Parameter, BitSet> stages, Parameters parameters, Mesh mesh) {
        this.all = all;
        this.stages = stages;
        this.parameters = parameters;
        this.mesh = mesh;
    }

    /** Makes that of ranks that have some of the stages of {@code plan} each. */
    static MeshState ofStages(PipelinePlan plan, Parameters parameters, Mesh mesh) {
        List<Parameter> all =
                plan.whole().groups().values().stream().flatMap(List::stream).toList();
        return new MeshState(all, plan::ranksOf, parameters, mesh);
    }

    /** Makes that of ranks that have some of each layer. */
    static MeshState ofLayers(Parameters parameters, Mesh mesh) {
        BitSet first = new BitSet();
        first.set(0);
        return new MeshState(parameters.all(), parameter -> first, parameters, mesh);
    }

    List<StateTensor> of(AdamW optimizer) {
        Map<String, Tensor> own =
                State.of(parameters.state(), optimizer.state()).tensors();
        List<StateTensor> tensors = new ArrayList<>();
        for (Parameter parameter : all) {
            TensorSpec spec = new TensorSpec(parameter.name(), type(parameter), parameter.wholeShape());
            tensors.add(tensor(parameter, spec, own));
        }
        for (Parameter parameter : all) {
            for (StateVector vector : optimizer.vectors()) {
                if (!parameter.isFrozen() && vector.isFor(type(parameter))) {
                    String name = parameter.name() + vector.ending();
                    DType dtype = vector.elements().dtype();
                    tensors.add(tensor(parameter, new TensorSpec(name, dtype, vector.shapeOf(parameter)), own));
                }
            }
        }
        return tensors;
    }

    private DType type(Parameter parameter) {
        DType ownType = parameter.ownType();
        return ownType == null ? parameters.dtype() : ownType;
    }

    private StateTensor tensor(Parameter parameter, TensorSpec spec, Map<String, Tensor> own) {
        ParameterSplit split = parameter.split();
        if (split != null) {
            return new SplitTensor(spec, own.get(spec.name()), split, gives(parameter));
        }
        long count = spec.shape().count();
        return new SharedTensor(spec, own.get(spec.name()), 0, count, 0, holders(parameter));
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

    /** Returns the whole parameter for each rank that has it, null for the others. */
    private List<@Nullable Part> holders(Parameter parameter) {
        BitSet present = stages.apply(parameter);
        List<@Nullable Part> parts = new ArrayList<>();
        for (int rank = 0; rank < mesh.shape().ranks(); rank++) {
            boolean holds = present.get(mesh.shape().coordinate(MeshDimension.PIPELINE, rank));
            parts.add(holds ? new Part(0, 1) : null);
        }
        return parts;
    }
}
