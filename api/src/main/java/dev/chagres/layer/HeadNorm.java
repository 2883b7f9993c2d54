package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.pass.ContextPool;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.SavedContext;
import dev.chagres.pass.SavedTensor;
import dev.chagres.te.Normalization;
import dev.chagres.te.Normalization.Gamma;
import org.jspecify.annotations.Nullable;

/**
 * The norm of each head of query or key, over rows of d elements.
 *
 * <p>The L2 norm is computed as RMS norm without a weight, which is {@code sqrt(d)} times as large; so attention divides its scale by d.
 *
 * <p>Threading: the device's thread.
 */
final class HeadNorm {
    /** What backward of the L2 norm needs. */
    private static final class Rows extends SavedContext {
        private final SavedTensor x = new SavedTensor("the heads before their norm");
        private final SavedTensor inverse = new SavedTensor("the inverse length of each head");
    }

    private final int headDim;
    /** Null for the L2 norm. */
    private final @Nullable NormLayer layer;

    /** The L2 norm. */
    private final Normalization norm;

    private final QkNorm.Kind kind;

    private final ContextPool<Rows> saved;

    HeadNorm(QkNorm norm, int headDim, Layer owner, ModelPlan plan) {
        // All heads share the parameters, and a rank computes the term of its heads of their gradient.
        ModelPlan shared = plan.withPartialGradients();
        this.headDim = headDim;
        kind = norm.kind();
        float epsilon = norm.epsilon();
        this.norm = new Normalization(epsilon / headDim, Gamma.ZERO_CENTERED);
        layer = switch (norm.kind()) {
            case RMS_NORM -> NormLayer.of(NormConfig.rmsNorm(headDim).withEpsilon(epsilon), shared);
            case LAYER_NORM -> NormLayer.of(NormConfig.layerNorm(headDim).withEpsilon(epsilon), shared);
            case L2, NONE -> null;
        };
        saved = new ContextPool<>(owner, Rows::new);
    }

    /** Returns {@code config} for the attention that reads normed heads: its scale makes up for the factor of L2 norms. */
    static AttentionConfig behind(AttentionConfig config) {
        float left = config.qkNorm().kind() == QkNorm.Kind.L2 ? 1f / config.headDim() : 1;
        return config.withQkNorm(QkNorm.none()).withScale(config.scale() * left);
    }

    /** Refuses a pre-scale bias with L2 norms: attention's scale is divided by d for the norms, which would scale the bias, too. */
    static void ensureTakesPreScaleBias(AttentionConfig config) {
        if (config.qkNorm().kind() == QkNorm.Kind.L2) {
            throw new IllegalArgumentException("preScaleBias: expected heads without an L2 norm, got " + config.qkNorm()
                    + "; give bias(…) the same bias times the scale");
        }
    }

    /** Returns the functions that compute it. */
    String kernels() {
        return kind == QkNorm.Kind.LAYER_NORM
                ? "te_layernorm_fwd and te_layernorm_bwd"
                : "te_rmsnorm_fwd and te_rmsnorm_bwd";
    }

    boolean requiresGradient() {
        return layer != null && layer.requiresGradient();
    }

    /** Enqueues the norm of {@code heads} into {@code normed}, like it. */
    void run(Tensor heads, Tensor normed, Pass pass) {
        Tensor x = rows(heads, pass);
        Tensor y = rows(normed, pass);
        if (layer != null) {
            layer.run(x, y, pass);
            return;
        }
        Tensor inverse = pass.kept().tensor(DType.FLOAT32, x.size(0));
        norm.gamma(zeros(x, pass)).rmsnormFwd(x, y, inverse, pass.stream());
        Rows record = saved.push(pass);
        if (record != null) {
            record.x.set(x);
            record.inverse.set(inverse);
        }
    }

    /** Enqueues the gradient of the latest {@link #run}. */
    void gradient(Tensor dnormed, Tensor dheads, Pass pass) {
        Tensor dy = rows(dnormed, pass);
        Tensor dx = rows(dheads, pass);
        if (layer != null) {
            layer.gradient(dy, dx, pass);
            return;
        }
        Rows record = saved.pop(pass);
        Tensor x = record.x.get();
        Tensor unused = pass.temporary().tensor(x.dtype(), headDim);
        norm.gamma(zeros(x, pass)).rmsnormBwd(dy, x, record.inverse.get(), dx, unused, pass.stream());
    }

    /** Frees what the latest {@link #run} saved, if no backward call follows. */
    void discard(Pass pass) {
        if (layer == null) {
            saved.pop(pass);
        } else {
            layer.discard(pass);
        }
    }

    /** Returns a weight of ones, which TE reads as zeros plus one. */
    private Tensor zeros(Tensor like, Pass pass) {
        Tensor zeros = pass.temporary().tensor(like.dtype(), headDim);
        zeros.zero(pass.stream());
        return zeros;
    }

    private Tensor rows(Tensor heads, Pass pass) {
        return pass.kept().view(heads, 0, heads.count() / headDim, headDim);
    }
}
