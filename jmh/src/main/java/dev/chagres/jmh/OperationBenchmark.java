package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Rectangle;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.jmh.states.BenchmarkDevice;
import dev.chagres.jmh.states.LayerShape;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.BenchmarkMode;
import org.openjdk.jmh.annotations.Fork;
import org.openjdk.jmh.annotations.Measurement;
import org.openjdk.jmh.annotations.Mode;
import org.openjdk.jmh.annotations.OutputTimeUnit;
import org.openjdk.jmh.annotations.Param;
import org.openjdk.jmh.annotations.Scope;
import org.openjdk.jmh.annotations.Setup;
import org.openjdk.jmh.annotations.State;
import org.openjdk.jmh.annotations.TearDown;
import org.openjdk.jmh.annotations.Warmup;

/**
 * The base of benchmarks of single operations: device, memory, random numbers. Each makes its tensors in {@code prepare}, where it checks
 * one number of each result against plain Java.
 *
 * <p>Timed: {@value #CALLS} calls one after another and the wait until the device is done, divided by their number. So the figure is the
 * larger of a call's time on the host and on the device.
 *
 * <p>They share one process, since starting a process on a GPU takes longer than measuring an operation: with separate processes all of
 * them would take half an hour. {@code -f 1} runs each in its own.
 */
@NullUnmarked
@State(Scope.Thread)
@BenchmarkMode(Mode.AverageTime)
@OutputTimeUnit(TimeUnit.MICROSECONDS)
@Warmup(iterations = 1, time = 200, timeUnit = TimeUnit.MILLISECONDS)
@Measurement(iterations = 3, time = 200, timeUnit = TimeUnit.MILLISECONDS)
@Fork(value = 0, jvmArgsAppend = "--enable-native-access=ALL-UNNAMED")
public abstract class OperationBenchmark {
    /** Calls before each wait. */
    static final int CALLS = 20;

    /** Shape of the layer in which the operation would stand. */
    @Param({"CPU"})
    public LayerShape shape;

    Device device;
    dev.chagres.Scope scope;
    Stream stream;
    private final BenchmarkDevice made = new BenchmarkDevice();
    private int calls;

    /** For the benchmarks of this package. */
    OperationBenchmark() {}

    /** Opens the device, makes the tensors, and checks the answers. */
    @Setup
    public void open() {
        made.open();
        device = made.device();
        scope = made.scope();
        stream = made.stream();
        calls = 1;
        prepare();
        stream.synchronize();
        calls = CALLS;
    }

    /** Makes the tensors, runs each operation once, and checks its answer. */
    abstract void prepare();

    /** Closes what was opened. */
    @TearDown
    public void close() {
        made.close();
    }

    /** Calls, {@value #CALLS} times once all is prepared, and waits. */
    final void repeat(Runnable call) {
        for (int i = 0; i < calls; i++) {
            call.run();
        }
        stream.synchronize();
    }

    final Tensor empty(DType dtype, long... sizes) {
        return made.empty(dtype, sizes);
    }

    final Tensor zeros(DType dtype, long... sizes) {
        return made.zeros(dtype, sizes);
    }

    final Tensor filled(DType dtype, float value, long... sizes) {
        return made.filled(dtype, value, sizes);
    }

    final Tensor normal(DType dtype, long... sizes) {
        return made.normal(dtype, sizes);
    }

    final void fill(Tensor tensor, float... values) {
        made.fill(tensor, values);
    }

    final Tensor ints(int... values) {
        Tensor tensor = empty(DType.INT32, values.length);
        tensor.set(stream, values);
        return tensor;
    }

    /** Returns numbers from 0 to {@code bound - 1}. */
    final int[] drawn(int count, int bound) {
        return made.drawn(count, bound);
    }

    final float[] read(Tensor tensor) {
        return tensor.toFloats(stream);
    }

    final float[] read(Tensor tensor, long first, long count) {
        return read(scope.view(tensor, first, count));
    }

    final float at(Tensor tensor, long index) {
        return read(tensor, index, 1)[0];
    }

    /** Reads the first column of a matrix. */
    final float[] column(Tensor matrix) {
        Tensor column = empty(matrix.dtype(), matrix.size(0));
        column.copyFrom(
                stream,
                new Rectangle(0, column.count(), 1, 1),
                matrix,
                new Rectangle(0, column.count(), 1, matrix.size(1)));
        return read(column);
    }

    final double columnSum(Tensor matrix) {
        double sum = 0;
        for (float value : column(matrix)) {
            sum += value;
        }
        return sum;
    }

    /** Returns the sum of products, element by element. */
    static double dot(float[] left, float[] right) {
        double sum = 0;
        for (int i = 0; i < left.length; i++) {
            sum += left[i] * (double) right[i];
        }
        return sum;
    }

    /** Checks a number against plain Java. */
    static void near(String what, double expected, double actual, double tolerance) {
        if (!(Math.abs(actual - expected) <= tolerance * Math.max(1, Math.abs(expected)))) {
            throw new IllegalStateException(what + ": expected " + expected + ", got " + actual);
        }
    }
}
