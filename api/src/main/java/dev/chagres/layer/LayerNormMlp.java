package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.layer.KernelChoice.ActivationKernel;
import dev.chagres.layer.MlpConfig.Recomputation;
import dev.chagres.layer.Target.Producer;
import dev.chagres.ops.Elementwise;
import dev.chagres.ops.MatrixProduct;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.pass.ContextPool;
import dev.chagres.pass.Layer;
import dev.chagres.pass.LayerSummary;
import dev.chagres.pass.Pass;
import dev.chagres.pass.SavedContext;
import dev.chagres.pass.SavedTensor;
import dev.chagres.te.Activation;
import dev.chagres.te.Gemm.Transpose;
import java.util.Collections;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * {@code y = activation(norm(x) W1^T + b1) W2^T + b2}, without b1 and b2 if {@link MlpConfig#bias} is {@link Bias#ABSENT}.
 *
 * <p>Parameters: the norm's under {@code norm}; {@code fc1} [F, H], or [2 F, H] where the activation is gated, and {@code fc2}
 * [H, F] as {@link Linear}.
 *
 * <p>16-bit types run GELU by tanh in the product's epilogue; other types and activations use a separate kernel for the activation.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: TE's {@code LayerNormMLP}; {@code ops_matrix_product} and {@code activation.h}.
 */
public final class LayerNormMlp extends NormedBranch {
    private final MlpBranch mlp;

    /** Declares the parameters in {@code plan}. */
    public LayerNormMlp(MlpConfig config, ModelPlan plan) {
        Checks.given("config", config, "plan", plan);
        this(NormLayer.of(config.norm(), plan.child("norm").forTokenParts()), new MlpBranch(config, plan), plan);
    }

    private LayerNormMlp(NormLayer norm, MlpBranch mlp, ModelPlan plan) {
        super(plan.name(), norm, mlp, mlp.reader(), mlp.fc2);
        this.mlp = mlp;
    }

    /** Returns the first product. */
    public Linear fc1() {
        return mlp.fc1;
    }

    /** Returns the second product. */
    public Linear fc2() {
        return mlp.fc2;
    }

    /** {@code y = activation(x W1^T + b1) W2^T + b2}. */
    private static final class MlpBranch extends Layer {
        private static final class Inner extends SavedContext {
            private final Operand x = new Operand("the input");
            private final SavedTensor before = new SavedTensor("the activation's input");
            private final Operand after = new Operand("the activation's output");
        }

        private final MlpActivation activation;
        private final Recomputation recomputation;
        private final Linear fc1;
        private final Linear fc2;
        private final long inner;
        private final ContextPool<Inner> saved = new ContextPool<>(this, Inner::new);

        MlpBranch(MlpConfig config, ModelPlan plan) {
            super(plan.name());
            activation = config.function();
            recomputation = config.recomputation();
            inner = plan.tensorParallel().share("inner", plan.name(), config.inner());
            long hidden = config.hidden();
            // A rank has some columns of the activation, and of their gates.
            int sections = Math.toIntExact(config.activation().inputColumns(1));
            fc1 = Linear.ofSections(
                    hidden,
                    sections == 1 ? Linear.UNNAMED : List.of("gate", "up"),
                    Collections.nCopies(sections, config.inner()),
                    config.bias(),
                    config.inputInitializer(),
                    plan.child("fc1"));
            fc2 = Linear.ofRows(config.inner(), hidden, config.bias(), config.outputInitializer(), plan.child("fc2"));
        }

        /** Returns the layer whose operand keeps the input where backward wants it; null where backward reads the input. */
        @Nullable
        Linear reader() {
            return keepsBefore() ? fc1 : null;
        }

        private boolean keepsBefore() {
            return recomputation != Recomputation.FC1_AND_ACTIVATION;
        }

        @Override
        protected void run(Tensor x, Tensor y, Pass pass) {
            Inner inside = saved.take();
            long rows = fc1.sites().split().productRows(x.size(0));
            fc1.input().finish(x, inside.x, pass.isSaving() && keepsBefore() ? pass.kept() : null, pass);
            Tensor filled = before(rows, fc1.outputColumns(x.size(1)), x.dtype(), pass);
            Scope keptIn = pass.isSaving() && recomputation == Recomputation.NONE ? pass.kept() : null;
            Target after = fc2.input().begin(rows, x.dtype(), producer(inside), keptIn, pass);
            activate(inside.x, filled, after, pass);
            fc2.input().finish(inside.after, keptIn, pass);
            fc2.products().product(inside.after, y, pass);
            if (!keepsBefore() && !inside.x.isLent()) {
                inside.x.keepWhole(x);
            }
            inside.before.set(filled);
            saved.keep(inside, pass);
        }

        /** Returns what the activation's kernel can do. */
        private Producer producer(Inner inside) {
            if (activation.isExactGelu()) {
                return Producer.FINDS_AMAX;
            }
            return inside.x.isQuantized() ? Producer.CASTS_OR_FINDS_AMAX : Producer.CASTS;
        }

        /** Returns whether the activation's kernel casts its output. */
        private boolean casts(long rows, Pass pass) {
            return !activation.isExactGelu() && fc2.input().isCastByProducer(rows, pass);
        }

        /**
         * Returns the activation's input. Kernels that cast what they compute take rows by eights: rows of zeros fill it up where one
         * runs, for an activation of 0 is 0, and so is its gradient.
         */
        private Tensor before(long rows, long columns, DType dtype, Pass pass) {
            if (!keepsBefore()) {
                return pass.temporary().tensor(dtype, rows, columns);
            }
            boolean fills = pass.isSaving() && (fc1.input().isCastByProducer(rows, pass) || casts(rows, pass));
            return fills
                    ? QuantizedCopies.zeroFilled(pass.kept(), dtype, rows, columns, pass.stream())
                    : pass.kept().tensor(dtype, rows, columns);
        }

        /** Enqueues {@code before = x W1^T + b1}, the first rows of {@code filled}, and what {@code after} asks for of its activation. */
        private void activate(Operand x, Tensor filled, Target after, Pass pass) {
            long rows = fc1.sites().split().productRows(x.rows());
            Tensor before = QuantizedCopies.first(pass.temporary(), filled, rows);
            if (!x.isQuantized()
                    && fc1.sites().adapter() == null
                    && after instanceof Target.Plain
                    && KernelChoice.activation(activation, before.dtype()) == ActivationKernel.EPILOGUE) {
                fc1.products().productGelu(x, before, after.tensor(), pass);
            } else {
                fc1.products().product(x, before, pass);
                activation.forward(filled, after, pass);
            }
        }

        @Override
        protected void gradient(Tensor dy, Tensor dx, Pass pass) {
            Inner inside = saved.pop(pass);
            if (!keepsBefore()) {
                multiplyAgain(inside, pass);
            }
            fc2.outputGradient().finish(dy, inside.after, pass);
            if (fc2.requiresGradient()) {
                if (recomputation == Recomputation.ACTIVATION) {
                    Target after = fc2.input()
                            .beginAgain(inside.after, inside.before.get().dtype(), producer(inside), pass);
                    activation.forward(inside.before.get(), after, pass);
                    fc2.input().finishAgain(inside.after, pass);
                }
                fc2.products().parameterGradients(inside.after, pass);
            }
            if (!fc1.requiresGradient() && !inside.x.learns()) {
                return;
            }
            boolean casts = fc2.outputGradient().isQuantized();
            Target dbefore = fc1.outputGradient()
                    .begin(inside.after.rows(), dy.dtype(), casts && castsGradient(), casts, inside.x, pass);
            gradientOfActivation(inside, dbefore, pass);
            fc1.outputGradient().finish(inside.x, pass);
            fc1.products().parameterGradients(inside.x, pass);
            pass.calls().gradientsWritten();
            if (inside.x.learns()) {
                fc1.products().inputGradient(inside.x, dx, pass);
            }
        }

        /** Rounds an amax of unrounded numbers to that of the rounded ones, from which TE takes the scale: rounding keeps their order. */
        private static void round(Tensor amax, DType type, Pass pass) {
            if (type != DType.FLOAT32) {
                Tensor rounded = pass.temporary().tensor(type, 1);
                Elementwise.cast(amax, rounded, pass.stream());
                Elementwise.cast(rounded, amax, pass.stream());
            }
        }

        /** Enqueues the first product and the activation, as forward computed them. */
        private void multiplyAgain(Inner inside, Pass pass) {
            Scope temporary = pass.temporary();
            Tensor x = fc1.input().whole(inside.x, pass);
            long rows = fc1.sites().split().productRows(x.size(0));
            long columns = fc1.weight().shape().size(0);
            Tensor filled = inside.after.isQuantized()
                    ? QuantizedCopies.zeroFilled(temporary, x.dtype(), rows, columns, pass.stream())
                    : temporary.tensor(x.dtype(), rows, columns);
            fc1.input().castAgain(x, inside.x, pass);
            Target after = fc2.input().beginAgain(inside.after, x.dtype(), producer(inside), pass);
            activate(inside.x, filled, after, pass);
            fc2.input().finishAgain(inside.after, pass);
            fc1.input().keepAgain(x, inside.x, pass);
            inside.before.set(filled);
        }

        /** Returns whether one kernel computes and casts the activation's gradient: beside a bias, whose gradient it sums, not every one. */
        private boolean castsGradient() {
            return fc1.hasBias() ? activation.sumsCastGradient() : !activation.isExactGelu();
        }

        /** Enqueues what {@code dbefore} asks for of {@code (dy W2) activation'(before)}. */
        private void gradientOfActivation(Inner inside, Target dbefore, Pass pass) {
            Scope temporary = pass.temporary();
            Tensor filled = inside.before.get();
            long rows = inside.after.rows();
            if (!fc2.outputGradient().isQuantized()
                    && fc2.sites().adapter() == null
                    && KernelChoice.activation(activation, filled.dtype()) == ActivationKernel.EPILOGUE) {
                Tensor weight = fc2.sites().wholeWeight(inside.after, pass);
                MatrixProduct.of(Transpose.NO, Transpose.NO, pass.productPlan())
                        .productGeluGradient(
                                fc2.outputGradient().whole(),
                                weight,
                                QuantizedCopies.first(temporary, filled, rows),
                                dbefore.tensor(),
                                pass.stream());
                return;
            }
            Tensor dafter = dbefore.tensorOrNull();
            if (dbefore instanceof Target.Quantized) {
                dafter = QuantizedCopies.zeroFilled(temporary, filled.dtype(), rows, inner, pass.stream());
            } else if (dafter == null || activation.kind().isGated()) {
                dafter = temporary.tensor(filled.dtype(), rows, inner);
            }
            fc2.products().inputGradient(inside.after, QuantizedCopies.first(temporary, dafter, rows), pass);
            activation.backward(dafter, filled, dbefore, fc1.outputGradient().columnSums(), pass);
            Tensor amax = dbefore.amax();
            if (amax != null && !activation.isExactGelu()) { // That one has the amax of what it stores.
                round(amax, filled.dtype(), pass);
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
        public void checkInput(Tensor x) {
            fc1.checkInput(x);
        }

        @Override
        public String summary() {
            return new LayerSummary()
                    .with("hidden", fc2.weight().shape().size(0))
                    .with("inner", inner)
                    .with("activation", activation)
                    .withUnlessUsual("recomputation", recomputation, Recomputation.NONE)
                    .toString();
        }

        @Override
        public List<Layer> inside() {
            return List.of(fc1, fc2);
        }

        @Override
        protected String explanation(Tensor x, Pass pass) {
            return fc1.explainInside(x, pass) + "\n" + name() + ": " + activation + " "
                    + activationReason(x, pass) + "; "
                    + switch (recomputation) {
                        case NONE -> "its output is kept";
                        case ACTIVATION -> "backward computes its output again by " + activation.forwardFunction();
                        case FC1_AND_ACTIVATION -> "backward computes the first product and its output again";
                    }
                    + "\n" + fc2.explainInside(x, pass);
        }

        private String activationReason(Tensor x, Pass pass) {
            Activation kind = activation.kind();
            if (fc1.sites().quantizers(pass) == null) {
                return KernelChoice.activationReason(activation, x.dtype());
            }
            if (activation.isExactGelu()) {
                boolean findsAmax = fc2.input().scalesByAmax(pass);
                return activation.forwardFunction() + (findsAmax ? "_amax" : "") + " and "
                        + activation.backwardFunction() + (findsAmax ? "_amax" : "")
                        + ", whose results are cast by kernels of their own, for those that compute and cast have only the form"
                        + " of GELU by tanh";
            }
            if (fc2.input().scalesByAmax(pass)) {
                return kind.forwardFunction() + " and " + kind.backwardFunction()
                        + ", which compute the amaxes of what they write, for products in eight bits have no such"
                        + " epilogue here";
            }
            boolean casts = casts(Math.max(1, x.size(0)), pass);
            return kind.forwardFunction()
                    + (casts ? ", which casts its output itself," : "") + " and "
                    + (casts ? gradientReason() : kind.backwardFunction())
                    + ", for products in eight bits have no such epilogue here";
        }

        private String gradientReason() {
            Activation kind = activation.kind();
            if (!castsGradient()) {
                return kind.backwardFunction()
                        + ", whose gradient te_quantize_dbias casts, for no kernel also sums it for the bias";
            }
            return fc1.hasBias()
                    ? "te_quantize_dbias_d" + kind.forwardFunction().substring("te_".length())
                            + ", which casts its gradient and sums it for the bias"
                    : activation.castGradientFunction();
        }
    }
}
