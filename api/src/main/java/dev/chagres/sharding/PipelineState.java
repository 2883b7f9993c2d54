package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.io.TensorSpec;
import dev.chagres.model.Parameter;
import dev.chagres.model.ParameterShard.Part;
import dev.chagres.model.Parameters;
import dev.chagres.model.State;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.StateVector;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * Lists the tensors of a model whose stages lie on several ranks, in the order in which one rank lists them: the weights, then what the
 * optimizer keeps.
 *
 * <p>Threading: the device's thread.
 */
final class PipelineState {
    private final PipelinePlan plan;
    private final Parameters parameters;
    private final Mesh mesh;

    PipelineState(PipelinePlan plan, Parameters parameters, Mesh mesh) {
        this.plan = plan;
        this.parameters = parameters;
        this.mesh = mesh;
    }

    List<SharedTensor> of(AdamW optimizer) {
        Map<String, Tensor> own =
                State.of(parameters.state(), optimizer.state()).tensors();
        List<Parameter> all =
                plan.whole().groups().values().stream().flatMap(List::stream).toList();
        List<SharedTensor> tensors = new ArrayList<>();
        for (Parameter parameter : all) {
            TensorSpec spec = new TensorSpec(parameter.name(), type(parameter), parameter.shape());
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

    private SharedTensor tensor(Parameter parameter, TensorSpec spec, Map<String, Tensor> own) {
        long count = spec.shape().count();
        return new SharedTensor(spec, own.get(spec.name()), 0, count, 0, holders(parameter));
    }

    /** Returns the whole parameter for each rank that has it, null for the others. */
    private List<@Nullable Part> holders(Parameter parameter) {
        BitSet stages = plan.ranksOf(parameter);
        List<@Nullable Part> parts = new ArrayList<>();
        for (int rank = 0; rank < mesh.shape().ranks(); rank++) {
            boolean holds = stages.get(mesh.shape().coordinate(MeshDimension.PIPELINE, rank));
            parts.add(holds ? new Part(0, 1) : null);
        }
        return parts;
    }
}
