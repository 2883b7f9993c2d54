package dev.chagres.conformance;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.HostBuffer;
import dev.chagres.Scope;
import dev.chagres.Shape;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.witness.Rounding;
import dev.chagres.witness.Weights;
import java.lang.foreign.ValueLayout;
import java.util.Arrays;
import java.util.Objects;
import java.util.SplittableRandom;
import org.apache.commons.math3.linear.BlockRealMatrix;
import org.apache.commons.math3.linear.RealMatrix;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.extension.AfterAllCallback;
import org.junit.jupiter.api.extension.AfterEachCallback;
import org.junit.jupiter.api.extension.BeforeAllCallback;
import org.junit.jupiter.api.extension.BeforeEachCallback;
import org.junit.jupiter.api.extension.ExtensionContext;

/**
 * Opens device 0 for a test class and, for each test, a scope and random numbers. The numbers follow from one seed, printed a
 * class and replayed by {@code -Dchagres.test.seed}, and from the test's identity, so that a test alone draws the same.
 */
public final class OpenDevice implements BeforeAllCallback, AfterAllCallback, BeforeEachCallback, AfterEachCallback {
    private static final String SEED_PROPERTY = "chagres.test.seed";
    private static final long SEED = Long.getLong(SEED_PROPERTY, 2026);

    private final Comparison comparison = new Comparison();
    private @Nullable Device device;
    private @Nullable Scope scope;
    private @Nullable Pass pass;
    private @Nullable SplittableRandom random;

    /** Opens nothing yet; a test class registers it as an extension. */
    public OpenDevice() {}

    @Override
    public void beforeAll(ExtensionContext context) {
        System.out.println(context.getDisplayName() + ": replay with -D" + SEED_PROPERTY + "=" + SEED);
        open();
    }

    /** Opens the device. */
    public void open() {
        device = Device.open();
    }

    @Override
    public void beforeEach(ExtensionContext context) {
        begin(SEED * 0x9E3779B97F4A7C15L + context.getUniqueId().hashCode());
    }

    /** Opens a scope for one test, whose random numbers follow from {@code seed}. */
    public void begin(long seed) {
        random = new SplittableRandom(seed);
        scope = device().openScope();
    }

    /** Closes what {@link #begin} and {@link #pass} opened. */
    public void end() {
        Pass present = pass;
        pass = null;
        if (present != null) {
            present.close();
        }
        scope().close();
    }

    @Override
    public void afterEach(ExtensionContext context) {
        end();
        context.getExecutionException()
                .ifPresent(failure -> System.out.println(context.getDisplayName() + " failed with seed " + SEED));
    }

    @Override
    public void afterAll(ExtensionContext context) {
        close();
    }

    /** Closes the device and prints the largest errors. */
    public void close() {
        device().close();
        System.out.print(comparison.report());
    }

    /** Returns the seed of this run. */
    public static long seed() {
        return SEED;
    }

    /** Returns the device of this class. */
    public Device device() {
        return Objects.requireNonNull(device);
    }

    /** Returns the scope of this test. */
    public Scope scope() {
        return Objects.requireNonNull(scope);
    }

    /** Returns the training pass of this test, which was begun. */
    public Pass pass() {
        Pass present = pass;
        if (present == null) {
            present = Pass.training(device()).begin();
            pass = present;
        }
        return present;
    }

    /** Returns the stream of the device. */
    public Stream stream() {
        return device().stream();
    }

    /** Returns the random numbers of this test. */
    public SplittableRandom random() {
        return Objects.requireNonNull(random);
    }

    /** Returns normal numbers that {@code dtype} can hold. */
    public double[] normal(DType dtype, int count, double deviation) {
        double[] values = new double[count];
        for (int i = 0; i < count; i++) {
            values[i] = Rounding.round(deviation * random().nextGaussian(), dtype);
        }
        return values;
    }

    /** Returns a matrix of normal numbers that {@code dtype} can hold. */
    public RealMatrix normal(DType dtype, int rows, int columns, double deviation) {
        RealMatrix matrix = new BlockRealMatrix(rows, columns);
        for (int row = 0; row < rows; row++) {
            matrix.setRow(row, normal(dtype, columns, deviation));
        }
        return matrix;
    }

    /** Returns a tensor with the entries of {@code matrix}. */
    public Tensor tensor(DType dtype, RealMatrix matrix) {
        Tensor tensor = scope().tensor(dtype, matrix.getRowDimension(), matrix.getColumnDimension());
        set(tensor, Comparison.entries(matrix));
        return tensor;
    }

    /** Returns a tensor with {@code values}, which its type can hold, of these sizes. */
    public Tensor tensor(DType dtype, double[] values, long... sizes) {
        Tensor tensor = scope().tensor(dtype, Shape.of(sizes));
        set(tensor, values);
        return tensor;
    }

    /** Returns a tensor of integers, of one dimension. */
    public Tensor ints(int... values) {
        Tensor tensor = scope().tensor(DType.INT32, values.length);
        tensor.set(stream(), values);
        return tensor;
    }

    /** Returns a tensor of longs, of one dimension. */
    public Tensor longs(long... values) {
        Tensor tensor = scope().tensor(DType.INT64, values.length);
        tensor.set(stream(), values);
        return tensor;
    }

    /** Returns a tensor of NaN: for a result, which must be written and not be read. */
    public Tensor unwritten(DType dtype, long... sizes) {
        Tensor tensor = scope().tensor(dtype, Shape.of(sizes));
        float[] values = new float[(int) tensor.count()];
        Arrays.fill(values, Float.NaN);
        tensor.set(stream(), values);
        return tensor;
    }

    /** Copies {@code values}, which the tensor's type can hold. */
    public void set(Tensor tensor, double... values) {
        float[] floats = new float[values.length];
        for (int i = 0; i < values.length; i++) {
            floats[i] = (float) values[i];
        }
        tensor.set(stream(), floats);
    }

    /** Copies the entries of {@code values}, which the tensor's type can hold. */
    public void set(Tensor tensor, RealMatrix values) {
        set(tensor, Comparison.entries(values));
    }

    /**
     * Draws all weights and returns them: matrices that keep the size of what they multiply, factors of norms around 1, biases
     * around 0.
     */
    public Weights draw(Parameters parameters) {
        Weights weights = new Weights();
        for (Parameter parameter : parameters.all()) {
            boolean matrix = parameter.shape().rank() == 2;
            int columns = (int) parameter.shape().size(matrix ? 1 : 0);
            int rows = (int) (parameter.shape().count() / columns);
            DType dtype = parameter.weight().dtype();
            RealMatrix values = normal(dtype, rows, columns, matrix ? 1 / Math.sqrt(columns) : 0.2);
            if (!matrix && parameter.name().endsWith("weight")) {
                values = Rounding.round(values.scalarAdd(1), dtype);
            }
            set(parameter.weight(), values);
            weights.put(parameter.name(), values);
        }
        parameters.changed();
        return weights;
    }

    /** Checks the gradients of matrices against one tolerance, those of biases and norms against another. */
    public void assertGradients(Parameters parameters, Weights weights, Tolerance matrices, Tolerance vectors) {
        for (Parameter parameter : parameters.all()) {
            assertClose(
                    "gradient of " + parameter.name(),
                    weights.gradient(parameter.name()),
                    parameter.gradient(),
                    parameter.shape().rank() == 2 ? matrices : vectors);
        }
    }

    /** Returns the elements of a tensor of floats. */
    public float[] read(Tensor tensor) {
        return tensor.toFloats(stream());
    }

    /** Returns the first {@code count} bits of a mask; those behind them must be 0. */
    public boolean[] bits(Tensor mask, int count) {
        if (mask.count() != (count + 7) / 8) {
            throw new AssertionError(
                    "mask of " + count + " elements: expected " + (count + 7) / 8 + " bytes, got " + mask);
        }
        boolean[] bits = new boolean[count];
        try (HostBuffer host = HostBuffer.pinned(device(), mask.byteSize())) {
            mask.copyTo(stream(), host);
            stream().synchronize();
            for (int i = 0; i < 8 * mask.count(); i++) {
                boolean bit = (host.segment().get(ValueLayout.JAVA_BYTE, i / 8) >> (i % 8) & 1) == 1;
                if (i < count) {
                    bits[i] = bit;
                } else if (bit) {
                    throw new AssertionError("mask of " + count + " elements: bit " + i + " lies past them");
                }
            }
        }
        return bits;
    }

    /** Checks numbers against double precision; errors are compared with {@code magnitude} at least. */
    public void assertClose(String what, double[] expected, float[] actual, double magnitude, Tolerance tolerance) {
        comparison.check(what, expected, actual, magnitude, tolerance);
    }

    /** Checks a tensor against double precision. */
    public void assertClose(String what, double[] expected, Tensor actual, Tolerance tolerance) {
        comparison.check(what, expected, read(actual), 0, tolerance);
    }

    /** Checks a tensor against double precision. */
    public void assertClose(String what, RealMatrix expected, Tensor actual, Tolerance tolerance) {
        assertClose(what, Comparison.entries(expected), actual, tolerance);
    }
}
