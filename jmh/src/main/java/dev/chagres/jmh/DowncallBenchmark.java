package dev.chagres.jmh;

import dev.chagres.bindings.NativeLibraries;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.cuda.CudaRuntime;
import dev.chagres.bindings.te.TransformerEngine;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.concurrent.TimeUnit;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.BenchmarkMode;
import org.openjdk.jmh.annotations.Fork;
import org.openjdk.jmh.annotations.Measurement;
import org.openjdk.jmh.annotations.Mode;
import org.openjdk.jmh.annotations.OutputTimeUnit;
import org.openjdk.jmh.annotations.Scope;
import org.openjdk.jmh.annotations.Setup;
import org.openjdk.jmh.annotations.State;
import org.openjdk.jmh.annotations.TearDown;
import org.openjdk.jmh.annotations.Warmup;

/**
 * What does a call from Java cost: straight into the CUDA runtime, and through the guard into Transformer Engine?
 *
 * <p>Timed: the whole call as generated code makes it, status check included.
 */
@State(Scope.Thread)
@BenchmarkMode(Mode.AverageTime)
@OutputTimeUnit(TimeUnit.NANOSECONDS)
@Warmup(iterations = 3, time = 1)
@Measurement(iterations = 5, time = 1)
@Fork(value = 1, jvmArgsAppend = "--enable-native-access=ALL-UNNAMED")
public class DowncallBenchmark {
    private static final int FLOAT32 = 4;
    private static final long RECORD_BYTES = 144;

    private final Arena arena = Arena.ofConfined();
    private final MemorySegment out = arena.allocate(16, 8);
    private final MemorySegment record = arena.allocate(RECORD_BYTES, 8);
    private MemorySegment tensor = MemorySegment.NULL;

    /** Makes a tensor of 3 by 5 and checks that TE counts 15 elements. */
    @Setup
    public void prepare() {
        NativeLibraries.ensureLoaded();
        Status.te(TransformerEngine.te_create_tensor(0, out), "te_create_tensor");
        tensor = out.get(ValueLayout.ADDRESS, 0);
        record.set(ValueLayout.JAVA_INT, 8, FLOAT32);
        record.set(ValueLayout.JAVA_LONG, 16, 3);
        record.set(ValueLayout.JAVA_LONG, 24, 5);
        record.set(ValueLayout.JAVA_LONG, 136, 2);
        Status.te(TransformerEngine.te_set_tensor_param_v2(tensor, 0, record, RECORD_BYTES), "te_set_tensor_param_v2");
        if (guarded() != 15) {
            throw new IllegalStateException("expected 15 elements, got " + out.get(ValueLayout.JAVA_LONG, 0));
        }
        if (bare() != 0) {
            throw new IllegalStateException("expected no pending CUDA error");
        }
    }

    /** Through the guard: the number of elements of a tensor. */
    @Benchmark
    public long guarded() {
        Status.te(TransformerEngine.te_tensor_numel(tensor, out), "te_tensor_numel");
        return out.get(ValueLayout.JAVA_LONG, 0);
    }

    /** Straight into the library: the pending CUDA error. */
    @Benchmark
    public int bare() {
        return CudaRuntime.cudaPeekAtLastError();
    }

    /** Three guarded calls: create a tensor handle, describe it, destroy it. */
    @Benchmark
    public void tensorHandle() {
        Status.te(TransformerEngine.te_create_tensor(0, out), "te_create_tensor");
        MemorySegment handle = out.get(ValueLayout.ADDRESS, 0);
        Status.te(TransformerEngine.te_set_tensor_param_v2(handle, 0, record, RECORD_BYTES), "te_set_tensor_param_v2");
        Status.te(TransformerEngine.te_destroy_tensor(handle), "te_destroy_tensor");
    }

    /** Destroys the tensor. */
    @TearDown
    public void close() {
        Status.te(TransformerEngine.te_destroy_tensor(tensor), "te_destroy_tensor");
        arena.close();
    }
}
