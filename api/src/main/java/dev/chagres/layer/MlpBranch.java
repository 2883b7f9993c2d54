package dev.chagres.layer;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.layer.KernelChoice.ActivationKernel;
import dev.chagres.layer.MlpConfig.Recomputation;
import dev.chagres.model.ModelPlan;
import dev.chagres.te.Activation;
import dev.chagres.te.Gemm;
import dev.chagres.te.Gemm.Transpose;

/**
 * {@code y = activation(x W1^T + b1) W2^T + b2}.
 *
 * <p>Threading: the device's thread.
 */
final class MlpBranch extends Layer {
    private static final class Inner extends Saved {
        private final Kept x = new Kept("the input");
        private final Kept before = new Kept("the activation's input");
        private final Kept after = new Kept("the activation's output");
    }

    private final Activation activation;
    private final Recomputation recomputation;
    private final Linear fc1;
    private final Linear fc2;
    private final SavedPool<Inner> saved = new SavedPool<>(this, Inner::new);

    MlpBranch(MlpConfig config, ModelPlan plan) {
        super(plan.name());
        activation = config.activation();
        recomputation = config.recomputation();
        long before = activation.inputColumns(config.inner());
        fc1 = new Linear(config.hidden(), before, config.inputInitializer(), plan.child("fc1"));
        fc2 = new Linear(config.inner(), config.hidden(), config.outputInitializer(), plan.child("fc2"));
    }

    Linear fc1() {
        return fc1;
    }

    Linear fc2() {
        return fc2;
    }

    @Override
    protected void run(Tensor x, Tensor y, Pass pass) {
        Stream stream = pass.stream();
        long rows = x.size(0);
        Tensor before = pass.kept().tensor(x.dtype(), rows, fc1.outputColumns(x.size(1)));
        long inner = fc2.weight().shape().size(1);
        Tensor after =
                (recomputation == Recomputation.NONE ? pass.kept() : pass.temporary()).tensor(x.dtype(), rows, inner);
        if (KernelChoice.activation(activation, x.dtype()) == ActivationKernel.EPILOGUE) {
            Gemm.gemmBiasGelu(
                    x,
                    Transpose.NO,
                    fc1.weight().weight(),
                    Transpose.YES,
                    fc1.bias().weight(),
                    before,
                    after,
                    stream);
        } else {
            fc1.product(x, before, stream);
            activation.forward(before, after, stream);
        }
        fc2.product(after, y, stream);
        Inner inside = saved.push(pass);
        if (inside != null) {
            inside.x.set(x);
            inside.before.set(before);
            if (recomputation == Recomputation.NONE) {
                inside.after.set(after);
            } else {
                inside.after.clear();
            }
        }
    }

    @Override
    protected void gradient(Tensor dy, Tensor dx, Pass pass) {
        Inner inside = saved.pop(pass);
        Stream stream = pass.stream();
        Tensor x = inside.x.get();
        Tensor before = inside.before.get();
        Tensor dbefore = pass.temporary().like(before);
        if (fc2.requiresGradient()) {
            fc2.parameterGradients(dy, activated(inside, pass), pass);
        }
        if (!fc1.requiresGradient() && !x.requiresGradient()) {
            return;
        }
        gradientOfActivation(dy, before, dbefore, pass);
        fc1.parameterGradients(dbefore, x, pass);
        if (x.requiresGradient()) {
            fc1.inputGradient(dbefore, dx, stream);
        }
    }

    private Tensor activated(Inner inside, Pass pass) {
        if (!inside.after.isEmpty()) {
            return inside.after.get();
        }
        Tensor before = inside.before.get();
        Tensor after = pass.temporary()
                .tensor(before.dtype(), before.size(0), fc2.weight().shape().size(1));
        activation.forward(before, after, pass.stream());
        return after;
    }

    /** Enqueues {@code dbefore = (dy W2) activation'(before)}. */
    private void gradientOfActivation(Tensor dy, Tensor before, Tensor dbefore, Pass pass) {
        Stream stream = pass.stream();
        Tensor weight = fc2.weight().weight();
        if (KernelChoice.activation(activation, dy.dtype()) == ActivationKernel.EPILOGUE) {
            Gemm.gemmGeluGradient(dy, Transpose.NO, weight, Transpose.NO, before, dbefore, stream);
        } else if (activation.isGated()) {
            Tensor dafter = pass.temporary().tensor(dy.dtype(), dy.size(0), weight.size(1));
            fc2.inputGradient(dy, dafter, stream);
            activation.backward(dafter, before, dbefore, stream);
        } else {
            fc2.inputGradient(dy, dbefore, stream);
            activation.backward(dbefore, before, dbefore, stream);
        }
    }

    @Override
    public long outputColumns(long inputColumns) {
        return fc2.outputColumns(inputColumns);
    }

    @Override
    public boolean requiresGradient() {
        return fc1.requiresGradient() || fc2.requiresGradient();
    }

    @Override
    protected void checkInput(Tensor x) {
        fc1.checkInput(x);
    }

    @Override
    public String explain(Tensor x, Pass pass) {
        return fc1.explain(x, pass) + "\n" + name() + ": " + activation + " "
                + KernelChoice.activationReason(activation, x.dtype()) + "; "
                + (recomputation == Recomputation.NONE
                        ? "its output is kept"
                        : "backward computes its output again by " + activation.forwardFunction())
                + "\n" + fc2.explain(x, pass);
    }
}
