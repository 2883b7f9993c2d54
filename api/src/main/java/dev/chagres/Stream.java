package dev.chagres;

import dev.chagres.bindings.Status;
import dev.chagres.bindings.cuda.CudaRuntime;
import dev.chagres.internal.memory.Capture;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.internal.memory.HostWaits;
import dev.chagres.internal.memory.Leaks;
import dev.chagres.internal.memory.Workspace;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import org.jspecify.annotations.Nullable;

/**
 * A queue of device work: what is enqueued on one stream runs in that order.
 *
 * <p>Every operation that takes a stream, or a scope that belongs to one, returns when the work is <em>enqueued</em>;
 * {@link #synchronize()} waits for it. The reference provider computes before it returns.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code cudaStream_t} of the CUDA runtime.
 */
public final class Stream implements AutoCloseable {
    private static final int NON_BLOCKING = 1;

    private final Device device;
    private final MemorySegment handle;
    private final Leaks.@Nullable Trace trace;
    private final Workspace workspace;
    /** Memory that is taken back when the call that allocated it returns. */
    private final Scope scratch;
    /** Memory for tensors that a recomputed layer saves; taken back when its backward call returns. */
    private final Scope recomputed;

    /** What belongs to the graph that is being captured. */
    private @Nullable Capture capture;

    private boolean closed;

    Stream(Device device) {
        this.device = device;
        DeviceState state = device.state();
        state.ensureCurrent();
        Status.cuda(CudaRuntime.cudaStreamCreateWithFlags(state.out(), NON_BLOCKING), "cudaStreamCreateWithFlags");
        handle = state.out().get(ValueLayout.ADDRESS, 0);
        trace = Leaks.opened("stream of " + device);
        workspace = new Workspace(state, MemoryUse.Holder.WORKSPACES.ordinal());
        scratch = Scope.ofStream(this).countedAs(MemoryUse.Holder.TEMPORARY);
        recomputed = Scope.ofStream(this).countedAs(MemoryUse.Holder.RECOMPUTATION);
    }

    /** Returns the device on which the work runs. */
    public Device device() {
        return device;
    }

    /**
     * Records what {@code body} enqueues on this stream, without running it. What the body does on the host happens now, once.
     *
     * <p>The work must have run before with the same shapes, and passes and scopes must have been begun or restarted since, so that the
     * body allocates no memory and builds no kernels. Nothing in the body may wait for the device or copy from or to the host's memory;
     * launches repeat the present values of {@link dev.chagres.te.HostToDevice} copies. The body may contain one step of an optimizer at
     * most.
     *
     * @return the graph, which {@link Graph#launch()} enqueues
     * @throws dev.chagres.bindings.CaptureException when a stream of the device captures already, or when the body waits, copies,
     *     takes memory, or runs a pass or an optimizer of another stream; after that, and after anything else that the body throws, the stream can be used as before
     * @throws IllegalStateException inside {@code Communicator.group}, whose collectives run at its end
     * @throws dev.chagres.bindings.CudaException when CUDA refuses the capture
     */
    public Graph capture(Runnable body) {
        if (body == null) {
            throw new NullPointerException("body: expected a value, got null");
        }
        return device.keep(Graph.capture(this, body));
    }

    /** Returns what belongs to the graph that is being captured, or null. */
    @Nullable
    Capture capture() {
        return capture;
    }

    void capturing(@Nullable Capture present) {
        capture = present;
    }

    /**
     * Waits until everything enqueued so far is done.
     *
     * @throws IllegalStateException while a stream of the device captures
     * @throws dev.chagres.bindings.CudaException when any of it failed
     * @throws dev.chagres.nccl.RankFailedException when a rank in another process failed, or did not join a collective that the work waits
     *     for within the timeout
     */
    public void synchronize() {
        MemorySegment present = handle();
        device.state().ensureNotCapturing("synchronize");
        HostWaits waits = device.state().waits();
        waits.begin();
        int status = CudaRuntime.cudaStreamSynchronize(present);
        waits.end();
        waits.check();
        Status.cuda(status, "cudaStreamSynchronize");
    }

    /** Makes later work on this stream wait for {@code event}, without blocking the thread. */
    public void await(Event event) {
        MemorySegment mark = Given.given("event", event).handle();
        Status.cuda(CudaRuntime.cudaStreamWaitEvent(handle(), mark, 0), "cudaStreamWaitEvent");
    }

    Workspace workspace() {
        return workspace;
    }

    Scope scratch() {
        return scratch;
    }

    Scope recomputed() {
        return recomputed;
    }

    /** Returns whether {@link #close()} has not been called. */
    boolean isOpen() {
        return !closed;
    }

    /**
     * Returns CUDA's own handle ({@code cudaStream_t}), for calls through the bindings.
     *
     * @throws IllegalStateException after {@link #close()}
     * @throws WrongThreadException from a thread that does not own the device
     */
    public MemorySegment handle() {
        device.state().ensureCurrent();
        if (closed) {
            throw new IllegalStateException("stream of " + device + " is closed");
        }
        return handle;
    }

    /**
     * Waits for the enqueued work and destroys the stream. A second call does nothing.
     *
     * @throws IllegalStateException while a stream of the device captures, or inside {@code Communicator.group}
     */
    @Override
    public void close() {
        if (closed) {
            return;
        }
        device.state().ensureCloses();
        device.state().waits().begin();
        int idle = CudaRuntime.cudaStreamSynchronize(handle);
        device.state().waits().end();
        closed = true;
        recomputed.close();
        scratch.close();
        workspace.close();
        Leaks.closed(trace);
        device.forget(this);
        int destroyed = CudaRuntime.cudaStreamDestroy(handle);
        Status.cuda(idle, "cudaStreamSynchronize");
        Status.cuda(destroyed, "cudaStreamDestroy");
    }

    @Override
    public String toString() {
        return "stream of " + device;
    }
}
