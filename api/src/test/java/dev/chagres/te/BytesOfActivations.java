package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Tensor;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.te.ComputedBytes.Case;

/** Activations and their gradients with FP8 results, and those of rows with a factor each. */
final class BytesOfActivations {
    private static final float SCALE = 50;
    private static final SituGlu SITU = new SituGlu(3, 2);
    private static final ClampedSwiglu CLAMPED = new ClampedSwiglu(2.03f, 1.7f, 1);

    private final ComputedBytes computed;
    private final OpenDevice open;

    private BytesOfActivations(ComputedBytes computed) {
        this.computed = computed;
        open = computed.open();
    }

    static void compute(ComputedBytes computed) {
        BytesOfActivations activations = new BytesOfActivations(computed);
        for (Case of : ComputedBytes.CASES) {
            for (Activation activation : Activation.values()) {
                activations.of(activation, of);
            }
            activations.parameterized(of);
        }
        for (DType dtype : new DType[] {DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16}) {
            activations.scaled(dtype);
        }
    }

    private interface ToQuantized {
        void call(Tensor x, QuantizedTensor y);
    }

    private interface GradientToQuantized {
        void call(Tensor dy, Tensor x, QuantizedTensor dx);
    }

    private void of(Activation activation, Case of) {
        int width = activation.isGated() ? 2 : 1;
        forward("nv" + activation.forwardFunction(), of, width, (x, y) -> activation.forward(x, y, open.stream()));
        backward(
                "nv" + activation.backwardFunction(),
                of,
                width,
                (dy, x, dx) -> activation.backward(dy, x, dx, open.stream()));
    }

    private void parameterized(Case of) {
        forward("nvte_situglu", of, 2, (x, y) -> SITU.forward(x, y, open.stream()));
        backward("nvte_dsituglu", of, 2, (dy, x, dx) -> SITU.backward(dy, x, dx, open.stream()));
        forward("nvte_clamped_swiglu_v2 with another limit", of, 2, (x, y) -> CLAMPED.forward(x, y, open.stream()));
        backward(
                "nvte_clamped_dswiglu_v2 with another limit",
                of,
                2,
                (dy, x, dx) -> CLAMPED.backward(dy, x, dx, open.stream()));
    }

    private void forward(String name, Case of, int width, ToQuantized function) {
        computed.call(name, of, () -> {
            Tensor x = computed.normal(of.input(), of.rows(), width * of.columns());
            QuantizedTensor both = computed.both(of.output(), of.rows(), of.columns(), SCALE);
            function.call(x, both);
            computed.keep("both", ByteRule.ROUNDED, ByteRule.COMPUTED, both);
            QuantizedTensor rowwise = computed.rowwise(of.output(), of.rows() - 1, of.columns() - 3, SCALE);
            function.call(computed.normal(of.input(), of.rows() - 1, width * (of.columns() - 3)), rowwise);
            computed.keep("rowwise", ByteRule.ROUNDED, ByteRule.COMPUTED, rowwise);
        });
    }

    private void backward(String name, Case of, int width, GradientToQuantized function) {
        computed.call(name, of, () -> {
            Tensor dy = computed.normal(of.input(), of.rows(), of.columns());
            Tensor x = computed.normal(of.input(), of.rows(), width * of.columns());
            QuantizedTensor dx = computed.both(of.output(), of.rows(), width * of.columns(), SCALE);
            function.call(dy, x, dx);
            computed.keep("dx", ByteRule.ROUNDED, ByteRule.COMPUTED, dx);
        });
    }

    private interface Scaled {
        void call(Tensor x, Tensor scales, Tensor y);
    }

    private interface ScaledGradient {
        void call(Tensor dy, Tensor x, Tensor scales, Tensor dx, Tensor dscales);
    }

    private void scaled(DType dtype) {
        GluLayout layout = GluLayout.interleaved(32);
        scaled(
                "nvte_scaled_swiglu",
                dtype,
                2,
                (x, s, y) -> ScaledActivation.forward(Activation.SWIGLU, x, s, y, layout, open.stream()));
        scaled(
                "nvte_scaled_situglu",
                dtype,
                2,
                (x, s, y) -> ScaledActivation.forward(SITU, x, s, y, layout, open.stream()));
        scaled(
                "nvte_scaled_clamped_swiglu",
                dtype,
                2,
                (x, s, y) -> ScaledActivation.forward(CLAMPED, x, s, y, layout, open.stream()));
        scaled(
                "nvte_scaled_srelu",
                dtype,
                1,
                (x, s, y) -> ScaledActivation.forward(Activation.SRELU, x, s, y, layout, open.stream()));
        scaledGradient(
                "nvte_scaled_dswiglu",
                dtype,
                2,
                (dy, x, s, dx, ds) ->
                        ScaledActivation.backward(Activation.SWIGLU, dy, x, s, dx, ds, layout, open.stream()));
        scaledGradient(
                "nvte_scaled_dsituglu",
                dtype,
                2,
                (dy, x, s, dx, ds) -> ScaledActivation.backward(SITU, dy, x, s, dx, ds, layout, open.stream()));
        scaledGradient(
                "nvte_scaled_clamped_dswiglu",
                dtype,
                2,
                (dy, x, s, dx, ds) -> ScaledActivation.backward(CLAMPED, dy, x, s, dx, ds, layout, open.stream()));
        scaledGradient(
                "nvte_scaled_dsrelu",
                dtype,
                1,
                (dy, x, s, dx, ds) ->
                        ScaledActivation.backward(Activation.SRELU, dy, x, s, dx, ds, layout, open.stream()));
    }

    private Tensor scales() {
        return computed.tensor(DType.FLOAT32, open.normal(DType.FLOAT32, 17, 1), 17);
    }

    private void scaled(String name, DType dtype, int width, Scaled function) {
        computed.call(name, dtype, () -> {
            Tensor y = open.unwritten(dtype, 17, 64);
            function.call(computed.normal(dtype, 17, width * 64), scales(), y);
            computed.keep("output", ByteRule.COMPUTED, y);
        });
    }

    private void scaledGradient(String name, DType dtype, int width, ScaledGradient function) {
        computed.call(name, dtype, () -> {
            Tensor dx = open.unwritten(dtype, 17, width * 64);
            Tensor dscales = open.unwritten(DType.FLOAT32, 17);
            Tensor dy = computed.normal(dtype, 17, 64);
            function.call(dy, computed.normal(dtype, 17, width * 64), scales(), dx, dscales);
            computed.keep("gradInput", ByteRule.COMPUTED, dx);
            computed.keep("gradActScales", ByteRule.SUMMED, dscales);
        });
    }
}
