package dev.chagres.models.esm;

import static org.junit.jupiter.api.Assertions.assertEquals;

import com.fasterxml.jackson.jr.ob.JSON;
import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.bindings.Provider;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.parameter.Parameter;
import dev.chagres.pass.Pass;
import java.io.IOException;
import java.io.InputStream;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/**
 * Six training steps of a small ESM-2 against PyTorch's own: losses, gradient norms and final weights. The file comes from
 * src/test/vectors/make_esm2_steps.py.
 */
@Tag("L0")
@Tag("L1")
class Esm2StepsTest {
    private static final Esm2Config CONFIG = new Esm2Config(2, 64, 4, 64);

    /** FP32 against FP64; products on CUDA run as TF32, with 11 bits. */
    private static final double TOLERANCE = Provider.current() == Provider.CUDA ? 3e-3 : 1e-5;

    /** A step moves a weight by up to its rate, in whichever direction a gradient near 0 points. */
    private static final double WEIGHT_TOLERANCE = Provider.current() == Provider.CUDA ? 3e-3 : 2e-5;

    @Test
    void repeatsTheStepsOfPyTorch() throws IOException {
        Map<String, Object> stored = read();
        int[] lengths = ints(stored, "lengths");
        double[] rates = doubles(stored, "rates");
        double[] losses = doubles(stored, "losses");
        double[] norms = doubles(stored, "gradientNorms");
        try (Device device = Device.open();
                Esm2 model = new Esm2(device, CONFIG, DType.FLOAT32, 1);
                Pass pass = Pass.training(device)) {
            for (Parameter parameter : model.parameters().all()) {
                parameter.weight().set(device.stream(), firstWeights(parameter));
            }
            model.parameters().changed();
            GradientNorm norm = new GradientNorm(model.parameters(), 1);
            try (AdamW optimizer = new AdamW(model.parameters(), new AdamW.Config(0.9f, 0.98f, 1e-8f, 0.01f))) {
                for (int step = 0; step < rates.length; step++) {
                    pass.begin();
                    pass.sequences(Sequences.packed(pass.scope(), lengths));
                    Tensor ids = pass.scope().tensor(DType.INT32, ints(stored, "ids").length);
                    Tensor labels = pass.scope().like(ids);
                    ids.set(device.stream(), ints(stored, "ids"));
                    labels.set(device.stream(), ints(stored, "labels"));
                    Tensor loss = model.loss(ids, labels, pass);
                    model.backward(1, pass);
                    norm.compute();
                    optimizer.step((float) rates[step], norm);
                    String at = " of step " + (step + 1);
                    close("loss" + at, losses[step], loss.toFloats(device.stream())[0], TOLERANCE);
                    close("gradient norm" + at, norms[step], norm.norm().toFloats(device.stream())[0], TOLERANCE);
                }
            }
            for (Parameter parameter : model.parameters().all()) {
                compareWeights(parameter, stored, device);
            }
        }
    }

    private static void compareWeights(Parameter parameter, Map<String, Object> stored, Device device) {
        float[] weights = parameter.weight().toFloats(device.stream());
        String name = parameter.name();
        double[] first = doubles(map(stored, "weights"), name);
        for (int i = 0; i < first.length; i++) {
            assertEquals(first[i], weights[i], WEIGHT_TOLERANCE, name + "[" + i + "]");
        }
        double square = 0;
        for (float weight : weights) {
            square += (double) weight * weight;
        }
        double norm = ((Number) map(stored, "weightNorms").get(name)).doubleValue();
        close("norm of " + name, norm, Math.sqrt(square), TOLERANCE);
    }

    /** The formula of the script. */
    private static float[] firstWeights(Parameter parameter) {
        float[] weights = new float[Math.toIntExact(parameter.weight().count())];
        String name = parameter.name();
        double base = name.endsWith("norm.weight") ? 1 : 0;
        for (int i = 0; i < weights.length; i++) {
            double value = 43758.5453 * Math.abs(Math.sin(12.9898 * (i + 1) + name.length()));
            weights[i] = (float) (0.1 * (2 * (value - Math.floor(value)) - 1) + base);
        }
        return weights;
    }

    private static void close(String what, double expected, double actual, double tolerance) {
        assertEquals(expected, actual, tolerance * Math.max(1e-3, Math.abs(expected)), what);
    }

    private static Map<String, Object> read() throws IOException {
        try (InputStream file = Esm2StepsTest.class.getResourceAsStream("/vectors/esm2_steps.json")) {
            return JSON.std.mapFrom(Objects.requireNonNull(file, "/vectors/esm2_steps.json"));
        }
    }

    @SuppressWarnings("unchecked")
    private static Map<String, Object> map(Map<String, Object> stored, String name) {
        return (Map<String, Object>) Objects.requireNonNull(stored.get(name), name);
    }

    private static double[] doubles(Map<String, Object> stored, String name) {
        List<?> values = (List<?>) Objects.requireNonNull(stored.get(name), name);
        return values.stream()
                .mapToDouble(value -> ((Number) value).doubleValue())
                .toArray();
    }

    private static int[] ints(Map<String, Object> stored, String name) {
        List<?> values = (List<?>) Objects.requireNonNull(stored.get(name), name);
        return values.stream().mapToInt(value -> ((Number) value).intValue()).toArray();
    }
}
