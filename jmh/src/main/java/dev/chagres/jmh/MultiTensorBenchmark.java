package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.te.MultiTensor;
import dev.chagres.te.MultiTensor.BiasCorrection;
import dev.chagres.te.MultiTensor.SgdStep;
import dev.chagres.te.MultiTensor.WeightDecay;
import dev.chagres.te.MultiTensorAdam;
import dev.chagres.te.QuantizationConfig;
import dev.chagres.te.SgdConfig;
import dev.chagres.te.TensorLists;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.OperationsPerInvocation;

/** What do the norm of a layer's gradients, a step of Adam and the scales of 100 amaxes cost? */
@NullUnmarked
public class MultiTensorBenchmark extends OperationBenchmark {
    private static final float RATE = 1e-3f;
    private static final MultiTensorAdam ADAM =
            new MultiTensorAdam(0.9f, 0.999f, 1e-8f, WeightDecay.DECOUPLED, BiasCorrection.YES, 0);
    private static final int SCALES = 100;

    private Tensor flag;
    private Tensor partials;
    private Tensor norm;
    private Tensor rate;
    private Tensor step;
    private Tensor scale;
    private TensorLists gradients;
    private TensorLists plain;
    private TensorLists withMaster;
    private TensorLists scales;
    private TensorLists quantized;
    private TensorLists descent;
    private TensorLists scaled;

    /** For JMH. */
    public MultiTensorBenchmark() {}

    @Override
    void prepare() {
        long count = 4 * shape.hidden() * shape.hidden() + 2 * shape.hidden() * shape.inner();
        flag = zeros(DType.INT32, 1);
        partials = zeros(DType.FLOAT32, MultiTensor.NORM_PARTIALS);
        norm = zeros(DType.FLOAT32, 1);
        rate = empty(DType.FLOAT32, 1);
        rate.set(stream, RATE);
        step = ints(1);
        scale = empty(DType.FLOAT32, 1);
        scale.set(stream, 1f);
        Tensor g = ones(DType.FLOAT32, count);
        Tensor p = zeros(DType.FLOAT32, count);
        Tensor master = zeros(DType.FLOAT32, count);
        gradients = TensorLists.of(new Tensor[] {g});
        plain = TensorLists.ofRange(scope, 0, count, g, p, zeros(DType.FLOAT32, count), zeros(DType.FLOAT32, count));
        withMaster = TensorLists.of(
                new Tensor[] {ones(DType.BFLOAT16, count)},
                new Tensor[] {zeros(DType.BFLOAT16, count)},
                new Tensor[] {zeros(DType.FLOAT32, count)},
                new Tensor[] {zeros(DType.FLOAT32, count)},
                new Tensor[] {master});
        Tensor[] inverses = {zeros(DType.FLOAT32, SCALES)};
        scales = TensorLists.of(
                new Tensor[] {ones(DType.FLOAT32, SCALES)}, new Tensor[] {zeros(DType.FLOAT32, SCALES)}, inverses);
        computeScaleAndScaleInverse();
        near("computeScaleAndScaleInverse", 1 / 448.0, at(inverses[0], SCALES - 1), 1e-8);
        l2norm();
        near("l2norm", Math.sqrt(count), at(norm, 0), 1e-4);
        // Equal gradients and no decay: the first step is one rate downwards, whatever their size.
        adam(plain);
        near("adamCapturable", -RATE, at(p, 0), RATE / 100);
        adamMaster(withMaster);
        near("adamCapturableMaster", -RATE, at(master, 0), RATE / 100);
        prepareOthers(count);
    }

    private void prepareOthers(long count) {
        Tensor masters = zeros(DType.FLOAT32, count);
        Tensor moved = zeros(DType.FLOAT32, count);
        Tensor one = ones(DType.FLOAT32, 1);
        quantized = TensorLists.ofScaled(
                new Tensor[][] {
                    {ones(DType.BFLOAT16, count)},
                    {empty(DType.FLOAT8_E4M3, count)},
                    {zeros(DType.FLOAT32, count)},
                    {zeros(DType.FLOAT32, count)},
                    {masters}
                },
                new Tensor[] {one},
                new Tensor[] {zeros(DType.FLOAT32, 1)},
                new Tensor[] {zeros(DType.FLOAT32, 1)});
        descent = TensorLists.of(new Tensor[] {ones(DType.FLOAT32, count)}, new Tensor[] {moved}, new Tensor[] {
            zeros(DType.FLOAT32, count)
        });
        Tensor half = zeros(DType.FLOAT32, count);
        scaled = TensorLists.of(new Tensor[] {ones(DType.FLOAT32, count)}, new Tensor[] {half});
        Tensor factor = empty(DType.FLOAT32, 1);
        factor.set(stream, 0.5f);
        MultiTensor.scaleTensor(flag, scaled, factor, stream);
        near("scaleTensor", 0.5, at(half, 0), 1e-7);
        scaleByHost();
        near("scale", 0.25, at(half, 0), 1e-7);
        unscaleL2norm();
        near("unscaleL2norm", at(scale, 0) * Math.sqrt(count), at(norm, 0), 1e-4);
        adamInEightBits();
        near("adamFp8", -RATE, at(masters, 0), RATE / 100);
        descend();
        near("sgd", -RATE, at(moved, 0), RATE / 100);
    }

    private void adamInEightBits() {
        ADAM.adamFp8(quantized, RATE, 1, DType.FLOAT8_E4M3, stream);
    }

    private void descend() {
        MultiTensor.sgd(flag, descent, SgdConfig.of(RATE).withMomentum(0.9f, 0), SgdStep.LATER, stream);
    }

    private Tensor ones(DType dtype, long count) {
        return filled(dtype, 1, count);
    }

    private void adam(TensorLists lists) {
        ADAM.adamCapturable(flag, lists, rate, step, scale, stream);
    }

    private void adamMaster(TensorLists lists) {
        ADAM.adamCapturableMaster(flag, lists, rate, step, scale, stream);
    }

    /** The norm of all gradients. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void l2norm() {
        repeat(() -> MultiTensor.l2norm(flag, gradients, partials, norm, stream));
    }

    /** Scales and their inverses. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void computeScaleAndScaleInverse() {
        repeat(() -> MultiTensor.computeScaleAndScaleInverse(
                scales, DType.FLOAT8_E4M3, QuantizationConfig.standard(), stream));
    }

    /** A step over weights in eight bits with FP32 masters, and BFLOAT16 gradients. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void adamFp8() {
        repeat(this::adamInEightBits);
    }

    /** A step of descent with momentum over FP32 weights. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void sgd() {
        repeat(this::descend);
    }

    /** A factor on FP32 numbers. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void scaleTensor() {
        repeat(() -> MultiTensor.scaleTensor(flag, scaled, scale, stream));
    }

    /** A factor from the host. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void scaleByHost() {
        repeat(() -> MultiTensor.scale(flag, scaled, 0.25f, stream));
    }

    /** The norm of all scaled gradients. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void unscaleL2norm() {
        repeat(() -> MultiTensor.unscaleL2norm(flag, gradients, scale, partials, norm, stream));
    }

    /** A step over FP32 weights. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void adamCapturable() {
        repeat(() -> adam(plain));
    }

    /** A step over BFLOAT16 weights and gradients, and FP32 master weights. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void adamCapturableMaster() {
        repeat(() -> adamMaster(withMaster));
    }

    @Override
    public void close() {
        gradients.close();
        plain.close();
        withMaster.close();
        scales.close();
        quantized.close();
        descent.close();
        scaled.close();
        super.close();
    }
}
