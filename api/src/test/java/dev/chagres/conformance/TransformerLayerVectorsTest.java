package dev.chagres.conformance;

import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import dev.chagres.Device;
import dev.chagres.Dropout;
import dev.chagres.Scope;
import dev.chagres.attention.AttentionConfig;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.CuSeqlens;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.attention.Sequences;
import dev.chagres.layer.Accumulation;
import dev.chagres.layer.Parameter;
import dev.chagres.layer.ParameterPlan;
import dev.chagres.layer.Parameters;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.tensor.DType;
import dev.chagres.tensor.Tensor;
import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.zip.GZIPInputStream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** One layer against Transformer Engine for PyTorch on an H200; src/test/vectors/make_transformer_layer.py made the file. */
@Tag("L0")
@Tag("L1")
class TransformerLayerVectorsTest {
    private static final String FILE = "/vectors/transformer_layer_bf16.bin.gz";
    private static final int HIDDEN = 128;
    private static final int HEADS = 4;
    private static final int POSITIONS = 64;

    /** Two bfloat16 programs that round at other places: 2^-7 an operation, averaged over a tensor. */
    private static final double TOLERANCE = 1e-2;

    @Test
    void agreesWithTransformerEngineForPyTorch() throws IOException {
        InputStream file = TransformerLayerVectorsTest.class.getResourceAsStream(FILE);
        assumeTrue(file != null, FILE + " is absent; src/test/vectors/make_transformer_layer.py writes it on a GPU");
        Map<String, float[]> stored = read(file);
        ParameterPlan plan = new ParameterPlan();
        TransformerLayer layer = new TransformerLayer(
                TransformerLayerConfig.encoder(
                        HIDDEN,
                        AttentionConfig.of(HEADS, HIDDEN / HEADS, AttentionMask.none(), Dropout.none()),
                        Dropout.none()),
                plan);
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 1);
                Scope scope = device.openScope()) {
            for (Parameter parameter : parameters.all()) {
                parameter.weight().set(device.stream(), get(stored, parameter.name()));
            }
            layer.rotate(RotaryEmbedding.of(scope, POSITIONS, HIDDEN / HEADS));
            Sequences sequences = Sequences.packed(CuSeqlens.ofLengths(scope, ints(get(stored, "lengths"))));
            Tensor x = scope.tensor(DType.BFLOAT16, sequences.tokens(), HIDDEN);
            Tensor dy = scope.like(x);
            x.set(device.stream(), get(stored, "x"));
            dy.set(device.stream(), get(stored, "dy"));

            TransformerLayer.Saved saved = layer.forward(x, sequences, scope);
            compare("y", get(stored, "y"), saved.output().toFloats(device.stream()));
            Tensor dx = layer.backward(dy, saved, Accumulation.OVERWRITE, scope);
            compare("dx", get(stored, "dx"), dx.toFloats(device.stream()));
            for (Parameter parameter : parameters.all()) {
                String name = "gradient." + parameter.name();
                compare(name, get(stored, name), parameter.gradient().toFloats(device.stream()));
            }
        }
    }

    private static void compare(String name, float[] expected, float[] actual) {
        double difference = 0;
        double size = 0;
        for (int i = 0; i < expected.length; i++) {
            difference += Math.pow(expected[i] - actual[i], 2);
            size += Math.pow(expected[i], 2);
        }
        double relative = Math.sqrt(difference / size);
        assertTrue(relative <= TOLERANCE, name + ": relative difference " + relative + " is above " + TOLERANCE);
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

    private static Map<String, float[]> read(InputStream file) throws IOException {
        Map<String, float[]> tensors = new HashMap<>();
        try (DataInputStream in = new DataInputStream(new BufferedInputStream(new GZIPInputStream(file)))) {
            while (true) {
                int nameLength;
                try {
                    nameLength = Integer.reverseBytes(in.readInt());
                } catch (EOFException end) {
                    return tensors;
                }
                String name = new String(in.readNBytes(nameLength), StandardCharsets.US_ASCII);
                int count = Integer.reverseBytes(in.readInt());
                float[] values = new float[count];
                ByteBuffer.wrap(in.readNBytes(4 * count))
                        .order(ByteOrder.LITTLE_ENDIAN)
                        .asFloatBuffer()
                        .get(values);
                tensors.put(name, values);
            }
        }
    }
}
