package dev.chagres.layer;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.TokenRows;
import dev.chagres.conformance.Tolerances;
import dev.chagres.ops.SequencePool;
import dev.chagres.ops.SequencePool.Kind;
import dev.chagres.pass.Pass;
import dev.chagres.te.QkvFormat;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.stream.Stream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;

/** Pooling by sequence against its formula in double precision, and against PyTorch. */
@Tag("L0")
@Tag("L1")
class SequencePoolingConformance {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    static Stream<Arguments> cases() {
        List<TokenRows> rows = List.of(
                TokenRows.packed(1),
                TokenRows.packed(3, 0, 17, 1, 70),
                new TokenRows(QkvFormat.THD, List.of(3, 5, 0, 40), 0, List.of(2, 0, 4, 9)),
                TokenRows.padded(QkvFormat.BSHD, 9, 9, 4, 1),
                TokenRows.padded(QkvFormat.SBHD, 40, 40, 33, 2, 7));
        return rows.stream().flatMap(tokens -> Arrays.stream(Kind.values()).map(kind -> Arguments.of(tokens, kind)));
    }

    /** What is expected of x and dy. */
    private record Expected(double[] y, double[] dx) {
        static Expected of(TokenRows tokens, Kind kind, double[] x, double[] dy, int columns) {
            double[] y = new double[dy.length];
            double[] dx = new double[x.length];
            for (int i = 0; i < y.length; i++) {
                int c = i % columns;
                int[] rows = tokens.rows().get(i / columns);
                if (rows.length == 0) {
                    continue;
                }
                if (kind == Kind.MEAN) {
                    for (int row : rows) {
                        y[i] += x[row * columns + c] / rows.length;
                        dx[row * columns + c] = dy[i] / rows.length;
                    }
                    continue;
                }
                int taken = rows[0];
                for (int row : rows) {
                    taken = kind == Kind.MAX && x[row * columns + c] > x[taken * columns + c] ? row : taken;
                }
                y[i] = x[taken * columns + c];
                dx[taken * columns + c] = dy[i];
            }
            return new Expected(y, dx);
        }
    }

    @ParameterizedTest
    @MethodSource("cases")
    void bothDirections(TokenRows tokens, Kind kind) {
        try (Pass pass = Pass.training(open.device())) {
            for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)) {
                for (int columns : new int[] {1, 33, 64}) {
                    both(pass, tokens, kind, dtype, columns);
                }
            }
        }
    }

    private static void both(Pass pass, TokenRows tokens, Kind kind, DType dtype, int columns) {
        pass.begin();
        pass.sequences(tokens.sequences(pass.scope()));
        double[] x = open.normal(dtype, tokens.tokens() * columns, 1);
        double[] dy = open.normal(dtype, tokens.lengths().size() * columns, 1);
        Expected expected = Expected.of(tokens, kind, x, dy, columns);
        SequencePooling pooling = new SequencePooling(kind);
        Tensor input = open.tensor(dtype, x, tokens.tokens(), columns);
        Tensor y = pooling.forward(input, pass);
        open.assertClose("y", expected.y, open.read(y), 1, Tolerances.rounded(dtype));
        Tensor dx = pooling.backward(open.tensor(dtype, dy, tokens.lengths().size(), columns), pass);
        open.assertClose("dx", expected.dx, open.read(dx), 1, Tolerances.rounded(dtype));
    }

    @ParameterizedTest
    @EnumSource(Kind.class)
    void agreesWithPyTorch(Kind kind) throws IOException {
        Map<String, double[]> stored = stored();
        try (Pass pass = Pass.training(open.device())) {
            Tensor x = open.tensor(DType.FLOAT32, stored.get("x"), 9, 3);
            Tensor dy = open.tensor(DType.FLOAT32, stored.get("dy"), 3, 3);
            // @start region="pooling"
            pass.begin();
            pass.sequences(Sequences.packed(pass.scope(), 4, 1, 4));
            SequencePooling pooling = new SequencePooling(kind);
            Tensor y = pooling.forward(x, pass); // [9, 3] to [3, 3]
            Tensor dx = pooling.backward(dy, pass);
            // @end
            open.assertClose("y", stored.get(kind + ".y"), open.read(y), 1, Tolerances.rounded(DType.FLOAT32));
            open.assertClose("dx", stored.get(kind + ".dx"), open.read(dx), 1, Tolerances.rounded(DType.FLOAT32));
        }
    }

    private static Map<String, double[]> stored() throws IOException {
        Map<String, double[]> stored = new HashMap<>();
        try (BufferedReader lines = new BufferedReader(new InputStreamReader(
                Objects.requireNonNull(
                        SequencePoolingConformance.class.getResourceAsStream("/vectors/sequence_pool.txt")),
                StandardCharsets.UTF_8))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                String[] words = line.split(" ");
                stored.put(
                        words[0],
                        Arrays.stream(words)
                                .skip(1)
                                .mapToDouble(Double::parseDouble)
                                .toArray());
            }
        }
        return stored;
    }

    @Test
    void aNumberThatIsNoneIsLargest() {
        try (Pass pass = Pass.training(open.device())) {
            pass.begin();
            pass.sequences(Sequences.packed(pass.scope(), 3));
            Tensor x = open.tensor(DType.FLOAT32, new double[] {1, Double.NaN, 9}, 3, 1);
            SequencePooling pooling = new SequencePooling(Kind.MAX);
            assertTrue(Float.isNaN(open.read(pooling.forward(x, pass))[0]));
            Tensor dx = pooling.backward(open.tensor(DType.FLOAT32, new double[] {5}, 1, 1), pass);
            assertEquals("[0.0, 5.0, 0.0]", Arrays.toString(open.read(dx)));
        }
    }

    @Test
    void misuse() {
        Tensor x = open.tensor(DType.FLOAT32, new double[12], 6, 2);
        Tensor y = open.unwritten(DType.FLOAT32, 2, 2);
        Tensor seqlens = open.ints(0, 2, 6);
        assertThrown(
                IllegalArgumentException.class,
                "argument: expected INT32[B, C] for MAX, got null",
                () -> SequencePool.forward(x, seqlens, null, QkvFormat.THD, Kind.MAX, y, null, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "cuSeqlensPadded: expected null for padded tokens, BSHD, got INT32[3]",
                () -> SequencePool.forward(x, seqlens, seqlens, QkvFormat.BSHD, Kind.MEAN, y, null, open.stream()));
        try (Pass pass = Pass.training(open.device())) {
            pass.begin();
            pass.sequences(Sequences.packed(pass.scope(), 3, 4));
            assertThrown(
                    IllegalArgumentException.class,
                    "x: expected 7 tokens as the sequences say (THD, 2 sequences), got 6 in " + x,
                    () -> new SequencePooling(Kind.MEAN).forward(x, pass));
        }
        assertEquals("MEAN by sequence", new SequencePooling(Kind.MEAN).toString());
    }
}
