package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.te.HostToDevice;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.OperationsPerInvocation;

/** What does it cost to send a step's numbers to the device, 64 bytes as an argument of a kernel? */
@NullUnmarked
public class HostToDeviceBenchmark extends OperationBenchmark {
    private static final int COUNT = 16;

    private final Arena arena = Arena.ofShared();
    private final MemorySegment host = arena.allocate(ValueLayout.JAVA_FLOAT, COUNT);
    private Tensor target;

    /** For JMH. */
    public HostToDeviceBenchmark() {}

    @Override
    void prepare() {
        target = zeros(DType.FLOAT32, COUNT);
        host.setAtIndex(ValueLayout.JAVA_FLOAT, COUNT - 1, 7);
        copyHostToDeviceViaKernel();
        near("copy", 7, at(target, COUNT - 1), 0);
    }

    /** The copy. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void copyHostToDeviceViaKernel() {
        repeat(() -> HostToDevice.copyHostToDeviceViaKernel(host, target, stream));
    }

    @Override
    public void close() {
        super.close();
        arena.close();
    }
}
