package dev.chagres.te;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.te.QuantizationConfig.Scales;
import dev.chagres.te.RecipeUpdates.AmaxAlgorithm;
import dev.chagres.witness.Float8Witness;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;

/** {@code RecipeUpdates} against plain Java: every scale and every history must be the one. */
@Tag("L0")
@Tag("L1")
class RecipeUpdatesConformance {
    private static final QuantizationConfig STANDARD = QuantizationConfig.standard();

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static Tensor floats(double... values) {
        return open.tensor(DType.FLOAT32, values, values.length);
    }

    /** A quantized tensor that has an amax and a scale alone. */
    private static QuantizedTensor numbers(DType dtype, double amax) {
        return open.scope()
                .quantized(Scaling.TENSOR, dtype, 16, 32)
                .scale(floats(123))
                .amax(floats(amax));
    }

    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void amax(DType dtype) {
        for (int count : new int[] {1, 3, 64, 1000, 70_000}) {
            double[] values = open.normal(dtype, count, 1);
            double largest = 0;
            for (double value : values) {
                largest = Math.max(largest, Math.abs(value));
            }
            QuantizedTensor output = numbers(DType.FLOAT8_E4M3, 99);
            RecipeUpdates.computeAmax(open.tensor(dtype, values, count), output, STANDARD, open.stream());
            assertEquals((float) largest, open.read(output.amax())[0], "of " + count);
        }
    }

    @Test
    void amaxOfNothingOfNanAndOfInfinity() {
        QuantizedTensor output = numbers(DType.FLOAT8_E4M3, 99);
        RecipeUpdates.computeAmax(open.scope().tensor(DType.FLOAT32, 0), output, STANDARD, open.stream());
        assertEquals(0, open.read(output.amax())[0]);
        RecipeUpdates.computeAmax(floats(1, Double.NaN, -3), output, STANDARD, open.stream());
        assertEquals(3, open.read(output.amax())[0], "NaN counts as 0");
        RecipeUpdates.computeAmax(floats(1, Double.NEGATIVE_INFINITY), output, STANDARD, open.stream());
        assertEquals(Float.POSITIVE_INFINITY, open.read(output.amax())[0]);
    }

    private static float scaleOf(float amax, DType dtype, QuantizationConfig config) {
        float used = amax < config.amaxEpsilon() ? config.amaxEpsilon() : amax;
        if (used == 0 || Float.isInfinite(used) || Float.isNaN(used)) {
            return 1;
        }
        float scale = Math.min((float) Float8Witness.largest(dtype) / used, Float.MAX_VALUE);
        return config.scales() == Scales.POWER_OF_2 ? Math.scalb(1f, Math.getExponent(scale)) : scale;
    }

    @ParameterizedTest
    @EnumSource(names = {"FLOAT8_E4M3", "FLOAT8_E5M2"})
    void scaleFromAmax(DType dtype) {
        float[] magnitudes = {
            0, 1, 3, 448, 1e-6f, 0.1f, 1e30f, 1e-38f, Float.MIN_VALUE, Float.POSITIVE_INFINITY, Float.NaN
        };
        List<QuantizationConfig> configs = List.of(
                STANDARD,
                STANDARD.withScales(Scales.POWER_OF_2),
                STANDARD.withAmaxEpsilon(1e-3f),
                STANDARD.withAmaxEpsilon(0.25f).withScales(Scales.POWER_OF_2));
        for (QuantizationConfig config : configs) {
            for (float magnitude : magnitudes) {
                QuantizedTensor output = numbers(dtype, magnitude);
                RecipeUpdates.computeScaleFromAmax(output, config, open.stream());
                float expected = scaleOf(magnitude, dtype, config);
                assertEquals(expected, open.read(output.scale())[0], magnitude + ", " + config.scales());
            }
        }
    }

    /** Current scaling: the largest element becomes the largest number of the type. */
    @Test
    void currentScaling() {
        double[] values = open.normal(DType.BFLOAT16, 64 * 96, 3);
        Tensor x = open.tensor(DType.BFLOAT16, values, 64, 96);
        QuantizedTensor q = Float8Matrix.empty(open, DType.FLOAT8_E4M3, 64, 96, 7);
        RecipeUpdates.computeAmax(x, q, STANDARD, open.stream());
        RecipeUpdates.computeScaleFromAmax(q, STANDARD, open.stream());
        Cast.quantize(x, q, open.stream());
        float scale = open.read(q.scale())[0];
        CastConformance.assertQuantized(open, values, scale, q);
        double largest = 0;
        for (double value : Float8Witness.values(q.rowwise().toBytes(open.stream()), DType.FLOAT8_E4M3)) {
            largest = Math.max(largest, Math.abs(value));
        }
        assertEquals(448, largest);
    }

    @Test
    void noop() {
        Tensor flag = floats(1);
        QuantizationConfig config = STANDARD.withNoop(flag);
        QuantizedTensor output = numbers(DType.FLOAT8_E4M3, 99);
        RecipeUpdates.computeAmax(floats(1, 2), output, config, open.stream());
        RecipeUpdates.computeScaleFromAmax(output, config, open.stream());
        assertEquals(99, open.read(output.amax())[0]);
        assertEquals(123, open.read(output.scale())[0]);
        open.set(flag, 0);
        RecipeUpdates.computeAmax(floats(1, 2), output, config, open.stream());
        RecipeUpdates.computeScaleFromAmax(output, config, open.stream());
        assertEquals(2, open.read(output.amax())[0]);
        assertEquals(224, open.read(output.scale())[0]);
    }

    /** A history of {@code length} steps of {@code scales} scales, and how it is updated. */
    record Update(int length, int scales, AmaxAlgorithm algorithm, DType dtype, float margin) {
        float scaled() {
            return (float) (Float8Witness.largest(dtype) * Math.pow(2, -margin));
        }
    }

    static List<Update> updates() {
        List<Update> updates = new ArrayList<>();
        for (int length : new int[] {1, 2, 5, 1024}) {
            for (AmaxAlgorithm algorithm : AmaxAlgorithm.values()) {
                updates.add(new Update(length, 3, algorithm, DType.FLOAT8_E4M3, 0));
                updates.add(new Update(length, 7, algorithm, DType.FLOAT8_E5M2, 2));
            }
        }
        return updates;
    }

    /** A history, its scales, and what an update makes of them. */
    private static final class State {
        private final Update update;
        private final float[] history;
        private final float[] scale;

        State(Update update) {
            this.update = update;
            history = new float[update.length * update.scales];
            for (int i = 0; i < history.length; i++) {
                history[i] = (float) open.random().nextDouble(0, 10);
            }
            scale = new float[update.scales];
            for (int i = 0; i < scale.length; i++) {
                scale[i] = (float) open.random().nextDouble(1, 100);
            }
            // An idle tensor, one that overflowed, one whose scale FP32 cannot hold.
            history[0] = 0;
            history[1] = Float.POSITIVE_INFINITY;
            history[2] = Float.MIN_VALUE;
        }

        Tensor historyTensor() {
            Tensor tensor = open.scope().tensor(DType.FLOAT32, update.length, update.scales);
            tensor.set(open.stream(), history);
            return tensor;
        }

        Tensor scaleTensor() {
            Tensor tensor = open.scope().tensor(DType.FLOAT32, update.scales);
            tensor.set(open.stream(), scale);
            return tensor;
        }

        /** Updates column {@code i}, whose newest magnitude is {@code newest}. */
        void update(int i, float newest, boolean rolls) {
            float largest = newest;
            for (int row = 1; rolls && row < update.length; row++) {
                largest = Math.max(largest, history[row * update.scales + i]);
            }
            for (int row = 0; rolls && row < update.length; row++) {
                float next = row == update.length - 1 ? newest : history[(row + 1) * update.scales + i];
                history[row * update.scales + i] = row == 0 ? 0 : next;
            }
            float amax = update.algorithm == AmaxAlgorithm.MAX ? largest : newest;
            if (amax > 0 && Float.isFinite(amax)) {
                scale[i] = Math.min(update.scaled() / amax, Float.MAX_VALUE);
            }
        }
    }

    @ParameterizedTest
    @MethodSource("updates")
    void delayedScaling(Update update) {
        State state = new State(update);
        Tensor history = state.historyTensor();
        Tensor scale = state.scaleTensor();
        Tensor newHistory = open.scope().like(history);
        Tensor newScale = open.scope().like(scale);
        RecipeUpdates.delayedScalingUpdate(
                history, scale, newHistory, newScale, update.algorithm, update.dtype, update.margin, open.stream());
        assertArrayEquals(state.history, open.read(history), "is read");
        RecipeUpdates.delayedScalingUpdate(
                history, scale, history, scale, update.algorithm, update.dtype, update.margin, open.stream());
        for (int i = 0; i < update.scales; i++) {
            state.update(i, state.history[i], true);
        }
        assertArrayEquals(state.history, open.read(newHistory));
        assertArrayEquals(state.scale, open.read(newScale));
        assertArrayEquals(state.history, open.read(history), "in place");
        assertArrayEquals(state.scale, open.read(scale), "in place");
    }

    @ParameterizedTest
    @MethodSource("updates")
    void delayedScalingAfterReduction(Update update) {
        for (boolean reduced : new boolean[] {false, true}) {
            State[] states = {new State(update), new State(update)};
            Tensor[] histories = {states[0].historyTensor(), states[1].historyTensor()};
            Tensor[] scales = {states[0].scaleTensor(), states[1].scaleTensor()};
            float[] newest = new float[2 * update.scales];
            for (int i = 0; i < newest.length; i++) {
                newest[i] = i % 3 == 0 ? 0 : (float) open.random().nextDouble(0, 20);
            }
            Tensor buffer = reduced ? open.scope().tensor(DType.FLOAT32, newest.length) : null;
            if (buffer != null) {
                buffer.set(open.stream(), newest);
            }
            try (AmaxHistories all = AmaxHistories.of(histories, scales, open.stream())) {
                assertEquals(2, all.count());
                assertEquals(2L * update.scales, all.scaleCount());
                RecipeUpdates.delayedScalingUpdateAfterReduction(
                        buffer, all, update.algorithm, update.dtype, update.margin, open.stream());
            }
            for (int i = 0; i < newest.length; i++) {
                State state = states[i / update.scales];
                int column = i % update.scales;
                float value = reduced && newest[i] != 0 ? newest[i] : state.history[column];
                state.update(column, value, value != 0);
            }
            for (int i = 0; i < 2; i++) {
                assertArrayEquals(states[i].history, open.read(histories[i]), "reduced " + reduced);
                assertArrayEquals(states[i].scale, open.read(scales[i]), "reduced " + reduced);
            }
        }
    }

    @Test
    void withoutScales() {
        try (AmaxHistories none = AmaxHistories.of(new Tensor[0], new Tensor[0], open.stream())) {
            RecipeUpdates.delayedScalingUpdateAfterReduction(
                    null, none, AmaxAlgorithm.MAX, DType.FLOAT8_E4M3, 0, open.stream());
        }
        Tensor history = open.scope().tensor(DType.FLOAT32, 4, 0);
        Tensor scale = open.scope().tensor(DType.FLOAT32, 0);
        RecipeUpdates.delayedScalingUpdate(
                history, scale, history, scale, AmaxAlgorithm.MAX, DType.FLOAT8_E4M3, 0, open.stream());
        open.stream().synchronize();
    }

    @Test
    void makesNoGarbage() {
        State state = new State(updates().getLast());
        Tensor history = state.historyTensor();
        Tensor scale = state.scaleTensor();
        Tensor x = open.tensor(DType.BFLOAT16, open.normal(DType.BFLOAT16, 16, 32, 1));
        QuantizedTensor q = numbers(DType.FLOAT8_E4M3, 1);
        try (AmaxHistories all = AmaxHistories.of(new Tensor[] {history}, new Tensor[] {scale}, open.stream())) {
            Allocation.assertNone("recipe updates", () -> {
                RecipeUpdates.computeAmax(x, q, STANDARD, open.stream());
                RecipeUpdates.computeScaleFromAmax(q, STANDARD, open.stream());
                RecipeUpdates.delayedScalingUpdate(
                        history, scale, history, scale, AmaxAlgorithm.MAX, DType.FLOAT8_E4M3, 0, open.stream());
                RecipeUpdates.delayedScalingUpdateAfterReduction(
                        null, all, AmaxAlgorithm.MOST_RECENT, DType.FLOAT8_E4M3, 0, open.stream());
            });
        }
    }
}
