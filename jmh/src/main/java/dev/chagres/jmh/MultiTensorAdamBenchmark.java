package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.te.MultiTensor.BiasCorrection;
import dev.chagres.te.MultiTensor.WeightDecay;
import dev.chagres.te.MultiTensorAdam;
import dev.chagres.te.TensorLists;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.OperationsPerInvocation;

/** What does a step of Adam over a layer's weights cost, with numbers of the host? */
@NullUnmarked
public class MultiTensorAdamBenchmark extends OperationBenchmark {
    private static final float RATE = 1e-3f;
    private static final MultiTensorAdam ADAM =
            new MultiTensorAdam(0.9f, 0.999f, 1e-8f, WeightDecay.DECOUPLED, BiasCorrection.YES, 0);

    private TensorLists withMaster;
    private TensorLists withRemainder;

    /** For JMH. */
    public MultiTensorAdamBenchmark() {}

    @Override
    void prepare() {
        long count = 4 * shape.hidden() * shape.hidden() + 2 * shape.hidden() * shape.inner();
        Tensor gradient = filled(DType.BFLOAT16, 1, count);
        Tensor master = zeros(DType.FLOAT32, count);
        Tensor upper = zeros(DType.BFLOAT16, count);
        withMaster = lists(gradient, zeros(DType.BFLOAT16, count), count, master);
        withRemainder = lists(gradient, upper, count, zeros(DType.INT16, count));
        // Equal gradients and no decay: the first step is one rate downwards, whatever their size.
        stepOfMasters();
        stepOfRemainders();
        near("adam", -RATE, at(master, 0), RATE / 100);
        near("adamParamRemainder", -RATE, at(upper, 0), RATE / 100);
    }

    private TensorLists lists(Tensor gradient, Tensor weight, long count, Tensor master) {
        return TensorLists.of(
                new Tensor[] {gradient},
                new Tensor[] {weight},
                new Tensor[] {zeros(DType.FLOAT32, count)},
                new Tensor[] {zeros(DType.FLOAT32, count)},
                new Tensor[] {master});
    }

    private void stepOfMasters() {
        ADAM.adam(withMaster, RATE, 1, stream);
    }

    private void stepOfRemainders() {
        ADAM.adamParamRemainder(withRemainder, RATE, 1, stream);
    }

    /** A step over BFLOAT16 weights and gradients, and FP32 master weights. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void adam() {
        repeat(this::stepOfMasters);
    }

    /** The same step over BFLOAT16 weights and the remainders of their masters. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void adamParamRemainder() {
        repeat(this::stepOfRemainders);
    }

    @Override
    public void close() {
        withMaster.close();
        withRemainder.close();
        super.close();
    }
}
