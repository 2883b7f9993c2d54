package dev.chagres.cudnn;

import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * An operation while it is added to a graph: the checks of its arguments, whose errors name it, its results, and what cuDNN is told of it.
 *
 * <p>Threading: that of the builder.
 */
final class OperationBuilder {
    private final GraphBuilder graph;
    private final String kind;
    private final String name;
    /** What cuDNN is told beside the tensors. */
    final Description description;

    private final List<GraphTensor> reads = new ArrayList<>();
    private final List<GraphTensor> writes = new ArrayList<>();
    private @Nullable Description detail;
    private int detailName;

    /** {@code type}: cuDNN's number of the descriptor. */
    OperationBuilder(GraphBuilder graph, String kind, String name, int type) {
        this.graph = graph;
        this.kind = kind;
        this.name = name;
        description = new Description(type);
    }

    /** Returns the exception of an argument that does not fit. */
    IllegalArgumentException refusal(String argument, String expected, @Nullable Object got) {
        return GraphChecks.refusal(kind, name, argument, expected, got);
    }

    /** Checks that a tensor is one of this graph. */
    GraphTensor own(String argument, GraphTensor tensor) {
        return graph.own(kind, name, argument, tensor);
    }

    /** Checks that a tensor has these sizes. */
    void sized(String argument, GraphTensor tensor, long... dims) {
        GraphChecks.sized(graph, kind, name, argument, tensor, dims);
    }

    /** Checks that a tensor is INT32 of these sizes. */
    void integers(String argument, GraphTensor tensor, long... dims) {
        GraphChecks.integers(graph, kind, name, argument, tensor, dims);
    }

    void checkDims(long... dims) {
        GraphChecks.checkDims(kind, name, dims);
    }

    void checkEpsilon(float epsilon) {
        if (!(epsilon > 0) || Float.isInfinite(epsilon)) {
            throw refusal("epsilon", "a positive number", epsilon);
        }
    }

    /** Makes a result whose dimensions have the order that {@code model} gives them. */
    GraphTensor result(long[] dims, GraphTensor model) {
        return result("", dims, model);
    }

    /** The same, named after the operation and {@code part}. */
    GraphTensor result(String part, long[] dims, GraphTensor model) {
        return result(part, graph.intermediate(), dims, GraphTensor.ordered(dims, model));
    }

    GraphTensor result(String part, DataType type, long[] dims, long[] strides) {
        return graph.result(kind, name + part, type, dims, strides);
    }

    /** Adds a number that the operation reads. */
    GraphTensor scalar(String part, int rank, float value) {
        return graph.scalar(name + part, rank, value);
    }

    /** Says what is read, if there is one. */
    OperationBuilder reads(int attribute, @Nullable GraphTensor tensor) {
        return tensor == null ? this : reads(attribute, List.of(tensor));
    }

    OperationBuilder reads(int attribute, List<GraphTensor> tensors) {
        description.tensors(attribute, tensors);
        reads.addAll(tensors);
        return this;
    }

    /** Says what is written, if there is one. */
    OperationBuilder writes(int attribute, @Nullable GraphTensor tensor) {
        if (tensor != null) {
            description.tensor(attribute, tensor);
            writes.add(tensor);
        }
        return this;
    }

    /** Says what cuDNN describes apart, such as a pointwise mode. */
    OperationBuilder detail(int attribute, Description apart) {
        detailName = attribute;
        detail = apart;
        return this;
    }

    Operation build() {
        return new Operation(kind, name, reads, writes, description, detail, detailName, null, 0, kind);
    }

    /** Adds it to the graph. */
    void add() {
        graph.add(build());
    }

    /** Adds it, refused on GPUs if they do not compute it, where cuDNN does this instead. */
    void addRefusedOnGpu(boolean isRefused, String what) {
        graph.add(isRefused ? build().refusedOnGpu(what) : build());
    }
}
