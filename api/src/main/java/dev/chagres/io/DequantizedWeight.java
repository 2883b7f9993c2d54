package dev.chagres.io;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Scope;
import dev.chagres.Shape;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.parameter.QuantizedWeight;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * A dequantized weight, {@code q scaleInverse} rounded to nearest in the weight's nominal type, fetched piece by piece.
 *
 * <p>Threading: the device's thread.
 */
final class DequantizedWeight implements TensorSource {
    /** Numbers that are converted at a time. */
    private static final int AT_A_TIME = 1 << 12;

    private final TensorSpec spec;
    private final Tensor data;
    private final Scaling scaling;
    private final Stream stream;
    private final Scope views;
    /** The numbers that bytes stand for. */
    private final float[] values = new float[256];

    private final float[] inverse;
    private final long columns;
    private final long inverseColumns;

    DequantizedWeight(String name, QuantizedWeight weight, Stream stream, Scope views) {
        QuantizedTensor copies = weight.copies();
        spec = spec(name, weight);
        data = Checks.given("rowwise", copies.rowwise());
        scaling = copies.scaling();
        columns = copies.columns();
        this.stream = stream;
        this.views = views;
        for (int bits = 0; bits < values.length; bits++) {
            values[bits] = value(bits, copies.dtype());
        }
        Tensor scales = Checks.given("scaleInverse", copies.rowwiseScaleInverse());
        inverse = scales.toFloats(stream);
        inverseColumns = scales.rank() == 2 ? scales.size(1) : 1;
    }

    /** Returns the weight's name, type and shape in a file. */
    static TensorSpec spec(String name, QuantizedWeight weight) {
        return new TensorSpec(
                name,
                weight.dtype(),
                Shape.of(weight.copies().rows(), weight.copies().columns()));
    }

    private static float value(int bits, DType dtype) {
        if (dtype == DType.FLOAT8_E5M2) {
            return Float.float16ToFloat((short) (bits << 8));
        }
        int exponent = bits >> 3 & 15;
        int mantissa = bits & 7;
        float magnitude = exponent == 15 && mantissa == 7
                ? Float.NaN
                : exponent == 0 ? Math.scalb(mantissa, -9) : Math.scalb(8 + mantissa, exponent - 10);
        return bits >= 128 ? -magnitude : magnitude;
    }

    @Override
    public TensorSpec spec() {
        return spec;
    }

    @Override
    public void copyTo(long offset, MemorySegment target) {
        int size = spec.dtype().byteSize();
        long first = offset / size;
        long count = target.byteSize() / size;
        try (Arena arena = Arena.ofConfined();
                Scope one = views.open()) {
            MemorySegment bytes = arena.allocate(count);
            one.view(data, first, count).copyTo(stream, bytes);
            stream.synchronize();
            float[] weights = new float[(int) Math.min(count, AT_A_TIME)];
            for (long done = 0; done < count; done += AT_A_TIME) {
                int numbers = (int) Math.min(count - done, AT_A_TIME);
                for (int i = 0; i < numbers; i++) {
                    long element = done + i;
                    weights[i] = values[bytes.get(ValueLayout.JAVA_BYTE, element) & 255] * inverse(first + element);
                }
                spec.dtype().fromFloats(weights, 0, target, done, numbers);
            }
        }
    }

    private float inverse(long element) {
        if (scaling == Scaling.TENSOR) {
            return inverse[0];
        }
        long row = element / columns / Scaling.BLOCK;
        long column = element % columns / Scaling.BLOCK;
        return inverse[(int) (row * inverseColumns + column)];
    }
}
