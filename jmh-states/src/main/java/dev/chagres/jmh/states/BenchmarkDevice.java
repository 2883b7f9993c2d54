package dev.chagres.jmh.states;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Event;
import dev.chagres.Graph;
import dev.chagres.Shape;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Provider;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.cuda.CudaRuntime;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.SplittableRandom;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Level;
import org.openjdk.jmh.annotations.Scope;
import org.openjdk.jmh.annotations.Setup;
import org.openjdk.jmh.annotations.State;
import org.openjdk.jmh.annotations.TearDown;

/**
 * A device for a benchmark, open during a trial. It makes tensors of a distribution, and times work to its end. The {@code @Setup} of the
 * benchmark takes it as a parameter and keeps it in a field: JMH gives each method with such a parameter a device of its own.
 *
 * <p>A call that computes returns when it is enqueued. {@link #untilIdle} makes JMH's time that until the device is done, and {@link
 * #deviceMillis} is the device's own, by two of CUDA's events. On the reference both are the time of the CPU.
 *
 * <p>Threading: one for each of JMH's threads.
 */
@NullUnmarked
@State(Scope.Thread)
public class BenchmarkDevice {
    /** Different numbers of {@link #normal}; a prime, so that rows of a matrix differ. */
    private static final int DRAWN = 1_000_003;

    private static final long SEED = 1;
    private static final int BUS_ID_BYTES = 32;

    private Device device;
    private dev.chagres.Scope scope;
    private Event begun;
    private Event done;
    private SplittableRandom random;

    /** For JMH, or for a state that opens it itself. */
    public BenchmarkDevice() {}

    /** Opens device 0 and a scope; numbers drawn begin with the same seed. */
    @Setup(Level.Trial)
    public void open() {
        device = Device.open();
        scope = device.openScope();
        begun = device.openEvent();
        done = device.openEvent();
        random = new SplittableRandom(SEED);
        DeviceProfiler.counted(0);
        if (device.provider() == Provider.CUDA) {
            try (Arena arena = Arena.ofConfined()) {
                MemorySegment id = arena.allocate(BUS_ID_BYTES);
                Status.cuda(
                        CudaRuntime.cudaDeviceGetPCIBusId(id, BUS_ID_BYTES, device.index()), "cudaDeviceGetPCIBusId");
                DeviceProfiler.opened(id.getString(0));
            }
        }
    }

    /** Closes what was opened. */
    @TearDown(Level.Trial)
    public void close() {
        scope.close();
        device.close();
    }

    /** Returns the device. */
    public Device device() {
        return device;
    }

    /** Returns the device's own stream. */
    public Stream stream() {
        return device.stream();
    }

    /** Returns the scope of the tensors that this state makes. */
    public dev.chagres.Scope scope() {
        return scope;
    }

    /** Returns a new tensor whose elements are anything. */
    public Tensor empty(DType dtype, long... sizes) {
        return scope.tensor(dtype, Shape.of(sizes));
    }

    /** Returns a new tensor of zeros. */
    public Tensor zeros(DType dtype, long... sizes) {
        Tensor tensor = empty(dtype, sizes);
        tensor.zero(stream());
        return tensor;
    }

    /** Returns a new tensor of equal numbers. */
    public Tensor filled(DType dtype, float value, long... sizes) {
        Tensor tensor = empty(dtype, sizes);
        fill(tensor, value);
        return tensor;
    }

    /** Returns a new tensor of normally distributed numbers, which repeat after the first {@value #DRAWN}. */
    public Tensor normal(DType dtype, long... sizes) {
        Tensor tensor = empty(dtype, sizes);
        float[] values = new float[Math.toIntExact(Math.min(tensor.count(), DRAWN))];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) random.nextGaussian();
        }
        fill(tensor, values);
        return tensor;
    }

    /** Returns {@code count} numbers from 0 to {@code bound - 1}. */
    public int[] drawn(int count, int bound) {
        return random.ints(count, 0, bound).toArray();
    }

    /** Repeats the values until the tensor's end: on the device, since a host takes a second for a large matrix. */
    public void fill(Tensor tensor, float... values) {
        long filled = values.length;
        if (tensor.count() == 0) {
            return;
        }
        scope.view(tensor, 0, filled).set(stream(), values);
        while (filled < tensor.count()) {
            long more = Math.min(filled, tensor.count() - filled);
            scope.view(tensor, filled, more).copyFrom(stream(), scope.view(tensor, 0, more));
            filled += more;
        }
    }

    /** Runs what enqueues work on {@link #stream()}, and waits until the device is done. */
    public void untilIdle(Runnable work) {
        work.run();
        stream().synchronize();
    }

    /**
     * Returns how many kernels, copies and fills the work enqueues on {@link #stream()}, which it does not do: they are captured as a graph. For the
     * benchmark's {@code @Setup}, after a run of the same work; {@link DeviceProfiler} shows the number.
     *
     * @throws dev.chagres.bindings.CaptureException when the work cannot be captured, since it waits or allocates
     */
    public long countNodes(Runnable work) {
        try (Graph graph = stream().capture(work)) {
            DeviceProfiler.counted(graph.nodes());
            return graph.nodes();
        }
    }

    /**
     * Runs what enqueues work on {@link #stream()}, waits until the device is done, and returns the time between two events, before and
     * after the work. {@link DeviceProfiler} adds these times up.
     */
    public float deviceMillis(Runnable work) {
        begun.record(stream());
        work.run();
        done.record(stream());
        done.synchronize();
        float millis = done.millisSince(begun);
        DeviceProfiler.add(millis, device.peakHeldBytes());
        return millis;
    }
}
