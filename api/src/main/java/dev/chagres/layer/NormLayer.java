package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.ops.Elementwise;
import dev.chagres.ops.ResidualNorm;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.pass.ContextPool;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.SavedContext;
import dev.chagres.pass.SavedTensor;
import dev.chagres.te.Normalization;
import dev.chagres.te.Output;
import org.jspecify.annotations.Nullable;

/**
 * A norm over the rows of [T, H].
 *
 * <p>Threading: the device's thread.
 */
public abstract sealed class NormLayer extends Layer permits LayerNorm, RmsNorm {
    /** The tensors that backward needs. */
    static final class Rows extends SavedContext {
        private final SavedTensor x = new SavedTensor("the norm's input");
        private final SavedTensor mean = new SavedTensor("the mean of each row");
        private final SavedTensor inverse = new SavedTensor("the inverse deviation of each row");
        /** Whether {@code ops_residual_norm_forward} computed the output. */
        private boolean fused;
    }

    private static final long ALIGNMENT = 16;

    private final NormConfig config;
    private final ResidualNorm residualNorm;
    private final Normalization norm;
    private final Parameter weight;
    private final ContextPool<Rows> saved = new ContextPool<>(this, Rows::new);
    private final Target.Plain plain = new Target.Plain();

    NormLayer(String name, NormConfig config, Parameter weight) {
        super(name);
        this.config = config;
        residualNorm = new ResidualNorm(config.function());
        norm = new Normalization(config.epsilon(), config.gamma());
        this.weight = weight;
    }

    /** Makes the norm that {@code config} names, with its parameters in {@code plan}. */
    public static NormLayer of(NormConfig config, ModelPlan plan) {
        return switch (Checks.given("config", config).kind()) {
            case LAYER_NORM -> new LayerNorm(config, plan);
            case RMS_NORM -> new RmsNorm(config, plan);
        };
    }

    /** Returns which norm. */
    public final NormConfig config() {
        return config;
    }

    /** Returns the factor of each column. */
    public final Parameter weight() {
        return weight;
    }

    @Override
    public final String summary() {
        return config.summary().toString();
    }

    /** Returns whether the norm can cast rows like those of {@code y}. */
    static boolean casts(Tensor y) {
        return ResidualNorm.takes(y) && y.size(1) % QuantizedCopies.STEP == 0;
    }

    @Override
    protected final void run(Tensor x, Tensor y, Pass pass) {
        run(x, plain(y), pass);
    }

    /** Has {@code y} written alone. */
    final Target plain(Tensor y) {
        return plain.set(y, null);
    }

    /** Enqueues {@code y = norm(x)}, or what of it {@code y} asks for. */
    final void run(Tensor x, Target y, Pass pass) {
        run(x, null, null, null, y, pass);
    }

    /**
     * Enqueues {@code sum = (update + bias) + stream} and {@code y = norm(sum)}, or what of it {@code y} asks for, and returns the sum.
     *
     * @param update null where nothing is added: then the sum is {@code stream} itself
     * @param bias null where none is added
     * @param sum receives the sum; may be {@code update} or {@code stream}
     */
    final Tensor runOfSum(
            @Nullable Tensor update, @Nullable Tensor bias, Tensor stream, Tensor sum, Target y, Pass pass) {
        if (update == null) {
            run(stream, y, pass);
            return stream;
        }
        boolean learns = stream.requiresGradient() || update.requiresGradient();
        if (ResidualNorm.takes(update)) {
            run(update, bias, stream, sum, y, pass);
        } else {
            enqueueSum(update, bias, stream, sum, pass);
            run(sum, y, pass);
        }
        Inside.requireGradient(sum, learns);
        return sum;
    }

    private void run(
            Tensor x, @Nullable Tensor bias, @Nullable Tensor residual, @Nullable Tensor sum, Target y, Pass pass) {
        Scope kept = pass.kept();
        Tensor mean = kept.tensor(DType.FLOAT32, x.size(0));
        Tensor inverse = kept.tensor(DType.FLOAT32, x.size(0));
        boolean fused = sum != null || !(y instanceof Target.Plain) || isOwn(x, y.tensor());
        if (fused) {
            normalizeSum(x, bias, residual, sum, y, mean, inverse, pass);
        } else {
            normalize(x, y.tensor(), mean, inverse, pass);
        }
        Rows rows = saved.push(pass);
        if (rows != null) {
            rows.x.set(sum == null ? x : sum);
            rows.mean.set(mean);
            rows.inverse.set(inverse);
            rows.fused = fused;
        }
    }

    /** Whether our kernel computes what nothing is fused with. Tensors of other layers may begin anywhere; it loads 16 bytes at a time. */
    private boolean isOwn(Tensor x, Tensor y) {
        return KernelChoice.isOwnNorm(config.kind(), x) && ((x.address() | y.address()) & (ALIGNMENT - 1)) == 0;
    }

    /** Enqueues {@code sum = (x + bias) + residual}, without a bias if that is null. */
    static void enqueueSum(Tensor x, @Nullable Tensor bias, Tensor residual, Tensor sum, Pass pass) {
        if (bias == null) {
            Elementwise.add(x, residual, sum, pass.stream());
        } else {
            Elementwise.biasAdd(x, bias, residual, sum, pass.stream());
        }
    }

    /**
     * Enqueues the output of the latest forward call once more, by the kernel of that call, into temporary memory. Only this norm's gradient
     * may be missing of what the pass has saved since then.
     */
    final Tensor recompute(Pass pass) {
        Rows rows = saved.peek(pass);
        pass.ensureUnchanged(weight);
        Scope temporary = pass.temporary();
        Tensor x = rows.x.get();
        Tensor y = temporary.like(x);
        // The kernels write both; the bits are those that backward has.
        Tensor mean = temporary.like(rows.mean.get());
        Tensor inverse = temporary.like(rows.inverse.get());
        if (rows.fused) {
            normalizeSum(x, null, null, null, plain(y), mean, inverse, pass);
        } else {
            normalize(x, y, mean, inverse, pass);
        }
        return y;
    }

    @Override
    protected final void gradient(Tensor dy, Tensor dx, Pass pass) {
        Rows rows = saved.pop(pass);
        gradient(dy, rows.x.get(), rows.mean.get(), rows.inverse.get(), dx, pass);
    }

    /** Enqueues {@code dx = dresidual + } the gradient of the sum. {@code dx} may be {@code dresidual}. */
    final void gradientOfSum(Tensor dy, Tensor dresidual, Tensor dx, Pass pass) {
        Rows rows = saved.pop(pass);
        Tensor x = rows.x.get();
        if (ResidualNorm.takes(x)) {
            gradientOfSum(dy, rows, dresidual, dx, pass);
        } else {
            Tensor through = pass.temporary().like(x);
            gradient(dy, x, rows.mean.get(), rows.inverse.get(), through, pass);
            Elementwise.add(through, dresidual, dx, pass.stream());
        }
    }

    private void gradientOfSum(Tensor dy, Rows rows, Tensor dresidual, Tensor dx, Pass pass) {
        Parameter shift = shift();
        boolean alike =
                shift == null || (weight.isFrozen() == shift.isFrozen() && weight.hasGradient() == shift.hasGradient());
        boolean writes = alike && !weight.isFrozen();
        Output output = writes ? pass.nextGradient(weight) : Output.OVERWRITE;
        Tensor dweight = writes ? weight.gradient() : pass.temporary().tensor(DType.FLOAT32, config.size());
        Tensor dshift = null;
        if (shift != null && writes) {
            pass.nextGradient(shift);
            dshift = shift.gradient();
        } else if (shift != null) {
            dshift = pass.temporary().tensor(DType.FLOAT32, config.size());
        }
        residualNorm
                .parameters(weight.weight(), null)
                .statistics(shift == null ? null : rows.mean.get(), rows.inverse.get())
                .gradients(dweight, dshift, output)
                .backward(dy, rows.x.get(), dresidual, dx, pass.stream());
        if (!alike && shift != null && dshift != null) {
            accumulate(weight, dweight, pass);
            accumulate(shift, dshift, pass);
        }
    }

    /** Returns whether the latest forward call's output requires a gradient. */
    final boolean learns(Pass pass) {
        return requiresGradient() || saved.peek(pass).x.get().requiresGradient();
    }

    /** Drops the tensors that the latest forward call saved, when neither the norm nor a layer before it is trained. */
    final void discard(Pass pass) {
        saved.pop(pass);
    }

    /** Adds {@code gradient}, in the type of the weights, to the gradient of {@code parameter}, or overwrites it. */
    static void accumulate(Parameter parameter, Tensor gradient, Pass pass) {
        if (!parameter.isFrozen()) {
            Output output = pass.nextGradient(parameter);
            Elementwise.accumulate(gradient, parameter.gradient(), output, pass.stream());
        }
    }

    /** Returns the norm as TE computes it, without its parameters. */
    final Normalization norm() {
        return norm;
    }

    abstract void normalize(Tensor x, Tensor y, Tensor mean, Tensor inverse, Pass pass);

    /** Returns the summand of each column; null in norms that have none, nor a mean. */
    abstract @Nullable Parameter shift();

    /** Enqueues {@code ops_residual_norm}; without residual there is no sum, and no bias. */
    private void normalizeSum(
            Tensor x,
            @Nullable Tensor bias,
            @Nullable Tensor residual,
            @Nullable Tensor sum,
            Target y,
            Tensor mean,
            Tensor inverse,
            Pass pass) {
        Parameter shift = shift();
        residualNorm
                .parameters(weight.weight(), shift == null ? null : shift.weight())
                .statistics(shift == null ? null : mean, inverse)
                .sum(bias, residual, sum)
                .forward(x, y.tensorOrNull(), y.copiesOrNull(), pass.stream());
    }

    abstract void gradient(Tensor dy, Tensor x, Tensor mean, Tensor inverse, Tensor dx, Pass pass);

    @Override
    public final boolean requiresGradient() {
        Parameter shift = shift();
        return !weight.isFrozen() || (shift != null && !shift.isFrozen());
    }

    @Override
    protected final String explanation(Tensor x, Pass pass) {
        return explain(x, NormFusion.ALONE, "");
    }

    /**
     * Returns which functions compute the norm there.
     *
     * @param besides what forward also computes of its output, as a verb and its object; empty for nothing
     */
    final String explain(Tensor x, NormFusion fusion, String besides) {
        String what = switch (config.kind()) {
            case LAYER_NORM -> "layer norm, forward by ";
            case RMS_NORM -> "RMS norm, forward by ";
        };
        return name() + ": " + what + explainForward(x, fusion, besides) + "; backward by "
                + explainBackward(x, fusion);
    }

    /** Returns which function recomputes the output. */
    final String explainRecomputation(Tensor x, NormFusion fusion, String besides) {
        return isFused(x, fusion, besides) ? "ops_residual_norm_forward" : own() + "_fwd";
    }

    private boolean isFused(Tensor x, NormFusion fusion, String besides) {
        return ResidualNorm.takes(x) && (fusion.sums() || !besides.isEmpty() || isOwn(x, x));
    }

    private String explainForward(Tensor x, NormFusion fusion, String besides) {
        if (!ResidualNorm.takes(x)) {
            return fusion.sums()
                    ? "ops_add or ops_bias_add, which sums first, and " + own()
                            + "_fwd, for ops_residual_norm_forward takes " + ResidualNorm.LIMITS
                    : own() + "_fwd";
        }
        if (!isFused(x, fusion, besides)) {
            return own() + "_fwd"
                    + (KernelChoice.isOwnNorm(config.kind(), x)
                            ? ", for ops_residual_norm_forward loads 16 bytes at a time, and x begins elsewhere"
                            : "");
        }
        if (!fusion.sums() && besides.isEmpty()) {
            return "ops_residual_norm_forward, for " + own() + "_fwd is not tuned for " + x.size(1) + " columns";
        }
        String sums = fusion.sums() ? "sums first" : "";
        return "ops_residual_norm_forward, which " + sums + (sums.isEmpty() || besides.isEmpty() ? "" : " and ")
                + besides;
    }

    private String explainBackward(Tensor x, NormFusion fusion) {
        if (!fusion.sumsGradients()) {
            return own() + "_bwd";
        }
        return ResidualNorm.takes(x)
                ? "ops_residual_norm_backward, which adds the gradient of the sum"
                : own() + "_bwd and ops_add, which adds the gradient of the sum";
    }

    /** Returns the common beginning of the names of Transformer Engine's two functions. */
    private String own() {
        return switch (config.kind()) {
            case LAYER_NORM -> "te_layernorm";
            case RMS_NORM -> "te_rmsnorm";
        };
    }

    @Override
    public final void checkInput(Tensor x) {
        DType dtype = weight.unreadWeight().dtype();
        if (x.size(1) != config.size() || x.dtype() != dtype) {
            throw new IllegalArgumentException(
                    "x: " + name() + " expected " + dtype + "[T, " + config.size() + "], got " + Checks.describe(x));
        }
        checkHere(this, weight, x);
    }

    /**
     * What the kernels of a norm compute besides it.
     *
     * <p>Threading: immutable.
     *
     * @param sums whether forward is of a sum that was not formed yet
     * @param sumsGradients whether backward adds the gradient that passes the norm by
     * @param casts whether the norm may cast its output, which nobody reads in the model's type
     */
    record NormFusion(boolean sums, boolean sumsGradients, boolean casts) {
        /** Outside a residual stream. */
        static final NormFusion ALONE = new NormFusion(false, false, true);
    }
}
