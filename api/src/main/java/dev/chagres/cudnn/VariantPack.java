package dev.chagres.cudnn;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.bindings.BackendCalls;
import dev.chagres.bindings.ForeignText;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.cudnn.Cudnn;
import dev.chagres.internal.Checks;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * The tensors of a plan's runs: one for each tensor of the graph that has memory. They stay bound until others take their place; a run
 * checks that they are still live.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR} of {@code cudnn_graph.h}.
 */
public final class VariantPack implements AutoCloseable {
    private final ExecutionPlan plan;
    private final List<GraphTensor> bound;
    private final @Nullable Tensor[] tensors;
    private final boolean[] written;
    /** What errors call the tensors. */
    private final String[] arguments;

    private final Arena arena = Arena.ofShared();
    private final MemorySegment uids;
    private final MemorySegment pointers;
    private final MemorySegment workspace = arena.allocate(ValueLayout.JAVA_LONG);
    private final MemorySegment out = arena.allocate(ValueLayout.JAVA_LONG);
    private final long count;
    /** The complete descriptor of the present pointers; 0 where there is none. */
    private long descriptor;

    private boolean closed;

    VariantPack(ExecutionPlan plan) {
        this.plan = plan;
        bound = plan.graph().bound();
        tensors = new Tensor[bound.size()];
        written = new boolean[bound.size()];
        arguments = new String[bound.size()];
        List<GraphTensor> numbers =
                plan.graph().tensors().stream().filter(GraphTensor::isByValue).toList();
        count = (long) bound.size() + numbers.size();
        uids = arena.allocate(ValueLayout.JAVA_LONG, count);
        pointers = arena.allocate(ValueLayout.JAVA_LONG, count);
        for (int i = 0; i < bound.size(); i++) {
            uids.setAtIndex(ValueLayout.JAVA_LONG, i, bound.get(i).uid());
            arguments[i] = "tensor " + ForeignText.quoted(bound.get(i).name());
            written[i] = plan.graph().isWritten(bound.get(i));
        }
        for (int i = 0; i < numbers.size(); i++) {
            GraphTensor number = numbers.get(i);
            MemorySegment value = arena.allocate(16, 16);
            if (number.type() == DataType.INT32) {
                value.set(ValueLayout.JAVA_INT, 0, (int) number.value());
            } else {
                value.set(ValueLayout.JAVA_FLOAT, 0, (float) number.value());
            }
            uids.setAtIndex(ValueLayout.JAVA_LONG, bound.size() + (long) i, number.uid());
            pointers.setAtIndex(ValueLayout.JAVA_LONG, bound.size() + (long) i, value.address());
        }
    }

    /**
     * Binds a tensor's memory. Its elements are those of the graph's tensor, in order of addresses; the shape does not matter.
     *
     * @param name of the graph's tensor
     * @throws IllegalArgumentException when the graph has no such tensor with memory, or type, number of elements, device or alignment of
     *     {@code tensor} do not fit
     * @throws IllegalStateException when the pack or the tensor is closed
     */
    public VariantPack set(String name, Tensor tensor) {
        return set(index(Checks.given("name", name)), tensor);
    }

    /** The same by the graph's tensor. */
    public VariantPack set(GraphTensor of, Tensor tensor) {
        int index = bound.indexOf(Checks.given("of", of));
        if (index < 0) {
            throw new IllegalArgumentException("of: expected one of " + bound + ", got " + of);
        }
        return set(index, tensor);
    }

    private int index(String name) {
        for (int i = 0; i < bound.size(); i++) {
            if (bound.get(i).name().equals(name)) {
                return i;
            }
        }
        throw new IllegalArgumentException("name: expected one of " + bound + ", got " + ForeignText.quoted(name));
    }

    private VariantPack set(int index, Tensor tensor) {
        ensureOpen();
        GraphTensor of = bound.get(index);
        String argument = arguments[index];
        Checks.on(plan.device().stream(), argument, tensor);
        DType dtype = of.type().dtype();
        boolean gaps = of.isPacked() || of.span() != of.count();
        long elements = tensor.count();
        if (tensor.dtype() != dtype || (gaps ? elements < of.span() : elements != of.count())) {
            throw new IllegalArgumentException(argument + ": expected " + dtype + " with " + of.span()
                    + (gaps ? " elements or more" : " elements") + " for " + of + ", got " + Checks.describe(tensor));
        }
        Checks.aligned(argument, tensor);
        if (written[index]) {
            Checks.writable(argument, tensor);
        }
        tensors[index] = tensor;
        return this;
    }

    ExecutionPlan plan() {
        return plan;
    }

    private void ensureOpen() {
        if (closed) {
            throw new IllegalStateException("variant pack of " + plan + " is closed");
        }
        plan.state().ensureCurrent();
    }

    /** Checks that a workspace shares no memory with the tensors. */
    void ensureApart(Tensor given) {
        for (int i = 0; i < tensors.length; i++) {
            Tensor tensor = tensors[i];
            if (tensor != null && Checks.overlaps(given, tensor)) {
                throw shared("workspace", bound.get(i));
            }
        }
    }

    private static IllegalArgumentException shared(String what, GraphTensor other) {
        return new IllegalArgumentException(
                what + ": expected memory of its own, got some of " + other + "; it is written to while that is used");
    }

    /** Returns the complete descriptor of the tensors where they are now. */
    long descriptor(long workspaceAddress) {
        ensureOpen();
        boolean moved = descriptor == 0 || workspace.get(ValueLayout.JAVA_LONG, 0) != workspaceAddress;
        for (int i = 0; i < tensors.length; i++) {
            Tensor tensor = tensors[i];
            if (tensor == null) {
                throw new IllegalArgumentException("pack: expected a tensor for " + bound.get(i) + ", got none");
            }
            long address = tensor.address();
            moved = moved || pointers.getAtIndex(ValueLayout.JAVA_LONG, i) != address;
            pointers.setAtIndex(ValueLayout.JAVA_LONG, i, address);
        }
        if (moved) {
            discard();
            ensureApart();
            workspace.set(ValueLayout.JAVA_LONG, 0, workspaceAddress);
            descriptor = describe();
        }
        return descriptor;
    }

    private void ensureApart() {
        for (int i = 0; i < tensors.length; i++) {
            for (int j = 0; j < tensors.length && written[i]; j++) {
                Tensor one = tensors[i];
                Tensor other = tensors[j];
                if (i != j && one != null && other != null && Checks.overlaps(one, other)) {
                    throw shared(arguments[i], bound.get(j));
                }
            }
        }
    }

    private long describe() {
        Status.cudnn(
                Cudnn.cudnnBackendCreateDescriptor(Cudnn.CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR(), out),
                "cudnnBackendCreateDescriptor");
        long made = out.get(ValueLayout.JAVA_LONG, 0);
        try {
            set(made, Cudnn.CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS(), Cudnn.CUDNN_TYPE_INT64(), count, uids);
            set(made, Cudnn.CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS(), Cudnn.CUDNN_TYPE_VOID_PTR(), count, pointers);
            set(made, Cudnn.CUDNN_ATTR_VARIANT_PACK_WORKSPACE(), Cudnn.CUDNN_TYPE_VOID_PTR(), 1, workspace);
            Status.cudnn(BackendCalls.cudnnBackendFinalize(made), "cudnnBackendFinalize");
            return made;
        } catch (RuntimeException failure) {
            BackendCalls.cudnnBackendDestroyDescriptor(made);
            throw failure;
        }
    }

    private static void set(long descriptor, int name, int type, long count, MemorySegment elements) {
        Status.cudnn(
                BackendCalls.cudnnBackendSetAttribute(descriptor, name, type, count, elements),
                "cudnnBackendSetAttribute");
    }

    private void discard() {
        long dead = descriptor;
        descriptor = 0;
        if (dead != 0) {
            Status.cudnn(BackendCalls.cudnnBackendDestroyDescriptor(dead), "cudnnBackendDestroyDescriptor");
        }
    }

    /** Frees the pack. A second call does nothing. */
    @Override
    public void close() {
        if (!closed) {
            ensureOpen();
            closed = true;
            discard();
            arena.close();
        }
    }
}
