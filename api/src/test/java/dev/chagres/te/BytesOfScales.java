package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.te.ComputedBytes.Case;
import dev.chagres.te.QuantizationConfig.Scales;
import dev.chagres.te.RecipeUpdates.AmaxAlgorithm;

/** Largest magnitudes, scales that follow from them, histories, casts of parts of a matrix, Adam on FP8 weights. */
final class BytesOfScales {
    private static final DType[] OUTPUTS = {DType.FLOAT8_E4M3, DType.FLOAT8_E5M2};
    private static final double[] MAGNITUDES = {
        0, 1, 3, 448, 1e-6, 0.1, 1e30, 1e-38, Float.MIN_VALUE, Double.POSITIVE_INFINITY, Double.NaN
    };

    private final ComputedBytes computed;
    private final OpenDevice open;

    private BytesOfScales(ComputedBytes computed) {
        this.computed = computed;
        open = computed.open();
    }

    static void compute(ComputedBytes computed) {
        BytesOfScales scales = new BytesOfScales(computed);
        for (Case of : ComputedBytes.CASES) {
            scales.amax(of);
            scales.parts(of);
        }
        for (DType output : OUTPUTS) {
            for (Scales kind : Scales.values()) {
                scales.scaleFromAmax(output, kind);
                scales.ofMany(output, kind);
            }
            for (AmaxAlgorithm algorithm : AmaxAlgorithm.values()) {
                scales.history(output, algorithm);
                scales.historiesAfterReduction(output, algorithm);
            }
            scales.adam(output);
        }
    }

    private QuantizedTensor numbers(DType output, double amax) {
        return open.scope()
                .quantized(Scaling.TENSOR, output, 16, 32)
                .scale(floats(123))
                .amax(floats(amax));
    }

    private Tensor floats(double... values) {
        return open.tensor(DType.FLOAT32, values, values.length);
    }

    private void amax(Case of) {
        computed.call("nvte_compute_amax", of, () -> {
            QuantizedTensor output = numbers(of.output(), 99);
            Tensor input = computed.normal(of.input(), of.rows() + 1, of.columns() + 1);
            int status = TransformerEngine.te_compute_amax(
                    input.handle(), output.handle(), open.stream().handle());
            Status.te(status, "te_compute_amax");
            computed.keep("amax", ByteRule.EXACT, output.amax());
        });
        computed.call("nvte_compute_amax_with_config", of, () -> {
            QuantizedTensor output = numbers(of.output(), 99);
            Tensor input = computed.edged(of, 1); // with NaN and infinities
            RecipeUpdates.computeAmax(input, output, QuantizationConfig.standard(), open.stream());
            computed.keep("amax", ByteRule.EXACT, output.amax());
        });
    }

    private void scaleFromAmax(DType output, Scales kind) {
        computed.call("nvte_compute_scale_from_amax", output + "-" + kind, () -> {
            for (int i = 0; i < MAGNITUDES.length; i++) {
                QuantizationConfig config = QuantizationConfig.standard().withScales(kind);
                QuantizedTensor tensor = numbers(output, MAGNITUDES[i]);
                RecipeUpdates.computeScaleFromAmax(tensor, config, open.stream());
                computed.keep("scale " + i, ByteRule.EXACT, tensor.scale());
                RecipeUpdates.computeScaleFromAmax(tensor, config.withAmaxEpsilon(1e-3f), open.stream());
                computed.keep("scale above epsilon " + i, ByteRule.EXACT, tensor.scale());
            }
        });
    }

    private void ofMany(DType output, Scales kind) {
        computed.call("nvte_multi_tensor_compute_scale_and_scale_inv_cuda", output + "-" + kind, () -> {
            Tensor[] amax = {floats(MAGNITUDES)};
            Tensor[] scale = {open.unwritten(DType.FLOAT32, MAGNITUDES.length)};
            Tensor[] inverse = {open.unwritten(DType.FLOAT32, MAGNITUDES.length)};
            try (TensorLists lists = TensorLists.of(amax, scale, inverse)) {
                QuantizationConfig config = QuantizationConfig.standard().withScales(kind);
                MultiTensor.computeScaleAndScaleInverse(lists, output, config, open.stream());
                open.stream().synchronize();
            }
            computed.keep("scale", ByteRule.EXACT, scale[0]);
            computed.keep("scaleInverse", ByteRule.EXACT, inverse[0]);
        });
    }

    /** Four steps of five scales, of which one is idle, one overflowed, and one is too small. */
    private Tensor history() {
        double[] values = new double[20];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) open.random().nextDouble(0, 10);
        }
        values[0] = 0;
        values[1] = Double.POSITIVE_INFINITY;
        values[2] = Float.MIN_VALUE;
        return computed.tensor(DType.FLOAT32, values, 4, 5);
    }

    private void history(DType output, AmaxAlgorithm algorithm) {
        computed.call("nvte_delayed_scaling_recipe_amax_and_scale_update", output + "-" + algorithm, () -> {
            Tensor history = history();
            Tensor scale = floats(1, 2, 3, 4, 5);
            RecipeUpdates.delayedScalingUpdate(history, scale, history, scale, algorithm, output, 1, open.stream());
            computed.keep("history", ByteRule.EXACT, history);
            computed.keep("scale", ByteRule.EXACT, scale);
        });
    }

    private void historiesAfterReduction(DType output, AmaxAlgorithm algorithm) {
        String name = "nvte_delayed_scaling_recipe_amax_and_scale_update_after_reduction";
        computed.call(name, output + "-" + algorithm, () -> {
            Tensor[] histories = {history(), history()};
            Tensor[] scales = {floats(1, 2, 3, 4, 5), floats(6, 7, 8, 9, 10)};
            Tensor newest = floats(0, 1, 20, 3, 0.1, 0, Double.POSITIVE_INFINITY, 2, 0, 5);
            try (AmaxHistories all = AmaxHistories.of(histories, scales, open.stream())) {
                RecipeUpdates.delayedScalingUpdateAfterReduction(newest, all, algorithm, output, 0, open.stream());
                open.stream().synchronize();
            }
            for (int i = 0; i < histories.length; i++) {
                computed.keep("history " + i, ByteRule.EXACT, histories[i]);
                computed.keep("scale " + i, ByteRule.EXACT, scales[i]);
            }
        });
    }

    /** A matrix of 130 x 208 of which a rank has some. */
    private void parts(Case of) {
        int height = 130;
        int width = 208;
        int begin = 400;
        int count = 26_000;
        computed.call("nvte_fp8_block_scaling_compute_partial_amax", of, () -> {
            Tensor part = computed.tensor(of.input(), open.normal(of.input(), count, 1), count);
            Tensor amax = open.unwritten(DType.FLOAT32, 2, 2);
            PartialCast.computePartialAmax(part, amax, height, width, begin, open.stream());
            computed.keep("amax", ByteRule.EXACT, amax);
        });
        if (of.input() == DType.FLOAT16) {
            return; // two types of input show what the third would
        }
        computed.call("nvte_fp8_block_scaling_partial_cast", of, () -> {
            Tensor part = computed.tensor(of.input(), open.normal(of.input(), count, 1), count);
            Tensor scale = open.tensor(DType.FLOAT32, new double[] {150, 3, 0.7f, 1000}, 2, 2);
            long first = PartialCast.firstWritten(width, begin);
            long end = PartialCast.endWritten(height, width, begin + (long) count);
            Tensor around = open.scope().tensor(of.output(), end - first);
            Tensor output = open.scope().view(around, begin - first, count);
            PartialCast.partialCast(part, output, around, scale, height, width, begin, open.stream());
            computed.keep("output", ByteRule.EXACT, output);
        });
    }

    private void adam(DType output) {
        computed.call("nvte_multi_tensor_adam_fp8_cuda", output, () -> {
            Tensor[] weights = {open.scope().tensor(output, 1003)};
            Tensor[] masters = {computed.tensor(DType.FLOAT32, open.normal(DType.FLOAT32, 1003, 1), 1003)};
            Tensor[] gradients = {computed.tensor(DType.BFLOAT16, open.normal(DType.BFLOAT16, 1003, 1), 1003)};
            Tensor[] means = {floats(new double[1003])};
            Tensor[] squares = {floats(new double[1003])};
            Tensor[] scale = {floats(100)};
            Tensor[] amax = {floats(0)};
            Tensor[] inverse = {floats(0)};
            Tensor[][] vectors = {gradients, weights, means, squares, masters};
            try (TensorLists lists = TensorLists.ofScaled(vectors, scale, amax, inverse)) {
                new MultiTensorAdam(
                                0.9f,
                                0.999f,
                                1e-8f,
                                MultiTensor.WeightDecay.DECOUPLED,
                                MultiTensor.BiasCorrection.YES,
                                0.1f)
                        .adamFp8(lists, 1e-2f, 1, output, open.stream());
                open.stream().synchronize();
            }
            computed.keep("weights", ByteRule.ROUNDED, weights[0]);
            computed.keep("masters", ByteRule.COMPUTED, masters[0]);
            computed.keep("amax", ByteRule.COMPUTED, amax[0]);
            computed.keep("scaleInverse", ByteRule.EXACT, inverse[0]);
        });
    }
}
