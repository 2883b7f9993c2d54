package dev.chagres.cudnn;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Event;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.CudnnException;
import dev.chagres.bindings.ForeignText;
import dev.chagres.bindings.Provider;
import dev.chagres.bindings.cudnn.Cudnn;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.Closing;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.internal.memory.Leaks;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;

/**
 * The engine that computes a graph on one device.
 *
 * <p>{@link #run} enqueues the graph's operations and returns. From the second run on the same tensors on, it makes no Java object. It can be
 * captured: the graph repeats it on the same memory.
 *
 * {@snippet file="dev/chagres/cudnn/GraphExamplesTest.java" region="plan"}
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR} of {@code cudnn_graph.h}.
 */
public final class ExecutionPlan implements AutoCloseable {
    private static final int MEASURED_RUNS = 6;

    private final OperationGraph graph;
    private final Device device;
    private final DeviceState state;
    private final CudnnHandle handle;
    private final Leaks.@Nullable Trace trace;
    /** In the order in which they were made. */
    private final List<BackendDescriptor> descriptors = new ArrayList<>();

    private final List<VariantPack> packs = new ArrayList<>();
    private long plan;
    private long workspaceBytes;
    private String engine = "";
    private String engineMeasured = "";
    private List<String> refused = List.of();
    private boolean closed;

    private ExecutionPlan(OperationGraph graph, Device device) {
        this.graph = graph;
        this.device = device;
        state = Inside.state(device.stream());
        handle = state.get(CudnnHandle.OF_DEVICE);
        trace = Leaks.opened("execution plan of " + device);
    }

    static ExecutionPlan of(OperationGraph graph, Device device, PlanOptions options) {
        return made(graph, device, plan -> plan.choose(options));
    }

    static ExecutionPlan restored(OperationGraph graph, Device device, String serialized) {
        int end = serialized.indexOf('\n');
        String json = serialized.substring(end + 1);
        String expected = header(graph, device, json);
        if (end < 0 || !serialized.substring(0, end).equals(expected)) {
            throw new IllegalArgumentException("serialized: expected a whole plan of graph "
                    + ForeignText.quoted(graph.name()) + " for " + device + " and this cuDNN, which begins with "
                    + expected + ", got "
                    + ForeignText.quoted(serialized.substring(0, Math.min(200, Math.max(0, end)))));
        }
        return made(graph, device, plan -> plan.read(json));
    }

    /** Returns the first line of a plan as text: whose it is, and the SHA-256 of the rest. */
    private static String header(OperationGraph graph, Device device, String json) {
        return "chagres cudnn plan 1 " + PlanChoices.surroundings(graph, device) + " " + PlanChoices.sha256(json);
    }

    private void read(String json) {
        BackendDescriptor made =
                kept(BackendDescriptor.make(Cudnn.CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR(), "plan that is read"));
        made.longs(Cudnn.CUDNN_ATTR_EXECUTION_PLAN_HANDLE(), Cudnn.CUDNN_TYPE_HANDLE(), handle.handle)
                .characters(
                        Cudnn.CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION(),
                        json.getBytes(StandardCharsets.ISO_8859_1))
                .complete();
        plan = made.handle();
        workspaceBytes = made.getLong(Cudnn.CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE());
        engine = "engine of a plan that was read";
    }

    /**
     * Returns the plan as text, for {@link OperationGraph#restore}: a line that says whose it is, and cuDNN's own representation.
     *
     * @throws IllegalStateException when the plan is closed
     * @throws CudnnException when the engine has none
     */
    public String serialized() {
        ensureOpen();
        String json = new String(
                descriptors.getLast().getCharacters(Cudnn.CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION()),
                StandardCharsets.ISO_8859_1);
        return header(graph, device, json) + "\n" + json;
    }

    private static ExecutionPlan made(OperationGraph graph, Device device, Consumer<ExecutionPlan> choice) {
        DeviceState state = Inside.state(device.stream());
        state.ensureCurrent();
        state.ensureThreadNotCapturing("plan");
        List<String> refusals =
                device.provider() == Provider.REFERENCE ? List.of() : graph.gpuRefusals(device.computeCapability());
        if (!refusals.isEmpty()) {
            throw new UnsupportedGraphException(
                    "graph " + ForeignText.quoted(graph.name()) + ": not computed on a GPU:\n  "
                            + String.join("\n  ", refusals),
                    refusals);
        }
        ExecutionPlan made = new ExecutionPlan(graph, device);
        try {
            choice.accept(made);
        } catch (RuntimeException | Error failure) {
            Leaks.closed(made.trace);
            made.destroy();
            throw failure;
        }
        made.handle.add(made);
        return made;
    }

    private void choose(PlanOptions options) {
        Map<GraphTensor, BackendDescriptor> tensors = new HashMap<>();
        // A packed tensor names that of its offsets, which is never packed.
        for (GraphTensor tensor : graph.tensors().stream()
                .sorted(Comparator.comparing(GraphTensor::isPacked))
                .toList()) {
            tensors.put(tensor, kept(describe(tensor, tensors)));
        }
        List<BackendDescriptor> operations = new ArrayList<>();
        for (Operation operation : graph.operations()) {
            operations.add(operation.make(tensors, descriptors));
        }
        BackendDescriptor described = kept(BackendDescriptor.make(
                Cudnn.CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR(), "graph " + ForeignText.quoted(graph.name())));
        described
                .longs(Cudnn.CUDNN_ATTR_OPERATIONGRAPH_HANDLE(), Cudnn.CUDNN_TYPE_HANDLE(), handle.handle)
                .descriptors(Cudnn.CUDNN_ATTR_OPERATIONGRAPH_OPS(), operations)
                .complete();
        EngineChoice choice = new EngineChoice(options, handle.handle, described);
        EngineChoice.Chosen chosen = options.choices() == null
                ? choice.choose(1).stream().findFirst().orElse(null)
                : measured(choice, options, options.choices());
        refused = List.copyOf(choice.reasons);
        if (chosen == null) {
            throw new UnsupportedGraphException(
                    "graph " + ForeignText.quoted(graph.name()) + ": no engine of cuDNN computes it within " + options
                            + ":\n  " + String.join("\n  ", refused),
                    refused);
        }
        descriptors.addAll(chosen.descriptors());
        use(chosen);
    }

    private void use(EngineChoice.Chosen chosen) {
        plan = chosen.plan();
        workspaceBytes = chosen.workspaceBytes();
        engine = chosen.text() + engineMeasured;
    }

    /** Takes the engine that was kept for the graph, or runs some and keeps the fastest. */
    private EngineChoice.@Nullable Chosen measured(EngineChoice choice, PlanOptions options, PlanChoices choices) {
        String key = choices.key(graph, device, options);
        PlanChoices.Choice before = choices.find(key);
        EngineChoice.Chosen again = before == null ? null : choice.again(before);
        if (again != null) {
            engineMeasured = "\nmeasured: before, kept in " + choices;
            return again;
        }
        List<EngineChoice.Chosen> all = new ArrayList<>(choice.choose(PlanChoices.MOST));
        try (Scope scope = device.openScope();
                VariantPack pack = new VariantPack(this)) {
            for (GraphTensor tensor : graph.bound()) {
                Tensor zeros = scope.tensor(tensor.type().dtype(), tensor.span());
                zeros.zero(device.stream());
                pack.set(tensor, zeros);
            }
            EngineChoice.Chosen fastest = fastest(choice, all, pack);
            if (fastest != null) {
                choices.keep(key, fastest.choice());
                all.remove(fastest);
            }
            return fastest;
        } finally {
            all.forEach(EngineChoice.Chosen::close);
        }
    }

    private EngineChoice.@Nullable Chosen fastest(
            EngineChoice choice, List<EngineChoice.Chosen> all, VariantPack pack) {
        StringBuilder text = new StringBuilder();
        EngineChoice.Chosen fastest = null;
        double least = Double.POSITIVE_INFINITY;
        for (EngineChoice.Chosen one : all) {
            try {
                use(one);
                double micros = micros(pack);
                text.append("\nmeasured: ")
                        .append(one.choice())
                        .append(", ")
                        .append(micros)
                        .append(" us");
                fastest = micros < least ? one : fastest;
                least = Math.min(least, micros);
            } catch (CudnnException failure) {
                choice.refuse(one, failure);
            }
        }
        engineMeasured = text.toString();
        return fastest;
    }

    /** Returns the least device time of some runs. */
    private double micros(VariantPack pack) {
        Stream stream = device.stream();
        double least = Double.POSITIVE_INFINITY;
        try (Event begun = device.openEvent();
                Event done = device.openEvent()) {
            for (int i = 0; i < MEASURED_RUNS; i++) {
                begun.record(stream);
                run(stream, pack);
                done.record(stream);
                done.synchronize();
                least = Math.min(least, 1000 * (double) done.millisSince(begun));
            }
        }
        return least;
    }

    private BackendDescriptor kept(BackendDescriptor descriptor) {
        descriptors.add(descriptor);
        return descriptor;
    }

    private static BackendDescriptor describe(GraphTensor tensor, Map<GraphTensor, BackendDescriptor> before) {
        Description description = new Description(Cudnn.CUDNN_BACKEND_TENSOR_DESCRIPTOR())
                .type(Cudnn.CUDNN_ATTR_TENSOR_DATA_TYPE(), tensor.type())
                .longs(Cudnn.CUDNN_ATTR_TENSOR_DIMENSIONS(), tensor.dims())
                .longs(Cudnn.CUDNN_ATTR_TENSOR_STRIDES(), tensor.strides())
                .longs(Cudnn.CUDNN_ATTR_TENSOR_UNIQUE_ID(), tensor.uid())
                .longs(Cudnn.CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT(), GraphTensor.ALIGNMENT)
                .truth(Cudnn.CUDNN_ATTR_TENSOR_IS_VIRTUAL(), tensor.isVirtual());
        if (tensor.isByValue()) {
            description.truth(Cudnn.CUDNN_ATTR_TENSOR_IS_BY_VALUE(), true);
        }
        GraphTensor offsets = tensor.offsets();
        if (offsets != null) {
            description.tensor(Cudnn.CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC(), offsets);
        }
        return description.make("tensor " + ForeignText.quoted(tensor.name()), before);
    }

    /** Returns the graph. */
    public OperationGraph graph() {
        return graph;
    }

    /** Returns the device. */
    public Device device() {
        return device;
    }

    /** Returns the bytes of device memory that a run needs while it computes. */
    public long workspaceBytes() {
        return workspaceBytes;
    }

    /** Makes a pack to which tensors are bound, for runs of this plan; it is closed with the plan at the latest. */
    public VariantPack variantPack() {
        ensureOpen();
        VariantPack pack = new VariantPack(this);
        packs.add(pack);
        return pack;
    }

    /**
     * Enqueues a run, with a workspace that the stream keeps for its kernels.
     *
     * @throws IllegalArgumentException when the pack is another plan's, lacks a tensor, or an output shares memory with another tensor
     * @throws IllegalStateException when the plan, the pack or a tensor is closed
     * @throws dev.chagres.bindings.CudnnException when cuDNN refuses the run
     */
    public void run(Stream stream, VariantPack pack) {
        check(stream, pack);
        long workspace = workspaceBytes == 0 ? 0 : Inside.workspace(stream).grownAddress(workspaceBytes);
        execute(stream, pack, workspace);
    }

    /**
     * Enqueues a run.
     *
     * @param workspace BYTE, at least {@link #workspaceBytes} of them, which the run overwrites
     * @throws IllegalArgumentException when the pack is another plan's, lacks a tensor, an output shares memory with another tensor, or the
     *     workspace does not fit
     * @throws IllegalStateException when the plan, the pack or a tensor is closed
     * @throws dev.chagres.bindings.CudnnException when cuDNN refuses the run
     */
    public void run(Stream stream, VariantPack pack, Tensor workspace) {
        check(stream, pack);
        Checks.typed(stream, "workspace", workspace, DType.BYTE);
        if (workspace.count() < workspaceBytes) {
            throw new IllegalArgumentException(
                    "workspace: expected BYTE[" + workspaceBytes + "] or more, got " + Checks.describe(workspace));
        }
        Checks.aligned("workspace", workspace);
        pack.ensureApart(workspace);
        execute(stream, pack, workspaceBytes == 0 ? 0 : workspace.address());
    }

    private void check(Stream stream, VariantPack pack) {
        ensureOpen();
        if (Checks.given("stream", stream).device() != device) {
            throw new IllegalArgumentException(
                    "stream: expected one of " + device + ", got one of " + Checks.other(stream.device(), device));
        }
        if (Checks.given("pack", pack).plan() != this) {
            throw new IllegalArgumentException("pack: expected one of this plan, got one of another");
        }
    }

    private void execute(Stream stream, VariantPack pack, long workspace) {
        handle.execute(stream, plan, pack.descriptor(workspace));
    }

    private void ensureOpen() {
        if (closed) {
            throw new IllegalStateException(
                    "execution plan of graph " + ForeignText.quoted(graph.name()) + " is closed");
        }
        state.ensureCurrent();
    }

    DeviceState state() {
        return state;
    }

    /** Returns the engine with its knobs and notes, the workspace, the operations, and why other engines were not taken. */
    public String explain() {
        StringBuilder text = new StringBuilder(graph.toString());
        text.append('\n')
                .append(engine)
                .append("\nworkspace: ")
                .append(workspaceBytes)
                .append(" bytes");
        for (String reason : refused) {
            text.append("\nnot taken: ").append(reason);
        }
        return text.toString();
    }

    /** Leaves the plan to its device, which closes it when it is closed itself: no leak is told of it any more. */
    public ExecutionPlan leaveToDevice() {
        ensureOpen();
        Leaks.closed(trace);
        return this;
    }

    /**
     * Waits for the device and frees the plan and its packs, or keeps them while graphs live that may run them. A second call does nothing.
     *
     * @throws IllegalStateException while a stream of the device captures, or inside {@code Communicator.group}
     */
    @Override
    public void close() {
        if (closed) {
            return;
        }
        state.ensureCloses();
        closed = true;
        Leaks.closed(trace);
        handle.remove(this);
        device.synchronize();
        state.free(0, 0, this::destroy);
    }

    private void destroy() {
        List<AutoCloseable> all = new ArrayList<>(descriptors);
        all.addAll(packs);
        descriptors.clear();
        packs.clear();
        Closing.newestFirst(all);
    }

    @Override
    public String toString() {
        return "execution plan of graph " + ForeignText.quoted(graph.name()) + " on " + device;
    }
}
