package dev.chagres;

import dev.chagres.bindings.Status;
import dev.chagres.bindings.cuda.CudaRuntime;
import dev.chagres.internal.memory.Capture;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.internal.memory.Leaks;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import org.jspecify.annotations.Nullable;

/**
 * Device work that {@link Stream#capture} has recorded, to be enqueued again as a whole: one call of the host for a step's hundreds
 * of kernels.
 *
 * <p>A launch runs the same kernels on the same addresses: it reads their contents at that time, and writes to the addresses of the
 * capture. Numbers that the host changes from step to step, such as an optimizer's rate and step and a pass's random numbers, are written
 * to the device before each launch by the objects that own them, which then increment their counters.
 *
 * <p>Memory that the work uses is not freed while the graph is open: if its scope closes first, it is freed when the graph closes. A scope
 * that is restarted hands the same memory out again, and a launch writes into it.
 *
 * {@snippet file="dev/chagres/TrainingExamplesTest.java" region="graph"}
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code cudaGraphExec_t} of the CUDA runtime.
 */
public final class Graph implements AutoCloseable {
    /** Only the capturing thread is restricted in its calls: see DeviceState.ensureThreadNotCapturing. */
    private static final int THREAD_LOCAL = 1;

    private final Stream stream;
    private final long number;
    private final Capture capture;
    private final MemorySegment executable;
    private final long nodes;
    private final long fills;
    private final Leaks.@Nullable Trace trace;
    private boolean closed;

    private Graph(Stream stream, long number, Capture capture, MemorySegment executable, long nodes, long fills) {
        this.stream = stream;
        this.number = number;
        this.capture = capture;
        this.executable = executable;
        this.nodes = nodes;
        this.fills = fills;
        trace = Leaks.opened("graph of " + stream.device());
    }

    /** Records what {@code body} enqueues on {@code stream}. */
    static Graph capture(Stream stream, Runnable body) {
        DeviceState device = stream.device().state();
        MemorySegment handle = stream.handle();
        device.ensureThreadNotCapturing("capture");
        device.ensureNotGrouping("capture");
        Capture capture = new Capture(device, handle);
        int begun = CudaRuntime.cudaStreamBeginCapture(handle, THREAD_LOCAL);
        if (begun != 0) {
            capture.fail();
        }
        Status.cuda(begun, "cudaStreamBeginCapture");
        long number = device.beginCapture(capture);
        stream.capturing(capture);
        MemorySegment graph = MemorySegment.NULL;
        boolean done = false;
        try {
            body.run();
            stream.capturing(null);
            graph = end(device, handle);
            Graph captured = instantiate(stream, number, capture, graph);
            capture.recorded();
            done = true;
            return captured;
        } finally {
            if (!done && graph.address() == 0) {
                abandon(device, handle);
            }
            stream.capturing(null);
            device.endCapture();
            if (graph.address() != 0) {
                CudaRuntime.cudaGraphDestroy(graph);
            }
            if (!done) {
                device.closeGraph(number);
                capture.fail();
            }
        }
    }

    private static MemorySegment end(DeviceState device, MemorySegment handle) {
        Status.cuda(CudaRuntime.cudaStreamEndCapture(handle, device.out()), "cudaStreamEndCapture");
        return device.out().get(ValueLayout.ADDRESS, 0);
    }

    /** Ends a failed capture and drops its graph, so that the stream can be used again. */
    private static void abandon(DeviceState device, MemorySegment handle) {
        device.out().set(ValueLayout.ADDRESS, 0, MemorySegment.NULL);
        if (CudaRuntime.cudaStreamEndCapture(handle, device.out()) == 0) {
            CudaRuntime.cudaGraphDestroy(device.out().get(ValueLayout.ADDRESS, 0));
        } else {
            // CUDA keeps it as the thread's last error, which TE would take for a failure of its own next call.
            CudaRuntime.cudaGetLastError();
        }
    }

    private static Graph instantiate(Stream stream, long number, Capture capture, MemorySegment graph) {
        MemorySegment out = stream.device().state().out();
        Status.cuda(CudaRuntime.cudaGraphGetNodes(graph, MemorySegment.NULL, out), "cudaGraphGetNodes");
        long nodes = out.get(ValueLayout.JAVA_LONG, 0);
        long fills = fills(graph, nodes, out);
        Status.cuda(CudaRuntime.cudaGraphInstantiate(out, graph, 0), "cudaGraphInstantiate");
        return new Graph(stream, number, capture, out.get(ValueLayout.ADDRESS, 0), nodes, fills);
    }

    /** Returns how many of a graph's nodes fill memory. */
    private static long fills(MemorySegment graph, long nodes, MemorySegment out) {
        if (nodes == 0) {
            return 0;
        }
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment handles = arena.allocate(ValueLayout.ADDRESS, nodes);
            out.set(ValueLayout.JAVA_LONG, 0, nodes);
            Status.cuda(CudaRuntime.cudaGraphGetNodes(graph, handles, out), "cudaGraphGetNodes");
            long fills = 0;
            for (long i = 0; i < nodes; i++) {
                MemorySegment node = handles.getAtIndex(ValueLayout.ADDRESS, i);
                Status.cuda(CudaRuntime.cudaGraphNodeGetType(node, out), "cudaGraphNodeGetType");
                fills += out.get(ValueLayout.JAVA_INT, 0) == CudaRuntime.cudaGraphNodeTypeMemset() ? 1 : 0;
            }
            return fills;
        }
    }

    /** Returns the stream that was captured and on which the graph runs. */
    public Stream stream() {
        return stream;
    }

    /** Returns the number of recorded calls: kernels, copies and fills. */
    public long nodes() {
        return nodes;
    }

    /**
     * Returns how many of the {@link #nodes()} are calls of {@code cudaMemsetAsync}, each of which costs the host a microsecond at every
     * launch. {@link Tensor#zero} records a kernel instead where it has at most 1 MiB to fill; libraries may fill memory themselves.
     */
    public long fills() {
        return fills;
    }

    /**
     * Enqueues the recorded work on the stream that was captured, after the work enqueued there. Once that has succeeded, counters such as
     * {@code Optimizer.step()} are incremented.
     *
     * @throws IllegalStateException after {@link #close()}, while a stream of the device captures, inside {@code Communicator.group}, or
     *     when an object that writes numbers of the step is closed. Also when gradients that the graph overwrites were written in this step
     *     already, or those that it adds to or reads were not. Also when memory whose contents kernels trust, such as the offsets of
     *     sequences, was handed out for something else
     * @throws dev.chagres.bindings.CudaException when CUDA refuses it
     */
    public void launch() {
        MemorySegment handle = stream.handle();
        if (closed) {
            throw new IllegalStateException("graph of " + stream.device() + " is closed");
        }
        stream.device().state().ensureNotCapturing("launch");
        stream.device().state().ensureNotGrouping("launch");
        stream.device().state().awaitReads();
        capture.prepare(handle);
        Status.cuda(CudaRuntime.cudaGraphLaunch(executable, handle), "cudaGraphLaunch");
        capture.finish();
    }

    /**
     * Waits for the stream and frees the graph. A second call does nothing.
     *
     * @throws IllegalStateException while a stream of the device captures
     */
    @Override
    public void close() {
        if (closed) {
            return;
        }
        DeviceState device = stream.device().state();
        device.ensureCurrent();
        device.ensureThreadNotCapturing("close");
        closed = true;
        Leaks.closed(trace);
        stream.device().forget(this);
        try {
            if (stream.isOpen()) {
                stream.synchronize();
            }
        } finally {
            int destroyed = CudaRuntime.cudaGraphExecDestroy(executable);
            device.closeGraph(number);
            capture.end();
            Status.cuda(destroyed, "cudaGraphExecDestroy");
        }
    }

    @Override
    public String toString() {
        return "graph of " + nodes + " nodes on " + stream;
    }
}
