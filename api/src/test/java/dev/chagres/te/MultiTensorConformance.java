package dev.chagres.te;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerances;
import dev.chagres.te.MultiTensor.WeightDecay;
import dev.chagres.witness.Float8Witness;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** {@code MultiTensor} without its optimizers against double precision, over tensors of very different sizes. */
@Tag("L0")
@Tag("L1")
class MultiTensorConformance {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private final MultiTensorData data = new MultiTensorData(open);

    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void norm(DType dtype) {
        Tensor[] tensors = data.drawn(dtype, 3);
        Tensor flag = open.ints(0);
        Tensor partials = open.unwritten(DType.FLOAT32, MultiTensor.NORM_PARTIALS);
        Tensor norm = open.unwritten(DType.FLOAT32, 1);
        try (TensorLists lists = TensorLists.of(tensors)) {
            // Twice: the kernels add to the partial sums.
            for (int round = 0; round < 2; round++) {
                MultiTensor.l2norm(flag, lists, partials, norm, open.stream());
                double expected = Math.sqrt(
                        Arrays.stream(data.read(tensors)).map(x -> x * x).sum());
                open.assertClose("norm", new double[] {expected}, norm, Tolerances.rounded(DType.FLOAT32));
                assertEquals(0, flag.toInts(open.stream())[0]);
            }
        }
    }

    @Test
    void normThatIsNotFiniteRaisesTheFlag() {
        for (float value : new float[] {Float.NaN, Float.POSITIVE_INFINITY, Float.NEGATIVE_INFINITY}) {
            Tensor[] tensors = data.drawn(DType.FLOAT32, 1);
            open.set(tensors[0], value);
            Tensor flag = open.ints(0);
            Tensor norm = open.unwritten(DType.FLOAT32, 1);
            try (TensorLists lists = TensorLists.of(tensors)) {
                Tensor partials = open.unwritten(DType.FLOAT32, MultiTensor.NORM_PARTIALS);
                MultiTensor.l2norm(flag, lists, partials, norm, open.stream());
            }
            assertEquals(1, flag.toInts(open.stream())[0], "flag of " + value);
            assertEquals(false, Float.isFinite(open.read(norm)[0]));
        }
    }

    @ParameterizedTest
    @EnumSource(names = {"FLOAT8_E4M3", "FLOAT8_E5M2"})
    void scalesOfMagnitudes(DType dtype) {
        double largest = Float8Witness.largest(dtype);
        for (QuantizationConfig.Scales scales : QuantizationConfig.Scales.values()) {
            Tensor[] amaxes = data.drawn(DType.FLOAT32, 5);
            open.set(amaxes[1], new double[] {0, Double.POSITIVE_INFINITY, 1e-30});
            Tensor[] written = data.zeros(DType.FLOAT32);
            Tensor[] inverses = data.zeros(DType.FLOAT32);
            double[] magnitudes = data.read(amaxes);
            QuantizationConfig config =
                    QuantizationConfig.standard().withScales(scales).withAmaxEpsilon(0.25f);
            try (TensorLists lists = TensorLists.of(amaxes, written, inverses)) {
                MultiTensor.computeScaleAndScaleInverse(lists, dtype, config, open.stream());
            }
            double[] scale = data.read(written);
            double[] inverse = data.read(inverses);
            for (int i = 0; i < magnitudes.length; i++) {
                double amax = Math.max(magnitudes[i], 0.25);
                double exact = Double.isInfinite(amax) ? 1 : largest / amax;
                if (scales == QuantizationConfig.Scales.POWER_OF_2) {
                    assertEquals(Math.scalb(1.0, Math.getExponent((float) exact)), scale[i]);
                } else {
                    assertEquals(exact, scale[i], exact * 2e-7);
                }
                assertEquals(1 / scale[i], inverse[i], 2e-7 / scale[i]);
            }
        }
    }

    /** Without a least magnitude nothing is divided by zero. */
    @Test
    void scalesOfNothing() {
        Tensor[] amax = {open.tensor(DType.FLOAT32, new double[] {0, 2e-38, Double.NaN}, 3)};
        Tensor[] scale = {open.unwritten(DType.FLOAT32, 3)};
        Tensor[] inverse = {open.unwritten(DType.FLOAT32, 3)};
        try (TensorLists lists = TensorLists.of(amax, scale, inverse);
                TensorLists none = TensorLists.of(new Tensor[0], new Tensor[0], new Tensor[0])) {
            QuantizationConfig config = QuantizationConfig.standard();
            MultiTensor.computeScaleAndScaleInverse(lists, DType.FLOAT8_E4M3, config, open.stream());
            MultiTensor.computeScaleAndScaleInverse(none, DType.FLOAT8_E4M3, config, open.stream());
            assertArrayEquals(new float[] {1, Float.MAX_VALUE, 1}, open.read(scale[0]));
            Allocation.assertNone(
                    "scales",
                    () -> MultiTensor.computeScaleAndScaleInverse(lists, DType.FLOAT8_E4M3, config, open.stream()));
        }
    }

    @Test
    void withoutTensors() {
        Tensor flag = open.ints(0);
        Tensor norm = open.unwritten(DType.FLOAT32, 1);
        Tensor buffer = open.scope().tensor(DType.FLOAT32, 10);
        Tensor partials = open.unwritten(DType.FLOAT32, MultiTensor.NORM_PARTIALS);
        try (TensorLists one = TensorLists.ofRange(open.scope(), 10, 0, buffer);
                TensorLists four = TensorLists.of(new Tensor[0], new Tensor[0], new Tensor[0], new Tensor[0])) {
            assertEquals(0, one.tensorCount());
            MultiTensor.l2norm(flag, one, partials, norm, open.stream());
            data.adam(flag, four, data.scalar(1), open.ints(1), WeightDecay.DECOUPLED, data.scalar(1));
        }
        assertEquals(0, open.read(norm)[0]);
    }

    @Test
    void rangesOfBuffers() {
        double[] values = open.normal(DType.FLOAT32, 100, 1);
        Tensor buffer = open.tensor(DType.FLOAT32, values, 100);
        Tensor norm = open.unwritten(DType.FLOAT32, 1);
        Tensor partials = open.unwritten(DType.FLOAT32, MultiTensor.NORM_PARTIALS);
        try (TensorLists lists = TensorLists.ofRange(open.scope(), 30, 50, buffer)) {
            assertEquals(List.of(1, 1), List.of(lists.listCount(), lists.tensorCount()));
            MultiTensor.l2norm(open.ints(0), lists, partials, norm, open.stream());
        }
        double expected =
                Math.sqrt(Arrays.stream(values, 30, 80).map(x -> x * x).sum());
        open.assertClose("norm", new double[] {expected}, norm, Tolerances.rounded(DType.FLOAT32));
    }

    @Test
    void makesNoGarbage() {
        Tensor flag = open.ints(0);
        Tensor norm = data.scalar(0);
        Tensor partials = open.unwritten(DType.FLOAT32, MultiTensor.NORM_PARTIALS);
        Tensor lr = data.scalar(1e-3);
        Tensor step = open.ints(1);
        Tensor scale = data.scalar(1);
        Tensor[] g = {of(DType.FLOAT32, 8), of(DType.FLOAT32, 3)};
        try (TensorLists one = TensorLists.of(g);
                TensorLists four = TensorLists.of(
                        g,
                        new Tensor[] {of(DType.FLOAT32, 8), of(DType.FLOAT32, 3)},
                        new Tensor[] {of(DType.FLOAT32, 8), of(DType.FLOAT32, 3)},
                        new Tensor[] {of(DType.FLOAT32, 8), of(DType.FLOAT32, 3)})) {
            Allocation.assertNone("norm and step", () -> {
                MultiTensor.l2norm(flag, one, partials, norm, open.stream());
                data.adam(flag, four, lr, step, WeightDecay.DECOUPLED, scale);
            });
        }
    }

    private static Tensor of(DType dtype, long... sizes) {
        Tensor tensor = open.scope().tensor(dtype, Shape.of(sizes));
        tensor.zero(open.stream());
        return tensor;
    }
}
