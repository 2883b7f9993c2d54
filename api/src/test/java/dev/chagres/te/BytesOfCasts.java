package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.te.ComputedBytes.Case;
import java.lang.foreign.MemorySegment;

/** Casts to eight bits and back. */
final class BytesOfCasts {
    private static final float SCALE = 150;

    private final ComputedBytes computed;
    private final OpenDevice open;

    private BytesOfCasts(ComputedBytes computed) {
        this.computed = computed;
        open = computed.open();
    }

    static void compute(ComputedBytes computed) {
        BytesOfCasts casts = new BytesOfCasts(computed);
        for (Case of : ComputedBytes.CASES) {
            casts.quantize(of);
            casts.olderForms(of);
            casts.noop(of);
            casts.dequantize(of);
        }
        casts.quantize(ComputedBytes.ODD);
        casts.edges(DType.FLOAT8_E4M3);
        casts.edges(DType.FLOAT8_E5M2);
        for (Scaling scaling : new Scaling[] {Scaling.BLOCK_1D, Scaling.BLOCK_2D}) {
            casts.blocks(scaling);
        }
    }

    private void exact(String part, QuantizedTensor tensor) {
        computed.keep(part, ByteRule.EXACT, ByteRule.EXACT, tensor);
    }

    private void quantize(Case of) {
        computed.call("nvte_quantize_v2", of, () -> {
            QuantizedTensor both = computed.both(of.output(), of.rows(), of.columns(), SCALE);
            Cast.quantize(computed.edged(of, SCALE), both, open.stream());
            exact("both", both);
            QuantizedTensor rowwise = computed.rowwise(of.output(), of.rows(), of.columns(), SCALE);
            Cast.quantize(computed.normal(of.input(), of.rows(), of.columns()), rowwise, open.stream());
            exact("rowwise", rowwise);
        });
    }

    /** Every tie of a type, and its neighbours. */
    private void edges(DType output) {
        computed.call("nvte_quantize_v2", "ties of " + output, () -> {
            double[] values = CastConformance.edges(output);
            QuantizedTensor actual = computed.both(output, 1, values.length, 1);
            Cast.quantize(open.tensor(DType.FLOAT32, values, 1, values.length), actual, open.stream());
            exact("output", actual);
        });
    }

    private void blocks(Scaling scaling) {
        for (DType input : new DType[] {DType.BFLOAT16, DType.FLOAT32}) {
            computed.call("nvte_quantize_v2", scaling + " of " + input, () -> {
                QuantizedTensor blocks = open.scope()
                        .quantized(scaling, DType.FLOAT8_E4M3, 144, 272)
                        .allocateRowwise(open.scope())
                        .allocateColumnwise(open.scope());
                zeroScales(blocks);
                Cast.quantize(computed.normal(input, 144, 272), blocks, open.stream());
                exact("output", blocks);
            });
        }
    }

    /** Scales are padded to multiples of four; nobody writes the padding. */
    private void zeroScales(QuantizedTensor blocks) {
        blocks.rowwiseScaleInverse().zero(open.stream());
        blocks.columnwiseScaleInverse().zero(open.stream());
    }

    private void olderForms(Case of) {
        computed.call("nvte_quantize", of, () -> {
            QuantizedTensor rowwise = computed.rowwise(of.output(), of.rows(), of.columns(), SCALE);
            MemorySegment input = computed.edged(of, SCALE).handle();
            Status.te(TransformerEngine.te_quantize(input, rowwise.handle(), stream()), "te_quantize");
            exact("output", rowwise);
        });
        computed.call("nvte_cast_transpose", of, () -> {
            QuantizedTensor both = computed.both(of.output(), of.rows(), of.columns(), SCALE);
            MemorySegment input = computed.edged(of, SCALE).handle();
            Status.te(TransformerEngine.te_cast_transpose(input, both.handle(), stream()), "te_cast_transpose");
            exact("output", both);
        });
        computed.call("nvte_multi_tensor_quantize", of, () -> {
            HandleArrays arrays = HandleArrays.of(open.stream(), 2);
            QuantizedTensor[] outputs = new QuantizedTensor[2];
            for (int i = 0; i < outputs.length; i++) {
                outputs[i] = computed.both(of.output(), of.rows(), of.columns(), SCALE);
                arrays.set(i, computed.edged(of, SCALE).handle(), outputs[i].handle());
            }
            Status.te(
                    TransformerEngine.te_multi_tensor_quantize(
                            arrays.first(), arrays.second(), MemorySegment.NULL, 2, stream()),
                    "te_multi_tensor_quantize");
            exact("0", outputs[0]);
            exact("1", outputs[1]);
        });
        computed.call("nvte_multi_cast_transpose", of, () -> {
            QuantizedTensor[] outputs = {
                computed.both(of.output(), of.rows(), of.columns(), SCALE), computed.both(of.output(), 16, 24, SCALE)
            };
            Tensor[] inputs = {computed.edged(of, SCALE), computed.normal(of.input(), 16, 24)};
            Transpose.multiCastTranspose(inputs, outputs, open.stream());
            exact("0", outputs[0]);
            exact("1", outputs[1]);
        });
    }

    /** With the flag off, and then on, when what is there stays. */
    private void noop(Case of) {
        Flagged quantize = (input, output, flag) ->
                Status.te(TransformerEngine.te_quantize_noop(input, output, flag, stream()), "te_quantize_noop");
        Flagged castTranspose = (input, output, flag) -> Status.te(
                TransformerEngine.te_cast_transpose_with_noop(input, flag, output, stream()),
                "te_cast_transpose_with_noop");
        flagged("nvte_quantize_noop", of, quantize);
        flagged("nvte_cast_transpose_with_noop", of, castTranspose);
    }

    private interface Flagged {
        void call(MemorySegment input, MemorySegment output, MemorySegment flag);
    }

    private void flagged(String name, Case of, Flagged function) {
        computed.call(name, of, () -> {
            QuantizedTensor both = computed.both(of.output(), of.rows(), of.columns(), SCALE);
            Tensor flag = open.tensor(DType.FLOAT32, new double[] {0}, 1);
            function.call(computed.edged(of, SCALE).handle(), both.handle(), flag.handle());
            exact("off", both);
            open.set(flag, 1);
            function.call(computed.normal(of.input(), of.rows(), of.columns()).handle(), both.handle(), flag.handle());
            exact("on", both);
        });
    }

    /** All bytes but NaN's, whose bits in wider types are the processor's. */
    private void dequantize(Case of) {
        computed.call("nvte_dequantize", of, () -> {
            QuantizedTensor bytes = computed.rowwise(of.output(), of.rows(), of.columns(), 1);
            byte[] values = new byte[of.rows() * of.columns()];
            for (int i = 0; i < values.length; i++) {
                int magnitude = i % 0x7c;
                values[i] = (byte) (i / 0x7c % 2 == 0 ? magnitude : magnitude | 0x80);
            }
            bytes.rowwise().set(open.stream(), values);
            open.set(bytes.rowwiseScaleInverse(), 0.3f);
            Tensor output = open.unwritten(of.input(), of.rows(), of.columns());
            Cast.dequantize(bytes, output, open.stream());
            computed.keep("output", ByteRule.EXACT, output);
        });
    }

    private MemorySegment stream() {
        return open.stream().handle();
    }
}
