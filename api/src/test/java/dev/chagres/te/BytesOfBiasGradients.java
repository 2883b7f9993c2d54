package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.Workspace;
import dev.chagres.te.ComputedBytes.Case;
import java.lang.foreign.MemorySegment;

/** Casts of gradients that sum those of the bias, alone and with the gradient of an activation, under both names. */
final class BytesOfBiasGradients {
    private static final float SCALE = 150;

    private final ComputedBytes computed;
    private final OpenDevice open;

    private BytesOfBiasGradients(ComputedBytes computed) {
        this.computed = computed;
        open = computed.open();
    }

    static void compute(ComputedBytes computed) {
        BytesOfBiasGradients gradients = new BytesOfBiasGradients(computed);
        for (Case of : ComputedBytes.CASES) {
            gradients.alone(of);
            for (Activation activation : Activation.values()) {
                if (Cast.fusesGradientOf(activation)) {
                    gradients.withActivation(activation, of);
                }
                if (Transpose.fusesGradientOf(activation)) {
                    gradients.gated(activation, of);
                }
            }
            gradients.ofStoredBytes(of);
        }
    }

    private QuantizedTensor output(Case of) {
        return computed.both(of.output(), of.rows(), of.columns(), SCALE);
    }

    private void alone(Case of) {
        computed.call("nvte_quantize_dbias", of, () -> {
            Tensor input = computed.normal(of.input(), of.rows(), of.columns());
            Tensor dbias = open.unwritten(of.input(), of.columns());
            QuantizedTensor output = output(of);
            Cast.quantizeDbias(input, output, dbias, open.stream());
            computed.keep("output", ByteRule.EXACT, ByteRule.EXACT, output);
            computed.keep("dbias", ByteRule.SUMMED, dbias);
        });
        computed.call("nvte_cast_transpose_dbias", of, () -> {
            Tensor input = computed.normal(of.input(), of.rows(), of.columns());
            Tensor dbias = open.unwritten(of.input(), of.columns());
            QuantizedTensor output = output(of);
            withWorkspace(workspace -> Status.te(
                    TransformerEngine.te_cast_transpose_dbias(
                            input.handle(), output.handle(), dbias.handle(), workspace, stream()),
                    "te_cast_transpose_dbias"));
            computed.keep("output", ByteRule.EXACT, ByteRule.EXACT, output);
            computed.keep("dbias", ByteRule.SUMMED, dbias);
        });
    }

    private void withActivation(Activation activation, Case of) {
        String suffix = "dbias_d" + activation.name().toLowerCase(java.util.Locale.ROOT);
        computed.call("nvte_quantize_" + suffix, of, () -> {
            Tensor dy = computed.normal(of.input(), of.rows(), of.columns());
            Tensor x = computed.normal(of.input(), of.rows(), of.columns());
            Tensor dbias = open.unwritten(of.input(), of.columns());
            QuantizedTensor output = output(of);
            Cast.quantizeDbiasDact(activation, dy, x, output, dbias, open.stream());
            computed.keep("output", ByteRule.ROUNDED, ByteRule.COMPUTED, output);
            computed.keep("dbias", ByteRule.SUMMED, dbias);
        });
        computed.call("nvte_cast_transpose_" + suffix, of, () -> {
            MemorySegment dy =
                    computed.normal(of.input(), of.rows(), of.columns()).handle();
            MemorySegment x =
                    computed.normal(of.input(), of.rows(), of.columns()).handle();
            Tensor dbias = open.unwritten(of.input(), of.columns());
            QuantizedTensor output = output(of);
            withWorkspace(workspace -> Status.te(
                    castTranspose(activation, dy, x, output.handle(), dbias.handle(), workspace, stream()),
                    "te_cast_transpose_" + suffix));
            computed.keep("output", ByteRule.ROUNDED, ByteRule.COMPUTED, output);
            computed.keep("dbias", ByteRule.SUMMED, dbias);
        });
    }

    private static int castTranspose(
            Activation activation,
            MemorySegment dy,
            MemorySegment x,
            MemorySegment output,
            MemorySegment dbias,
            MemorySegment workspace,
            MemorySegment stream) {
        return switch (activation) {
            case GELU -> TransformerEngine.te_cast_transpose_dbias_dgelu(dy, x, output, dbias, workspace, stream);
            case SILU -> TransformerEngine.te_cast_transpose_dbias_dsilu(dy, x, output, dbias, workspace, stream);
            case RELU -> TransformerEngine.te_cast_transpose_dbias_drelu(dy, x, output, dbias, workspace, stream);
            case QGELU -> TransformerEngine.te_cast_transpose_dbias_dqgelu(dy, x, output, dbias, workspace, stream);
            case SRELU -> TransformerEngine.te_cast_transpose_dbias_dsrelu(dy, x, output, dbias, workspace, stream);
            default -> throw new IllegalStateException("no function of " + activation);
        };
    }

    private void gated(Activation activation, Case of) {
        String name = "nvte_d" + activation.name().toLowerCase(java.util.Locale.ROOT) + "_cast_transpose";
        computed.call(name, of, () -> {
            Tensor dy = computed.normal(of.input(), of.rows(), of.columns());
            Tensor x = computed.normal(of.input(), of.rows(), 2 * of.columns());
            QuantizedTensor output = computed.both(of.output(), of.rows(), 2 * of.columns(), SCALE);
            Transpose.dactCastTranspose(activation, dy, x, output, open.stream());
            computed.keep("output", ByteRule.ROUNDED, ByteRule.COMPUTED, output);
        });
    }

    private void ofStoredBytes(Case of) {
        computed.call("nvte_fp8_transpose_dbias", of, () -> {
            QuantizedTensor output = output(of);
            Cast.quantize(computed.normal(of.input(), of.rows(), of.columns()), output, open.stream());
            output.columnwise().zero(open.stream());
            Tensor dbias = open.unwritten(DType.FLOAT32, of.columns());
            Transpose.fp8TransposeDbias(output, dbias, open.stream());
            computed.keep("columnwise", ByteRule.EXACT, output.columnwise());
            computed.keep("dbias", ByteRule.SUMMED, dbias);
        });
    }

    private interface WithWorkspace {
        void call(MemorySegment workspace);
    }

    private void withWorkspace(WithWorkspace function) {
        Workspace workspace = Inside.workspace(open.stream());
        function.call(workspace.asking());
        function.call(workspace.provided(workspace.asked()));
    }

    private MemorySegment stream() {
        return open.stream().handle();
    }
}
