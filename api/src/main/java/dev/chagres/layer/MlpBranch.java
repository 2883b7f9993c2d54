package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.layer.KernelChoice.ActivationKernel;
import dev.chagres.layer.MlpConfig.Recomputation;
import dev.chagres.model.ModelPlan;
import dev.chagres.te.Activation;
import dev.chagres.te.Cast;
import dev.chagres.te.Gemm;
import dev.chagres.te.Gemm.Transpose;
import org.jspecify.annotations.Nullable;

/**
 * {@code y = activation(x W1^T + b1) W2^T + b2}.
 *
 * <p>Threading: the device's thread.
 */
final class MlpBranch extends Layer {
    private static final class Inner extends Saved {
        private final Kept input = new Kept("the input");
        private final Operand x = new Operand("the input");
        private final Kept before = new Kept("the activation's input");
        private final Operand after = new Operand("the activation's output");
    }

    private final MlpActivation activation;
    private final Recomputation recomputation;
    private final Linear fc1;
    private final Linear fc2;
    private final long inner;
    private final SavedPool<Inner> saved = new SavedPool<>(this, Inner::new);

    MlpBranch(MlpConfig config, ModelPlan plan) {
        super(plan.name());
        activation = new MlpActivation(config.activation(), config.clampedSwiglu());
        recomputation = config.recomputation();
        inner = config.inner();
        long hidden = config.hidden();
        long columns = config.activation().inputColumns(inner);
        fc1 = new Linear(hidden, columns, config.bias(), config.inputInitializer(), plan.child("fc1"));
        fc2 = new Linear(inner, hidden, config.bias(), config.outputInitializer(), plan.child("fc2"));
    }

    Linear fc1() {
        return fc1;
    }

    Linear fc2() {
        return fc2;
    }

    /** Returns the product whose operand keeps the input where backward wants it; null where backward reads the input. */
    @Nullable
    LinearProducts reader() {
        return keepsBefore() ? fc1.products() : null;
    }

    private boolean keepsBefore() {
        return recomputation != Recomputation.FC1_AND_ACTIVATION;
    }

    @Override
    protected void run(Tensor x, Tensor y, Pass pass) {
        Inner inside = saved.take();
        LinearProducts first = fc1.products();
        LinearProducts second = fc2.products();
        long rows = x.size(0);
        first.prepare(x, inside.x, pass.isSaving() && keepsBefore() ? pass.kept() : null, pass);
        Tensor filled = before(rows, fc1.outputColumns(x.size(1)), x.dtype(), pass);
        Tensor before = EightBitCopies.first(pass.kept(), filled, rows);
        boolean keepsAfter = recomputation == Recomputation.NONE;
        Scope keptIn = pass.isSaving() && keepsAfter ? pass.kept() : null;
        if (second.takesCopies(rows, pass)) {
            first.product(inside.x, before, pass);
            QuantizedTensor copies = Checks.given("copies", second.takeCopies(rows, inside.after, keptIn, pass));
            activation.forward(copies.rows() == rows ? before : filled, copies, pass.stream());
            if (second.measures(pass)) {
                measureActivation(inside, before, pass);
            }
        } else {
            Scope afterIn = keepsAfter && second.keepsWhole(rows, pass) ? pass.kept() : pass.temporary();
            Tensor after = afterIn.tensor(x.dtype(), rows, inner);
            Tensor amax = inside.x.isQuantized() ? second.takeAmax(rows, pass) : null;
            activate(inside.x, before, after, amax, pass);
            second.prepare(after, amax, inside.after, keptIn, pass);
        }
        second.product(inside.after, y, pass);
        inside.input.set(x);
        inside.before.set(filled);
        saved.keep(inside, pass);
    }

    /** Computes the activation again in the model's type: what it was cast from. */
    private void measureActivation(Inner inside, Tensor before, Pass pass) {
        Tensor after = pass.temporary().tensor(before.dtype(), before.size(0), inner);
        activation.forward(before, after, null, pass.stream());
        fc2.products().measureInput(after, Checks.given("quantizers", inside.after.quantizers()), pass);
    }

    /**
     * Returns the activation's input. Kernels that cast what they compute take rows by eights: rows of zeros fill it up where one
     * runs, for an activation of 0 is 0, and so is its gradient.
     */
    private Tensor before(long rows, long columns, DType dtype, Pass pass) {
        if (!keepsBefore()) {
            return pass.temporary().tensor(dtype, rows, columns);
        }
        boolean fills = pass.isSaving()
                && (fc1.products().takesCopies(rows, pass) || fc2.products().takesCopies(rows, pass));
        return fills
                ? EightBitCopies.zeroFilled(pass.kept(), dtype, rows, columns, pass.stream())
                : pass.kept().tensor(dtype, rows, columns);
    }

    /** Enqueues {@code before = x W1^T + b1} and {@code after = activation(before)}, with its {@code amax} where that is wanted. */
    private void activate(Operand x, Tensor before, Tensor after, @Nullable Tensor amax, Pass pass) {
        LinearProducts first = fc1.products();
        if (!x.isQuantized()
                && KernelChoice.activation(activation.kind(), before.dtype()) == ActivationKernel.EPILOGUE) {
            first.productGelu(x, before, after, pass);
        } else {
            first.product(x, before, pass);
            activation.forward(before, after, amax, pass.stream());
        }
    }

    @Override
    protected void gradient(Tensor dy, Tensor dx, Pass pass) {
        Inner inside = saved.pop(pass);
        LinearProducts first = fc1.products();
        LinearProducts second = fc2.products();
        if (!keepsBefore()) {
            multiplyAgain(inside, pass);
        }
        second.begin(dy, inside.after, pass);
        if (fc2.requiresGradient()) {
            if (recomputation == Recomputation.ACTIVATION) {
                activateAgain(inside, dy.size(0), pass);
            }
            second.parameterGradients(inside.after, pass);
        }
        if (!fc1.requiresGradient() && !inside.x.learns()) {
            return;
        }
        if (!castGradientOfActivation(dy, inside, pass)) {
            Tensor before = EightBitCopies.first(pass.temporary(), inside.before.get(), dy.size(0));
            Tensor dbefore = pass.temporary().like(before);
            Tensor amax = second.isQuantizedBackward() ? first.takeAmaxOfGradient(inside.x, pass) : null;
            gradientOfActivation(dy, inside, before, dbefore, amax, pass);
            first.begin(dbefore, amax, inside.x, pass);
        }
        first.parameterGradients(inside.x, pass);
        if (inside.x.learns()) {
            first.inputGradient(inside.x, dx, pass);
        }
    }

    /** Enqueues the first product and the activation, as forward computed them. */
    private void multiplyAgain(Inner inside, Pass pass) {
        Scope temporary = pass.temporary();
        LinearProducts first = fc1.products();
        LinearProducts second = fc2.products();
        Tensor x = inside.input.get();
        long rows = x.size(0);
        long columns = fc1.weight().shape().size(0);
        Tensor filled = inside.after.isQuantized()
                ? EightBitCopies.zeroFilled(temporary, x.dtype(), rows, columns, pass.stream())
                : temporary.tensor(x.dtype(), rows, columns);
        Tensor before = EightBitCopies.first(temporary, filled, rows);
        first.castAgain(x, inside.x, pass);
        QuantizedTensor copies = second.takeCopiesAgain(rows, inside.after, pass);
        if (copies != null) {
            first.product(inside.x, before, pass);
            activation.forward(filled, copies, pass.stream());
        } else {
            Tensor after = temporary.tensor(x.dtype(), rows, inner);
            Tensor amax = inside.x.isQuantized() ? second.takeAmaxAgain(inside.after, pass) : null;
            activate(inside.x, before, after, amax, pass);
            second.prepareAgain(after, amax, inside.after, pass);
        }
        first.prepareAgain(x, null, inside.x, pass);
        inside.before.set(filled);
    }

    /** Enqueues what forward did not keep, as forward computed it. */
    private void activateAgain(Inner inside, long rows, Pass pass) {
        Scope temporary = pass.temporary();
        LinearProducts second = fc2.products();
        QuantizedTensor copies = second.takeCopiesAgain(rows, inside.after, pass);
        if (copies != null) {
            activation.forward(inside.before.get(), copies, pass.stream());
            return;
        }
        Tensor before = EightBitCopies.first(temporary, inside.before.get(), rows);
        Tensor after = temporary.tensor(before.dtype(), rows, inner);
        Tensor amax = inside.x.isQuantized() ? second.takeAmaxAgain(inside.after, pass) : null;
        activation.forward(before, after, amax, pass.stream());
        second.prepareAgain(after, amax, inside.after, pass);
    }

    /** Returns whether kernels of TE cast the activation's gradient: beside a bias, whose gradient it sums, not every one. */
    private boolean castsGradient() {
        return !fc1.products().hasBias() || Cast.fusesGradientOf(activation.kind());
    }

    /**
     * Enqueues {@code (dy W2) activation'(before)}, its casts and, where there is a bias, the sums of its columns, and begins the
     * first product's backward with them. Returns false where no kernel does that.
     */
    private boolean castGradientOfActivation(Tensor dy, Inner inside, Pass pass) {
        LinearProducts second = fc2.products();
        if (!castsGradient() || !second.isQuantizedBackward()) {
            return false;
        }
        Scope temporary = pass.temporary();
        Tensor sums = fc1.products().hasBias() ? temporary.tensor(dy.dtype(), inner) : null;
        QuantizedTensor copies = fc1.products().beginWithCopies(dy.size(0), sums, inside.x, pass);
        if (copies == null) {
            return false;
        }
        Tensor dafter = EightBitCopies.zeroFilled(temporary, dy.dtype(), dy.size(0), inner, pass.stream());
        second.inputGradient(inside.after, EightBitCopies.first(temporary, dafter, dy.size(0)), pass);
        if (sums == null) {
            activation.backward(dafter, inside.before.get(), copies, pass.stream());
        } else {
            Cast.quantizeDbiasDact(activation.kind(), dafter, inside.before.get(), copies, sums, pass.stream());
        }
        if (second.measures(pass)) {
            measureGradient(EightBitCopies.first(temporary, dafter, dy.size(0)), inside, pass);
        }
        return true;
    }

    /** Computes the activation's gradient again in the model's type: what it was cast from. */
    private void measureGradient(Tensor dafter, Inner inside, Pass pass) {
        Tensor before = EightBitCopies.first(pass.temporary(), inside.before.get(), dafter.size(0));
        Tensor dbefore = pass.temporary().like(before);
        activation.backward(dafter, before, dbefore, null, pass.stream());
        fc1.products().measureGradient(dbefore, pass);
    }

    /** Enqueues {@code dbefore = (dy W2) activation'(before)}, with its {@code amax} where that is wanted. */
    private void gradientOfActivation(
            Tensor dy, Inner inside, Tensor before, Tensor dbefore, @Nullable Tensor amax, Pass pass) {
        Stream stream = pass.stream();
        LinearProducts second = fc2.products();
        if (!second.isQuantizedBackward()
                && KernelChoice.activation(activation.kind(), dy.dtype()) == ActivationKernel.EPILOGUE) {
            Tensor weight = second.weightOf(inside.after, pass);
            Gemm.gemmGeluGradient(dy, Transpose.NO, weight, Transpose.NO, before, dbefore, stream);
        } else if (activation.kind().isGated()) {
            Tensor dafter = pass.temporary().tensor(dy.dtype(), dy.size(0), inner);
            second.inputGradient(inside.after, dafter, pass);
            activation.backward(dafter, before, dbefore, amax, stream);
        } else {
            second.inputGradient(inside.after, dbefore, pass);
            activation.backward(dbefore, before, dbefore, amax, stream);
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
                + switch (recomputation) {
                    case NONE -> "its output is kept";
                    case ACTIVATION ->
                        "backward computes its output again by "
                                + activation.kind().forwardFunction();
                    case FC1_AND_ACTIVATION -> "backward computes the first product and its output again";
                }
                + "\n" + fc2.explain(x, pass);
    }

    private String activationReason(Tensor x, Pass pass) {
        Activation kind = activation.kind();
        if (fc1.products().quantizers(pass) == null) {
            return KernelChoice.activationReason(kind, x.dtype());
        }
        if (fc2.products().scalesByAmax(pass)) {
            return kind.forwardFunction() + " and " + kind.backwardFunction()
                    + ", which find the largest magnitudes of what they write, for products in eight bits have no epilogue"
                    + " for it here";
        }
        boolean casts = fc2.products().takesCopies(Math.max(1, x.size(0)), pass);
        return kind.forwardFunction()
                + (casts ? ", which casts its output itself," : "") + " and "
                + (casts ? gradientReason() : kind.backwardFunction())
                + ", for products in eight bits have no epilogue for it here";
    }

    private String gradientReason() {
        Activation kind = activation.kind();
        if (!castsGradient()) {
            return kind.backwardFunction()
                    + ", whose gradient te_quantize_dbias casts: no kernel sums it for the bias, too";
        }
        return fc1.products().hasBias()
                ? "nvte_quantize_dbias_d" + kind.forwardFunction().substring("nvte_".length())
                        + ", which casts its gradient and sums it for the bias"
                : activation.castGradientFunction();
    }
}
