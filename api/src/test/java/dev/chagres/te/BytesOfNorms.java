package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.te.ComputedBytes.Case;
import dev.chagres.te.Normalization.Gamma;

/** Norms with FP8 results, by TE's kernels and, with the switches on, by cuDNN's. */
final class BytesOfNorms {
    private static final float EPSILON = 1e-5f;
    private static final float SCALE = 100;

    private final ComputedBytes computed;
    private final OpenDevice open;

    private BytesOfNorms(ComputedBytes computed) {
        this.computed = computed;
        open = computed.open();
    }

    static void compute(ComputedBytes computed) {
        BytesOfNorms norms = new BytesOfNorms(computed);
        for (Gamma gamma : Gamma.values()) {
            for (Case of : ComputedBytes.CASES) {
                norms.both("", of, gamma);
            }
            norms.both("", ComputedBytes.ODD, gamma);
            norms.both("", new Case(DType.BFLOAT16, DType.FLOAT8_E4M3, 5, 1024), gamma);
            norms.switched(gamma);
        }
    }

    /** A size of its own, for the api asks for the workspace of a size once, and the two ways want different ones. */
    private void switched(Gamma gamma) {
        Status.te(TransformerEngine.te_enable_cudnn_norm_fwd(true), "te_enable_cudnn_norm_fwd");
        try {
            both(" after nvte_enable_cudnn_norm_fwd", new Case(DType.BFLOAT16, DType.FLOAT8_E4M3, 32, 128), gamma);
            rounded(true);
            both(
                    " after nvte_enable_zero_centered_gamma_in_weight_dtype",
                    new Case(DType.BFLOAT16, DType.FLOAT8_E4M3, 64, 128),
                    gamma);
        } finally {
            rounded(false);
            Status.te(TransformerEngine.te_enable_cudnn_norm_fwd(false), "te_enable_cudnn_norm_fwd");
        }
    }

    private static void rounded(boolean on) {
        String name = "te_enable_zero_centered_gamma_in_weight_dtype";
        Status.te(TransformerEngine.te_enable_zero_centered_gamma_in_weight_dtype(on), name);
    }

    private void both(String suffix, Case of, Gamma gamma) {
        computed.call("nvte_layernorm_fwd" + suffix, of + "-" + gamma, () -> {
            Tensor mu = open.unwritten(DType.FLOAT32, of.rows());
            Tensor rsigma = open.unwritten(DType.FLOAT32, of.rows());
            Tensor beta = vector(of, 0.2);
            QuantizedTensor z = z(of);
            new Normalization(EPSILON, gamma)
                    .gamma(vector(of, 1))
                    .beta(beta)
                    .layernormFwd(x(of), z, mu, rsigma, open.stream());
            computed.keep("z", ByteRule.ROUNDED, ByteRule.COMPUTED, z);
            computed.keep("mu", ByteRule.COMPUTED, mu);
            computed.keep("rsigma", ByteRule.COMPUTED, rsigma);
        });
        computed.call("nvte_rmsnorm_fwd" + suffix, of + "-" + gamma, () -> {
            Tensor rsigma = open.unwritten(DType.FLOAT32, of.rows());
            QuantizedTensor z = z(of);
            new Normalization(EPSILON, gamma).gamma(vector(of, 1)).rmsnormFwd(x(of), z, rsigma, open.stream());
            computed.keep("z", ByteRule.ROUNDED, ByteRule.COMPUTED, z);
            computed.keep("rsigma", ByteRule.COMPUTED, rsigma);
        });
    }

    private Tensor x(Case of) {
        return computed.normal(of.input(), of.rows(), of.columns());
    }

    private Tensor vector(Case of, double deviation) {
        return computed.tensor(of.input(), open.normal(of.input(), of.columns(), deviation), of.columns());
    }

    /** TE's norms write one FP8 type alone. */
    private QuantizedTensor z(Case of) {
        return of.rows() % 2 == 0
                ? computed.both(DType.FLOAT8_E4M3, of.rows(), of.columns(), SCALE)
                : computed.rowwise(DType.FLOAT8_E4M3, of.rows(), of.columns(), SCALE);
    }
}
