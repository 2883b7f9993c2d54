package dev.chagres.conformance;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.HostBuffer;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.CuSeqlens;
import dev.chagres.attention.Llama3Scaling;
import dev.chagres.attention.RotaryConfig;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.attention.Sequences;
import dev.chagres.ops.QkvHeads;
import dev.chagres.ops.Rotary.Direction;
import dev.chagres.ops.RotaryTable;
import dev.chagres.te.FusedRope.Pairing;
import dev.chagres.te.QkvFormat;
import dev.chagres.witness.RotaryWitness;
import java.util.ArrayList;
import java.util.List;
import org.apache.commons.math3.linear.BlockRealMatrix;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** {@code RotaryEmbedding} against double precision: separate tensors and a packed buffer. */
@Tag("L0")
@Tag("L1")
class RotaryConformance {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    record Case(DType dtype, int heads, int headDim, TokenRows tokens) {}

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)) {
            cases.add(new Case(dtype, 1, 2, TokenRows.packed(1)));
            cases.add(new Case(dtype, 3, 16, TokenRows.packed(0, 1, 17, 0, 64)));
            cases.add(new Case(dtype, 2, 64, TokenRows.packed(63, 65, 1, 128)));
            cases.add(new Case(dtype, 1, 128, TokenRows.packed(700)));
            cases.add(new Case(dtype, 2, 6, TokenRows.packed(33)));
            for (QkvFormat format : new QkvFormat[] {QkvFormat.BSHD, QkvFormat.SBHD}) {
                cases.add(new Case(dtype, 1, 8, TokenRows.padded(format, 1, 1)));
                cases.add(new Case(dtype, 3, 16, TokenRows.padded(format, 65, 65, 65)));
                cases.add(new Case(dtype, 2, 32, TokenRows.padded(format, 17, 17, 17, 17)));
            }
        }
        return cases;
    }

    @ParameterizedTest
    @MethodSource("cases")
    void separateTensors(Case c) {
        RotaryWitness witness = new RotaryWitness(c.headDim, c.tokens.rows());
        RotaryEmbedding rotary = RotaryEmbedding.of(open.scope(), 1000, c.headDim);
        Sequences sequences = c.tokens.sequences(open.scope());
        RealMatrix x = open.normal(c.dtype, c.tokens.tokens(), c.heads * c.headDim, 1);
        open.assertClose("y", witness.forward(x), rotated(rotary, heads(c, x), sequences), Tolerances.rounded(c.dtype));
        open.assertClose(
                "dx", witness.backward(x), rotatedBack(rotary, heads(c, x), sequences), Tolerances.rounded(c.dtype));
    }

    private static Tensor rotated(RotaryEmbedding rotary, Tensor x, Sequences sequences) {
        Tensor y = open.scope().like(x);
        rotary.forward(x, y, sequences, open.stream());
        return y;
    }

    private static Tensor rotatedBack(RotaryEmbedding rotary, Tensor dy, Sequences sequences) {
        Tensor dx = open.scope().like(dy);
        rotary.backward(dy, dx, sequences, open.stream());
        return dx;
    }

    @ParameterizedTest
    @MethodSource("cases")
    void packedBuffer(Case c) {
        RotaryWitness witness = new RotaryWitness(c.headDim, c.tokens.rows());
        RotaryEmbedding rotary = RotaryEmbedding.of(open.scope(), 1000, c.headDim);
        Sequences sequences = c.tokens.sequences(open.scope());
        int width = c.heads * c.headDim;
        RealMatrix qkv = open.normal(c.dtype, c.tokens.tokens(), 3 * width, 1);
        RealMatrix rotated = qkv.copy();
        RealMatrix back = qkv.copy();
        for (int part = 0; part < 2; part++) {
            RealMatrix x = qkv.getSubMatrix(0, qkv.getRowDimension() - 1, part * width, (part + 1) * width - 1);
            rotated.setSubMatrix(witness.forward(x).getData(), 0, part * width);
            back.setSubMatrix(witness.backward(x).getData(), 0, part * width);
        }
        Tensor forward = open.tensor(c.dtype, qkv);
        rotary.rotatePacked(forward, sequences, open.stream());
        open.assertClose("qkv", rotated, forward, Tolerances.rounded(c.dtype));
        Tensor backward = open.tensor(c.dtype, qkv);
        rotary.rotatePackedBack(backward, sequences, open.stream());
        open.assertClose("dqkv", back, backward, Tolerances.rounded(c.dtype));
    }

    /** Configurations, and the frequencies that their formulas give. */
    record Configured(RotaryConfig config, double... frequencies) {}

    static List<Configured> configurations() {
        RotaryConfig whole = RotaryConfig.of(16);
        double[] halved = RotaryWitness.ofBase(16, 10_000);
        for (int i = 0; i < halved.length; i++) {
            halved[i] /= 2.5;
        }
        double[] llama = RotaryWitness.ofBase(16, 500_000);
        for (int i = 0; i < llama.length; i++) {
            double wavelength = 2 * Math.PI / llama[i];
            double smooth = (8192 / wavelength - 1) / (4 - 1);
            double mixed = (1 - smooth) * llama[i] / 8 + smooth * llama[i];
            llama[i] = wavelength > 8192 ? llama[i] / 8 : wavelength < 8192 / 4.0 ? llama[i] : mixed;
        }
        return List.of(
                new Configured(whole.withBase(500), RotaryWitness.ofBase(16, 500)),
                new Configured(whole.withInterpolation(2.5), halved),
                new Configured(whole.withBase(500_000).withScaling(Llama3Scaling.llama31()), llama),
                new Configured(whole.withRotatedDim(6), RotaryWitness.ofBase(6, 10_000)),
                new Configured(whole.withRotatedDim(4).withFrequencies(List.of(0.5, 0.0)), 0.5, 0),
                new Configured(whole.withPairing(Pairing.INTERLEAVED), RotaryWitness.ofBase(16, 10_000)),
                new Configured(
                        whole.withRotatedDim(8).withPairing(Pairing.INTERLEAVED), RotaryWitness.ofBase(8, 10_000)));
    }

    @ParameterizedTest
    @MethodSource("configurations")
    void everyConfiguration(Configured c) {
        RotaryEmbedding rotary = RotaryEmbedding.of(open.scope(), 80, c.config);
        assertEquals(c.config, rotary.config());
        for (TokenRows tokens : List.of(
                TokenRows.packed(5, 0, 17, 33),
                TokenRows.padded(QkvFormat.BSHD, 9, 9, 9),
                TokenRows.padded(QkvFormat.SBHD, 9, 9, 9))) {
            int[] starts = tokens.lengths().size() == 2 ? new int[] {40, 3} : new int[] {1, 2, 0, 47};
            Sequences from0 = tokens.sequences(open.scope());
            check(c, rotary, tokens, from0, new int[starts.length]);
            check(c, rotary, tokens, from0.startingAt(open.scope(), starts), starts);
        }
    }

    private static void check(
            Configured c, RotaryEmbedding rotary, TokenRows tokens, Sequences sequences, int... starts) {
        DType dtype = DType.FLOAT32;
        RotaryWitness witness = new RotaryWitness(16, c.frequencies, c.config.pairing(), tokens.rows(), starts);
        Case shape = new Case(dtype, 3, 16, tokens);
        RealMatrix x = open.normal(dtype, tokens.tokens(), 48, 1);
        open.assertClose(
                "y", witness.forward(x), rotated(rotary, heads(shape, x), sequences), Tolerances.rounded(dtype));
        open.assertClose(
                "dx", witness.backward(x), rotatedBack(rotary, heads(shape, x), sequences), Tolerances.rounded(dtype));
        // One head each of query, key and value: the last stays.
        QkvHeads heads = new QkvHeads(1, 1, 16);
        RealMatrix expected = witness.forward(x);
        expected.setSubMatrix(x.getSubMatrix(0, tokens.tokens() - 1, 32, 47).getData(), 0, 32);
        Tensor packed = open.tensor(dtype, x);
        rotary.rotatePacked(packed, heads, sequences, Direction.FORWARD, open.stream());
        open.assertClose("qkv", expected, packed, Tolerances.rounded(dtype));
    }

    @Test
    void refusesNumbersOutOfRange() {
        RotaryConfig config = RotaryConfig.of(16);
        refused("base: expected a finite number above 0, got 0.0", () -> config.withBase(0));
        refused(
                "interpolationFactor: expected a finite number above 0, got NaN",
                () -> config.withInterpolation(Double.NaN));
        for (int rotated : new int[] {0, 5, 18}) {
            refused(
                    "rotatedDim: expected an even number from 2 to the head dimension 16, got " + rotated,
                    () -> config.withRotatedDim(rotated));
        }
        refused(
                "frequencies: expected 8, one of each pair of 16 elements, got 1",
                () -> config.withFrequencies(List.of(1.0)));
        refused(
                "frequencies: expected finite numbers, got Infinity",
                () -> config.withRotatedDim(2).withFrequencies(List.of(Double.POSITIVE_INFINITY)));
        refused("factor: expected a finite number above 0, got -1.0", () -> new Llama3Scaling(-1, 1, 4, 8));
        refused(
                "highFrequencyFactor: expected more than lowFrequencyFactor, 4.0, got 1.0",
                () -> new Llama3Scaling(8, 4, 1, 8));
        refused("originalPositions: expected at least 1, got 0", () -> new Llama3Scaling(8, 1, 4, 0));
        refused(
                "positions, rotatedDim: expected a product of at most 2147483639 angles, got 2147483647 and 16",
                () -> RotaryEmbedding.of(open.scope(), Integer.MAX_VALUE, config));
    }

    @Test
    void refusesStartPositionsThatDoNotFit() {
        Scope scope = open.scope();
        Sequences two = Sequences.packed(scope, 3, 4);
        refused("newStarts: expected 2, one of each sequence, got 1", () -> two.startingAt(scope, 1));
        refused("newStarts: expected none negative, got -1 at 1", () -> two.startingAt(scope, 0, -1));
        RotaryEmbedding rotary = RotaryEmbedding.of(scope, 8, 8);
        Tensor x = scope.tensor(DType.FLOAT32, 7, 1, 8);
        refused(
                "sequences: expected none longer than the 8 positions of the rotary embedding, got 4, and one that"
                        + " starts at position 5",
                () -> rotary.forward(x, scope.like(x), two.startingAt(scope, 0, 5), open.stream()));
        CuSeqlens lengths = CuSeqlens.ofLengths(scope, 1, 2);
        Sequences started = Sequences.packed(lengths).startingAt(scope, 3, 4);
        try (HostBuffer host = HostBuffer.pageable(open.device(), 8)) {
            lengths.set(scope, host.segment(), 1);
        }
        assertThrown(
                IllegalStateException.class,
                "sequences: the lengths were set again since the start positions were made, and are of 1 sequences"
                        + " now, not 2; make them again",
                started::check);
        try (Scope inner = scope.open()) {
            Sequences gone = two.startingAt(inner, 1, 1);
            inner.restart();
            inner.tensor(DType.INT32, 2);
            assertThrown(
                    IllegalStateException.class,
                    "sequences: the scope that holds the start positions was restarted since they were made, and may have"
                            + " handed out their memory for something else; make them again",
                    gone::check);
        }
    }

    private static void refused(String text, Executable call) {
        assertThrown(IllegalArgumentException.class, text, call);
    }

    private static Tensor heads(Case c, RealMatrix matrix) {
        Scope scope = open.scope();
        int batch = c.tokens.lengths().size();
        int length = c.tokens.padded();
        Tensor tensor = switch (c.tokens.format()) {
            case THD -> scope.tensor(c.dtype, c.tokens.tokens(), c.heads, c.headDim);
            case BSHD -> scope.tensor(c.dtype, batch, length, c.heads, c.headDim);
            case SBHD -> scope.tensor(c.dtype, length, batch, c.heads, c.headDim);
        };
        open.set(tensor, matrix);
        return tensor;
    }

    @Test
    void nanStaysInItsPair() {
        Case c = new Case(DType.BFLOAT16, 1, 8, TokenRows.packed(5));
        RealMatrix x = new BlockRealMatrix(5, 8).scalarAdd(1);
        x.setEntry(2, 5, Double.NaN);
        RotaryEmbedding rotary = RotaryEmbedding.of(open.scope(), 8, 8);
        float[] y = open.read(rotated(rotary, heads(c, x), c.tokens.sequences(open.scope())));
        for (int i = 0; i < 40; i++) {
            assertEquals(i == 2 * 8 + 5 || i == 2 * 8 + 1, Float.isNaN(y[i]), "element " + i);
        }
    }

    @Test
    void refusesWhatDoesNotFit() {
        Scope scope = open.scope();
        assertThrown(
                IllegalArgumentException.class,
                "positions: expected at least 1, got 0",
                () -> RotaryEmbedding.of(scope, 0, 8));
        for (int headDim : new int[] {-2, 0, 7}) {
            assertThrown(
                    IllegalArgumentException.class,
                    "headDim: expected a positive even number, got " + headDim,
                    () -> RotaryEmbedding.of(scope, 8, headDim));
        }
        RotaryEmbedding rotary = RotaryEmbedding.of(scope, 8, 8);
        assertEquals(8, rotary.positions());
        assertEquals(8, rotary.headDim());
        Sequences sequences = TokenRows.packed(3, 8).sequences(scope);
        Sequences longer = TokenRows.packed(2, 9).sequences(scope);
        assertThrown(
                IllegalArgumentException.class,
                "sequences: expected none longer than the 8 positions of the rotary embedding, got 9",
                () -> rotated(rotary, scope.tensor(DType.FLOAT32, 11, 1, 8), longer));
        assertThrown(
                IllegalArgumentException.class,
                "sequences: expected none longer than the 8 positions of the rotary embedding, got 9",
                () -> rotary.rotatePacked(scope.tensor(DType.FLOAT32, 11, 24), longer, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "x: expected [11, h, d] with head dimension 8 over THD of 2 sequences, 11 tokens, got FLOAT32[11, 8]",
                () -> rotated(rotary, scope.tensor(DType.FLOAT32, 11, 8), sequences));
        assertThrown(
                IllegalArgumentException.class,
                "dy: expected [11, h, d] with head dimension 8 over THD of 2 sequences, 11 tokens, got FLOAT32[11, 1, 16]",
                () -> rotatedBack(rotary, scope.tensor(DType.FLOAT32, 11, 1, 16), sequences));
        assertThrown(
                IllegalArgumentException.class,
                "x: expected [11, h, d] with head dimension 8 over THD of 2 sequences, 11 tokens, got FLOAT32[12, 1, 8]",
                () -> rotated(rotary, scope.tensor(DType.FLOAT32, 12, 1, 8), sequences));
        assertThrown(
                IllegalArgumentException.class,
                "qkv: expected [T, 3 h d] with head dimension 8, got FLOAT32[11, 25]",
                () -> rotary.rotatePacked(scope.tensor(DType.FLOAT32, 11, 25), sequences, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "dqkv: expected 11 tokens as the sequences say (THD, 2 sequences), got 10 in Tensor FLOAT32[10, 24]",
                () -> rotary.rotatePackedBack(scope.tensor(DType.FLOAT32, 10, 24), sequences, open.stream()));
        QkvHeads heads = new QkvHeads(1, 1, 8);
        assertThrown(
                IllegalArgumentException.class,
                "qkv: expected [T, (h + 2 g) d], got FLOAT32[]",
                () -> rotary.rotatePacked(
                        scope.tensor(DType.FLOAT32), heads, sequences, Direction.FORWARD, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "angles: expected FLOAT32[positions, r], got FLOAT32[]",
                () -> new RotaryTable(scope.tensor(DType.FLOAT32), Pairing.HALVES).rotatedDim());
    }
}
