package dev.chagres.layer;

import dev.chagres.Scope;
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
        private final Operand x = new Operand("the input");
        private final Kept before = new Kept("the activation's input");
        private final Operand after = new Operand("the activation's output");
    }

    private final Activation activation;
    private final Recomputation recomputation;
    private final Linear fc1;
    private final Linear fc2;
    private final long inner;
    private final SavedPool<Inner> saved = new SavedPool<>(this, Inner::new);

    MlpBranch(MlpConfig config, ModelPlan plan) {
        super(plan.name());
        activation = config.activation();
        recomputation = config.recomputation();
        inner = config.inner();
        long hidden = config.hidden();
        long columns = activation.inputColumns(inner);
        fc1 = new Linear(hidden, columns, config.bias(), config.inputInitializer(), plan.child("fc1"));
        fc2 = new Linear(inner, hidden, config.bias(), config.outputInitializer(), plan.child("fc2"));
    }

    Linear fc1() {
        return fc1;
    }

    Linear fc2() {
        return fc2;
    }

    @Override
    protected void run(Tensor x, Tensor y, Pass pass) {
        Inner inside = saved.take();
        LinearProducts first = fc1.products();
        LinearProducts second = fc2.products();
        boolean keepsAfter = recomputation == Recomputation.NONE;
        first.prepare(x, inside.x, pass.isSaving() ? pass.kept() : null, pass);
        Tensor before = pass.kept().tensor(x.dtype(), x.size(0), fc1.outputColumns(x.size(1)));
        Scope afterIn = keepsAfter && second.keepsWhole(x.size(0), pass) ? pass.kept() : pass.temporary();
        Tensor after = afterIn.tensor(x.dtype(), x.size(0), inner);
        if (!inside.x.isQuantized() && KernelChoice.activation(activation, x.dtype()) == ActivationKernel.EPILOGUE) {
            first.productGelu(inside.x, before, after, pass);
        } else {
            first.product(inside.x, before, pass);
            activation.forward(before, after, pass.stream());
        }
        second.prepare(after, inside.after, pass.isSaving() && keepsAfter ? pass.kept() : null, pass);
        second.product(inside.after, y, pass);
        inside.before.set(before);
        saved.keep(inside, pass);
    }

    @Override
    protected void gradient(Tensor dy, Tensor dx, Pass pass) {
        Inner inside = saved.pop(pass);
        LinearProducts first = fc1.products();
        LinearProducts second = fc2.products();
        Tensor before = inside.before.get();
        second.begin(dy, inside.after, pass);
        if (fc2.requiresGradient()) {
            if (recomputation == Recomputation.ACTIVATION) {
                activateAgain(inside, before, pass);
            }
            second.parameterGradients(inside.after, pass);
        }
        if (!fc1.requiresGradient() && !inside.x.learns()) {
            return;
        }
        Tensor dbefore = pass.temporary().like(before);
        gradientOfActivation(dy, inside, before, dbefore, pass);
        first.begin(dbefore, inside.x, pass);
        first.parameterGradients(inside.x, pass);
        if (inside.x.learns()) {
            first.inputGradient(inside.x, dx, pass);
        }
    }

    /** Enqueues what forward did not keep, as forward computed it. */
    private void activateAgain(Inner inside, Tensor before, Pass pass) {
        Scope temporary = pass.temporary();
        Tensor after = temporary.tensor(before.dtype(), before.size(0), inner);
        activation.forward(before, after, pass.stream());
        fc2.products().prepareAgain(after, inside.after, pass);
    }

    /** Enqueues {@code dbefore = (dy W2) activation'(before)}. */
    private void gradientOfActivation(Tensor dy, Inner inside, Tensor before, Tensor dbefore, Pass pass) {
        Stream stream = pass.stream();
        LinearProducts second = fc2.products();
        if (!second.isQuantizedBackward()
                && KernelChoice.activation(activation, dy.dtype()) == ActivationKernel.EPILOGUE) {
            Tensor weight = second.weightOf(inside.after, pass);
            Gemm.gemmGeluGradient(dy, Transpose.NO, weight, Transpose.NO, before, dbefore, stream);
        } else if (activation.isGated()) {
            Tensor dafter = pass.temporary().tensor(dy.dtype(), dy.size(0), inner);
            second.inputGradient(inside.after, dafter, pass);
            activation.backward(dafter, before, dbefore, stream);
        } else {
            second.inputGradient(inside.after, dbefore, pass);
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
                + activationReason(x, pass) + "; "
                + (recomputation == Recomputation.NONE
                        ? "its output is kept"
                        : "backward computes its output again by " + activation.forwardFunction())
                + "\n" + fc2.explain(x, pass);
    }

    private String activationReason(Tensor x, Pass pass) {
        return fc1.products().quantizers(pass) == null
                ? KernelChoice.activationReason(activation, x.dtype())
                : activation.forwardFunction() + " and " + activation.backwardFunction()
                        + ", for products in eight bits have no epilogue for it here";
    }
}
