package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;

/** A square {@link Linear}, "body", with its parameters and a training pass: the model of tests that need no more than a layer. */
public record OneLayer(Linear linear, Parameters parameters, Pass pass) implements AutoCloseable {
    /** Rows and columns of the weight. */
    public static final int SIZE = 16;

    /** Allocates the layer in {@code dtype}. */
    public static OneLayer open(Device device, DType dtype) {
        ModelPlan plan = new ModelPlan();
        Linear linear = new Linear(SIZE, SIZE, Initializer.normal(1), plan.group("body"));
        return new OneLayer(linear, Parameters.allocate(device, plan, dtype, 3), Pass.training(device));
    }

    /** Enqueues a micro-batch of the pass, with {@code x} as input and as gradient of the output. */
    public void microBatch(Tensor x) {
        microBatch(pass, x);
    }

    /** Enqueues a micro-batch of another pass. */
    public void microBatch(Pass other, Tensor x) {
        other.begin();
        linear.forward(x, other);
        linear.backward(x, other);
    }

    @Override
    public void close() {
        pass.close();
        parameters.close();
    }
}
