package dev.chagres.cudnn;

import dev.chagres.Device;
import dev.chagres.bindings.ForeignText;
import dev.chagres.internal.Checks;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * Operations over symbolic tensors, as {@link GraphBuilder} made them. A graph has no memory and belongs to no device: it can be planned for
 * several.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR} of {@code cudnn_graph.h}.
 */
public final class OperationGraph {
    private final String name;
    private final List<GraphTensor> tensors;
    private final List<Operation> operations;
    private final List<GraphTensor> bound;

    OperationGraph(String name, List<GraphTensor> tensors, List<Operation> operations) {
        this.name = name;
        this.operations = List.copyOf(operations);
        Set<GraphTensor> named = new HashSet<>();
        for (Operation operation : operations) {
            named.addAll(operation.reads());
            named.addAll(operation.writes());
        }
        tensors.stream()
                .filter(named::contains)
                .map(GraphTensor::offsets)
                .filter(Objects::nonNull)
                .toList()
                .forEach(named::add);
        List<GraphTensor> used = tensors.stream().filter(named::contains).toList();
        this.tensors = used;
        bound = used.stream()
                .filter(tensor -> !tensor.isVirtual() && !tensor.isByValue())
                .toList();
    }

    /** Begins a graph; {@code name} stands in errors and explanations. */
    public static GraphBuilder builder(String name) {
        return new GraphBuilder(name);
    }

    /** Returns the name. */
    public String name() {
        return name;
    }

    /** Returns the tensors that the operations read and that have memory, in the order of the builder. */
    public List<GraphTensor> inputs() {
        return bound.stream().filter(tensor -> !isWritten(tensor)).toList();
    }

    /** Returns the tensors that the operations write to memory, in the order of the builder. */
    public List<GraphTensor> outputs() {
        return bound.stream().filter(this::isWritten).toList();
    }

    /** Returns the tensor of that name, if the operations use one. */
    public Optional<GraphTensor> tensor(String tensorName) {
        Checks.given("tensorName", tensorName);
        return tensors.stream()
                .filter(tensor -> tensor.name().equals(tensorName))
                .findFirst();
    }

    boolean isWritten(GraphTensor tensor) {
        return operations.stream().anyMatch(operation -> operation.writes().contains(tensor));
    }

    /**
     * Returns why a GPU of ten times this compute capability does not compute this: cuDNN 9.19 takes it on an H200 and crashes, gives other
     * results than double precision, or lays a tensor out otherwise than ours are. Empty where nothing is known.
     */
    List<String> gpuRefusals(int capability) {
        List<String> reasons = new ArrayList<>();
        for (GraphTensor tensor : bound) {
            if (tensor.type() == DataType.BOOLEAN) {
                reasons.add("tensor " + ForeignText.quoted(tensor.name())
                        + ": BOOLEAN in memory, where cuDNN packs eight into a byte on a GPU; keep it virtual, as what"
                        + " BINARY_SELECT reads");
            }
        }
        for (Operation operation : operations) {
            if (operation.gpuRefusal() != null) {
                reasons.add(
                        "operation " + ForeignText.quoted(operation.name()) + ": cuDNN 9.19 " + operation.gpuRefusal());
            }
            if (operation.capability() > capability) {
                reasons.add("operation " + ForeignText.quoted(operation.name()) + ": cuDNN 9.19 computes "
                        + operation.capable() + " from compute capability " + operation.capability() / 10 + "."
                        + operation.capability() % 10 + " on, got " + capability / 10 + "." + capability % 10);
            }
        }
        if (operations.size() > 1 && operations.stream().allMatch(Operation::isPointwise)) {
            operations.stream()
                    .flatMap(this::broadcast)
                    .findFirst()
                    .ifPresent(tensor -> reasons.add("tensor " + ForeignText.quoted(tensor.name())
                            + ": cuDNN 9.19 repeats a smaller tensor wrongly where several pointwise operations are all of"
                            + " the graph; give it the sizes of the result, or compute each in a graph of its own"));
        }
        return reasons;
    }

    /** Returns the tensors in memory that an operation repeats along an axis. */
    private Stream<GraphTensor> broadcast(Operation operation) {
        long[] dims = operation.writes().getFirst().dims();
        return operation.reads().stream().filter(read -> bound.contains(read) && !read.hasDims(dims));
    }

    /** Returns all that cuDNN is told of the graph but for names: graphs of one text have the same engines. */
    String described() {
        StringBuilder text = new StringBuilder();
        for (GraphTensor tensor : tensors) {
            text.append(tensor.uid()).append(' ').append(tensor.type()).append(Arrays.toString(tensor.dims()));
            text.append(Arrays.toString(tensor.strides())).append(tensor.isVirtual() ? " virtual" : "");
            text.append(tensor.isByValue() ? " " + tensor.value() : "");
            GraphTensor offsets = tensor.offsets();
            text.append(offsets == null ? "" : " packed " + offsets.uid()).append('\n');
        }
        for (Operation operation : operations) {
            text.append(operation.description())
                    .append(" / ")
                    .append(operation.detail())
                    .append('\n');
        }
        return text.toString();
    }

    /** Returns the tensors that need memory. */
    List<GraphTensor> bound() {
        return bound;
    }

    List<GraphTensor> tensors() {
        return tensors;
    }

    List<Operation> operations() {
        return operations;
    }

    /**
     * Plans the graph with {@link PlanOptions#DEFAULT}.
     *
     * @throws UnsupportedGraphException when no engine computes it
     * @throws dev.chagres.bindings.CudnnException when cuDNN refuses the graph itself
     */
    public ExecutionPlan plan(Device device) {
        return plan(device, PlanOptions.DEFAULT);
    }

    /**
     * Asks cuDNN for engines that compute the graph, and takes the first that the options allow. This compiles kernels, allocates, and may take
     * seconds: plan once, outside of captures.
     *
     * @throws UnsupportedGraphException when no engine computes it within the options; it has the reason of each
     * @throws dev.chagres.bindings.CudnnException when cuDNN refuses the graph itself
     * @throws IllegalStateException while a stream of the device captures
     */
    public ExecutionPlan plan(Device device, PlanOptions options) {
        return ExecutionPlan.of(this, Checks.given("device", device), Checks.given("options", options));
    }

    /**
     * Makes the plan that {@link ExecutionPlan#serialized} gave, of this graph, for a GPU of the same kind and the same cuDNN: without asking for
     * engines, and without compiling where cuDNN keeps what it compiled.
     *
     * @throws IllegalArgumentException when the text is damaged, or is not of a plan of this graph for such a GPU and cuDNN
     * @throws UnsupportedGraphException when cuDNN computes the graph otherwise on a GPU
     * @throws dev.chagres.bindings.CudnnException when cuDNN refuses the plan
     * @throws IllegalStateException while a stream of the device captures
     */
    public ExecutionPlan restore(Device device, String serialized) {
        return ExecutionPlan.restored(this, Checks.given("device", device), Checks.given("serialized", serialized));
    }

    /** Returns the operations, a line each. */
    @Override
    public String toString() {
        return operations.stream()
                .map(Operation::toString)
                .collect(Collectors.joining("\n  ", "graph " + name + "\n  ", ""));
    }
}
