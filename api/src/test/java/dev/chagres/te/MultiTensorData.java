package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.te.MultiTensor.BiasCorrection;
import dev.chagres.te.MultiTensor.WeightDecay;
import java.util.Arrays;

/** Lists of tensors of very different sizes, and the numbers of the optimizers that step over them. */
final class MultiTensorData {
    static final int[] SIZES = {1, 3, 1000, 65_536, 65_537, 17};
    static final float BETA_1 = 0.9f;
    static final float BETA_2 = 0.98f;
    static final float EPSILON = 1e-8f;
    static final float DECAY = 0.1f;

    private final OpenDevice open;

    private static final MultiTensorAdam L2 =
            new MultiTensorAdam(BETA_1, BETA_2, EPSILON, WeightDecay.L2, BiasCorrection.YES, DECAY);
    private static final MultiTensorAdam DECOUPLED =
            new MultiTensorAdam(BETA_1, BETA_2, EPSILON, WeightDecay.DECOUPLED, BiasCorrection.YES, DECAY);

    MultiTensorData(OpenDevice open) {
        this.open = open;
    }

    /** Returns a number on the device. */
    Tensor scalar(double value) {
        return open.tensor(DType.FLOAT32, new double[] {value}, 1);
    }

    /** Returns one tensor a size, of drawn numbers. */
    Tensor[] drawn(DType dtype, double deviation) {
        return Arrays.stream(SIZES)
                .mapToObj(size -> open.tensor(dtype, open.normal(dtype, size, deviation), size))
                .toArray(Tensor[]::new);
    }

    Tensor[] zeros(DType dtype) {
        Tensor[] zeros = Arrays.stream(SIZES)
                .mapToObj(size -> open.scope().tensor(dtype, size))
                .toArray(Tensor[]::new);
        Arrays.stream(zeros).forEach(zero -> zero.zero(open.stream()));
        return zeros;
    }

    /** Returns the elements of all, one tensor after the other. */
    double[] read(Tensor[] tensors) {
        return Arrays.stream(tensors)
                .flatMapToDouble(tensor -> {
                    float[] values = open.read(tensor);
                    double[] doubles = new double[values.length];
                    Arrays.setAll(doubles, i -> values[i]);
                    return Arrays.stream(doubles);
                })
                .toArray();
    }

    static float[] floats(double[] values) {
        float[] floats = new float[values.length];
        for (int i = 0; i < values.length; i++) {
            floats[i] = (float) values[i];
        }
        return floats;
    }

    /** Enqueues a corrected step of Adam. */
    void adam(Tensor flag, TensorLists lists, Tensor lr, Tensor step, WeightDecay mode, Tensor scale) {
        (mode == WeightDecay.L2 ? L2 : DECOUPLED).adamCapturable(flag, lists, lr, step, scale, open.stream());
    }
}
