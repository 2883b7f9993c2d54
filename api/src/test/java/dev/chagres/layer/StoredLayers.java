package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.internal.memory.MemoryReuse;
import dev.chagres.layer.EveryLayer.Step;
import dev.chagres.parameter.CounterRandom;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.recipe.AttentionPrecision;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Quantizers;
import dev.chagres.recipe.Recipe;
import dev.chagres.te.QkvFormat;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * Writes what a step of each {@link EveryLayerCase}, and of attention in eight bits, computes: the norms of output and gradients, and a
 * digest of all their numbers. By {@code DelayedScaling} there are two steps, for the scales of the second follow from the first.
 */
final class StoredLayers {
    private static final int HIDDEN = 256;

    private StoredLayers() {}

    /** Takes the file to write. */
    public static void main(String[] arguments) throws IOException {
        List<String> lines = new ArrayList<>();
        for (EveryLayerCase c : EveryLayerCase.all()) {
            int steps = c.recipe() instanceof DelayedScaling ? 2 : 1;
            c.run(EveryLayerCase.PLAIN, MemoryReuse.USUAL, EveryLayerCase.ALL, true, (model, pass) -> {
                for (int step = 1; step <= steps; step++) {
                    lines.add(c + ", step " + step + ":" + bits(model.parameters, model.step(pass)));
                    model.parameters.nextStep();
                }
                return lines;
            });
        }
        for (AttentionPrecision precision : AttentionPrecision.values()) {
            addAttention(precision, lines);
        }
        Files.write(Path.of(arguments[0]), lines);
    }

    /** Over sequences of equal lengths, which eight bits want. */
    private static void addAttention(AttentionPrecision precision, List<String> lines) {
        ModelPlan plan = new ModelPlan();
        AttentionConfig attention = AttentionConfig.of(2, 128, AttentionMask.causal());
        var layer = new TransformerLayer(TransformerLayerConfig.encoder(HIDDEN, attention), plan);
        try (Device device = Device.open();
                Scope scope = device.openScope();
                Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 7);
                Pass pass = Pass.training(device)) {
            Recipe recipe = DelayedScaling.standard().withAttention(precision);
            pass.autocast(Quantizers.allocate(parameters, recipe));
            Sequences sequences = Sequences.dense(scope, QkvFormat.BSHD, 2, 64);
            Tensor x = drawn(scope, 1, sequences.tokens());
            Tensor dy = drawn(scope, 2, sequences.tokens());
            for (int step = 1; step <= 2; step++) {
                pass.begin(sequences);
                float[] y = layer.forward(x, pass).toFloats(device.stream());
                float[] dx = layer.backward(dy, pass).toFloats(device.stream());
                parameters.completeGradients();
                List<float[]> gradients = parameters.all().stream()
                        .map(parameter -> parameter.gradient().toFloats(device.stream()))
                        .toList();
                var all = new Step(y, dx, new float[0], gradients);
                lines.add("attention in " + precision + ", step " + step + ":" + bits(parameters, all));
                parameters.nextStep();
            }
        }
    }

    private static Tensor drawn(Scope scope, long key, long tokens) {
        Tensor tensor = scope.tensor(DType.BFLOAT16, tokens, HIDDEN);
        float[] values = new float[(int) tensor.count()];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) CounterRandom.normal(key, i);
        }
        tensor.set(scope.stream(), values);
        return tensor;
    }

    private static String bits(Parameters owner, Step step) {
        // By name, for the order of parameters is no result.
        Map<String, float[]> gradients = new TreeMap<>();
        List<Parameter> parameters = owner.all();
        for (int i = 0; i < parameters.size(); i++) {
            gradients.put(parameters.get(i).name(), step.gradients().get(i));
        }
        MessageDigest digest = sha256();
        List.of(step.y(), step.dx(), step.dmemory()).forEach(values -> digest.update(bytes(values)));
        gradients.forEach((name, values) -> {
            digest.update(name.getBytes(StandardCharsets.UTF_8));
            digest.update(bytes(values));
        });
        return " y=" + norm(List.of(step.y())) + " dx=" + norm(List.of(step.dx())) + " dmemory="
                + norm(List.of(step.dmemory())) + " gradients=" + norm(gradients.values()) + " sha256="
                + HexFormat.of().formatHex(digest.digest());
    }

    private static String norm(Iterable<float[]> all) {
        double sum = 0;
        for (float[] values : all) {
            for (float value : values) {
                sum += (double) value * value;
            }
        }
        return Double.toHexString(Math.sqrt(sum));
    }

    private static byte[] bytes(float[] values) {
        ByteBuffer bytes = ByteBuffer.allocate(values.length * Float.BYTES);
        bytes.asFloatBuffer().put(values);
        return bytes.array();
    }

    private static MessageDigest sha256() {
        try {
            return MessageDigest.getInstance("SHA-256");
        } catch (NoSuchAlgorithmException e) {
            throw new IllegalStateException(e); // Every JDK has it.
        }
    }
}
