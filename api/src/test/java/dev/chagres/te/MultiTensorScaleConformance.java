package dev.chagres.te;

import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerances;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** {@code MultiTensor} against double precision, over tensors of very different sizes. */
@Tag("L0")
@Tag("L1")
class MultiTensorScaleConformance {
    private static final List<DType> TYPES = List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16);

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private final MultiTensorData data = new MultiTensorData(open);

    /** Over every pair of types; a number that is not finite raises the flag. */
    @Test
    void aFactorOfTheHost() {
        for (DType from : TYPES) {
            for (DType to : TYPES) {
                Tensor[] x = data.drawn(from, 1);
                Tensor[] y = data.zeros(to);
                Tensor flag = open.ints(0);
                double[] expected =
                        Arrays.stream(data.read(x)).map(value -> value * -3.25).toArray();
                try (TensorLists lists = TensorLists.of(x, y)) {
                    MultiTensor.scale(flag, lists, -3.25f, open.stream());
                    float[] actual = MultiTensorData.floats(data.read(y));
                    open.assertClose("y", expected, actual, 0, Tolerances.rounded(to));
                    assertEquals(0, flag.toInts(open.stream())[0]);
                    open.set(x[0], Float.NEGATIVE_INFINITY);
                    MultiTensor.scale(flag, lists, -3.25f, open.stream());
                    assertEquals(1, flag.toInts(open.stream())[0]);
                    assertEquals(Float.POSITIVE_INFINITY, open.read(y[0])[0]);
                }
            }
        }
    }

    @Test
    void normOfUnscaledNumbers() {
        for (DType dtype : TYPES) {
            Tensor[] x = data.drawn(dtype, 3);
            double[] before = data.read(x);
            Tensor flag = open.ints(0);
            Tensor partials = open.unwritten(DType.FLOAT32, MultiTensor.NORM_PARTIALS);
            Tensor norm = open.unwritten(DType.FLOAT32, 1);
            double expected =
                    0.3f * Math.sqrt(Arrays.stream(before).map(v -> v * v).sum());
            try (TensorLists lists = TensorLists.of(x)) {
                Tensor factor = data.scalar(0.3f);
                // Twice: the kernels add to the partial sums.
                for (int round = 0; round < 2; round++) {
                    MultiTensor.unscaleL2norm(flag, lists, factor, partials, norm, open.stream());
                    open.assertClose("norm", new double[] {expected}, norm, Tolerances.rounded(DType.FLOAT32));
                }
                assertEquals(0, flag.toInts(open.stream())[0]);
                assertEquals(Arrays.toString(before), Arrays.toString(data.read(x)), "are read alone");
                open.set(factor, Float.POSITIVE_INFINITY);
                MultiTensor.unscaleL2norm(flag, lists, factor, partials, norm, open.stream());
                assertEquals(1, flag.toInts(open.stream())[0]);
            }
        }
    }

    @Test
    void nothingAndNoGarbage() {
        Tensor flag = open.ints(0);
        Tensor partials = open.unwritten(DType.FLOAT32, MultiTensor.NORM_PARTIALS);
        Tensor norm = open.unwritten(DType.FLOAT32, 1);
        Tensor factor = data.scalar(2);
        try (TensorLists none = TensorLists.of(new Tensor[0], new Tensor[0])) {
            MultiTensor.scale(flag, none, 2, open.stream());
            assertEquals(0, flag.toInts(open.stream())[0]);
        }
        try (TensorLists none = TensorLists.of(new Tensor[][] {new Tensor[0]})) {
            MultiTensor.unscaleL2norm(flag, none, factor, partials, norm, open.stream());
            assertEquals(0, open.read(norm)[0]);
        }
        Tensor x = open.tensor(DType.BFLOAT16, open.normal(DType.BFLOAT16, 33, 1), 33);
        try (TensorLists one = TensorLists.of(new Tensor[] {x});
                TensorLists two = TensorLists.of(
                        new Tensor[] {x}, new Tensor[] {open.scope().like(x)})) {
            Allocation.assertNone("scaling", () -> {
                MultiTensor.scale(flag, two, 2, open.stream());
                MultiTensor.unscaleL2norm(flag, one, factor, partials, norm, open.stream());
            });
        }
    }
}
