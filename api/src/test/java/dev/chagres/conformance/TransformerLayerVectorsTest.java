package dev.chagres.conformance;

import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.CuSeqlens;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.attention.Sequences;
import dev.chagres.bindings.Provider;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Objects;
import java.util.zip.GZIPInputStream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/**
 * One layer against stored vectors: in BF16 those of Transformer Engine for PyTorch on an H200, in FP32 those of plain
 * PyTorch. src/test/vectors has the scripts that made them.
 */
@Tag("L0")
@Tag("L1")
class TransformerLayerVectorsTest {
    private static final int HEADS = 4;
    private static final int POSITIONS = 64;

    @Test
    void agreesWithTransformerEngineForPyTorch() throws IOException {
        // Two bfloat16 programs that round at other places: 2^-7 an operation, averaged over a tensor.
        compare("/vectors/transformer_layer_bf16.bin.gz", DType.BFLOAT16, 1e-2);
    }

    @Test
    void agreesWithPyTorch() throws IOException {
        // FP32 against FP64; products on CUDA run as TF32, with 11 bits.
        double tolerance = Provider.current() == Provider.CUDA ? 2e-3 : 2e-6;
        compare("/vectors/transformer_layer_fp32.bin.gz", DType.FLOAT32, tolerance);
    }

    private static void compare(String file, DType dtype, double tolerance) throws IOException {
        Map<String, float[]> stored = read(file);
        int[] lengths = ints(get(stored, "lengths"));
        int hidden = get(stored, "x").length / Arrays.stream(lengths).sum();
        ModelPlan plan = new ModelPlan();
        TransformerLayer layer = new TransformerLayer(
                TransformerLayerConfig.encoder(hidden, AttentionConfig.of(HEADS, hidden / HEADS, AttentionMask.none())),
                plan);
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, dtype, 1);
                Scope scope = device.openScope();
                Pass pass = Pass.training(device)) {
            for (Parameter parameter : parameters.all()) {
                parameter.weight().set(device.stream(), get(stored, parameter.name()));
            }
            layer.rotate(RotaryEmbedding.of(scope, POSITIONS, hidden / HEADS));
            Sequences sequences = Sequences.packed(CuSeqlens.ofLengths(scope, lengths));
            Tensor x = scope.tensor(dtype, sequences.tokens(), hidden);
            Tensor dy = scope.like(x);
            x.set(device.stream(), get(stored, "x"));
            dy.set(device.stream(), get(stored, "dy"));

            pass.begin(sequences);
            Tensor y = layer.forward(x, pass);
            compare("y", get(stored, "y"), y.toFloats(device.stream()), tolerance);
            Tensor dx = layer.backward(dy, pass);
            compare("dx", get(stored, "dx"), dx.toFloats(device.stream()), tolerance);
            for (Parameter parameter : parameters.all()) {
                String name = "gradient." + parameter.name();
                compare(name, get(stored, name), parameter.gradient().toFloats(device.stream()), tolerance);
            }
        }
    }

    private static void compare(String name, float[] expected, float[] actual, double tolerance) {
        double difference = 0;
        double size = 0;
        for (int i = 0; i < expected.length; i++) {
            difference += Math.pow(expected[i] - actual[i], 2);
            size += Math.pow(expected[i], 2);
        }
        double relative = Math.sqrt(difference / size);
        assertTrue(relative <= tolerance, name + ": relative difference " + relative + " is above " + tolerance);
    }

    private static float[] get(Map<String, float[]> stored, String name) {
        float[] values = stored.get(name);
        assertTrue(values != null, "no tensor is called " + name);
        return values == null ? new float[0] : values;
    }

    private static int[] ints(float[] values) {
        int[] result = new int[values.length];
        for (int i = 0; i < values.length; i++) {
            result[i] = (int) values[i];
        }
        return result;
    }

    private static Map<String, float[]> read(String name) throws IOException {
        Map<String, float[]> tensors = new HashMap<>();
        InputStream file = Objects.requireNonNull(TransformerLayerVectorsTest.class.getResourceAsStream(name), name);
        try (DataInputStream in = new DataInputStream(new BufferedInputStream(new GZIPInputStream(file)))) {
            while (true) {
                int nameLength;
                try {
                    nameLength = Integer.reverseBytes(in.readInt());
                } catch (EOFException end) {
                    return tensors;
                }
                String tensor = new String(in.readNBytes(nameLength), StandardCharsets.US_ASCII);
                int count = Integer.reverseBytes(in.readInt());
                float[] values = new float[count];
                ByteBuffer.wrap(in.readNBytes(4 * count))
                        .order(ByteOrder.LITTLE_ENDIAN)
                        .asFloatBuffer()
                        .get(values);
                tensors.put(tensor, values);
            }
        }
    }
}
