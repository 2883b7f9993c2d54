package dev.chagres.samples.tour;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.layer.Linear;
import dev.chagres.ops.Elementwise;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.ContextPool;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Recomputed;
import dev.chagres.pass.SavedContext;
import dev.chagres.pass.SavedTensor;
import dev.chagres.pass.Sequential;
import java.util.Arrays;

/** Defines a new layer and runs it in a stack, recomputed and in evaluation: the same bits each time. */
final class Sample09OwnLayer {
    private static final int TOKENS = 3;
    private static final int COLUMNS = 8;

    private Sample09OwnLayer() {}

    // @start region="layer"
    /** {@code y = x + inner(x)}. */
    private static final class Skip extends Layer {
        /** What backward needs: here only the output of the inner layer, to show how it is kept. */
        private static final class Sum extends SavedContext {
            private final SavedTensor added = new SavedTensor("the inner layer's output");
        }

        private final Layer inner;
        private final ContextPool<Sum> saved = new ContextPool<>(this, Sum::new);

        Skip(Layer inner) {
            super("skip round " + inner);
            this.inner = inner;
        }

        @Override
        protected void run(Tensor x, Tensor y, Pass pass) {
            Tensor added = inner.forward(x, pass);
            Elementwise.add(added, x, y, pass.stream());
            Sum sum = saved.push(pass);
            if (sum != null) { // null while the pass saves nothing
                sum.added.set(added);
            }
        }

        @Override
        protected void gradient(Tensor dy, Tensor dx, Pass pass) {
            Tensor added = saved.pop(pass).added.get();
            if (added.count() != dy.count()) {
                throw new IllegalStateException("what forward kept is not what it was");
            }
            inner.backward(dy, dx, pass);
            Elementwise.add(dx, dy, dx, pass.stream());
        }

        @Override
        public boolean requiresGradient() {
            return inner.requiresGradient();
        }
    }
    // @end

    static void run() {
        ModelPlan plan = new ModelPlan();
        Layer first = new Skip(new Linear(COLUMNS, COLUMNS, Initializer.normal(0.3f), plan.child("first")));
        Layer second = new Skip(new Linear(COLUMNS, COLUMNS, Initializer.normal(0.3f), plan.child("second")));
        Layer plain = new Sequential("plain", first, second);
        Layer recomputed = new Recomputed(plain);
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.FLOAT32, 5);
                Pass training = Pass.training(device);
                Pass evaluation = Pass.evaluation(device)) {
            float[] y = output(plain, evaluation);
            float[] dx = gradient(plain, training);
            parameters.nextStep();
            if (!Arrays.equals(y, output(plain, training)) || !Arrays.equals(dx, gradient(recomputed, training))) {
                throw new IllegalStateException("expected the same bits in training, evaluation and recomputed");
            }
            System.out.printf("9 own layer: y[0, 0] = %.4f, dx[0, 0] = %.4f, recomputed too%n", y[0], dx[0]);
        }
    }

    private static float[] output(Layer layer, Pass pass) {
        pass.begin();
        return layer.forward(input(pass), pass).toFloats(pass.stream());
    }

    private static float[] gradient(Layer layer, Pass pass) {
        pass.begin();
        Tensor y = layer.forward(input(pass), pass);
        return layer.backward(y, pass).toFloats(pass.stream());
    }

    private static Tensor input(Pass pass) {
        float[] values = new float[TOKENS * COLUMNS];
        for (int i = 0; i < values.length; i++) {
            values[i] = (i % 5) - 2;
        }
        Tensor x = pass.scope().tensor(DType.FLOAT32, TOKENS, COLUMNS);
        x.set(pass.stream(), values);
        return x;
    }
}
