package dev.chagres.parallel;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.DotProductAttention;
import dev.chagres.layer.Dropout;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.pass.Pass;
import dev.chagres.witness.AttentionWitness;
import java.util.List;
import java.util.SplittableRandom;
import org.apache.commons.math3.linear.BlockRealMatrix;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/**
 * What ranks that divide heads drop of their attention weights: by our own kernels what one rank drops, by cuDNN's something of their
 * own. Masks are read back: where all scores are 0, and each value is a unit vector, the output is the mask.
 */
@Tag("L0")
@Tag("L2")
class SplitAttentionDropoutTest {
    private static final int RANKS = 2;
    private static final int HEADS = 4;
    private static final int HEAD_DIM = 64;
    private static final int[] LENGTHS = {64, 40};
    private static final int TOKENS = 104;
    private static final float PROBABILITY = 0.1f;
    private static final double DEVIATIONS = 5;
    private static final AttentionConfig CONFIG =
            AttentionConfig.of(HEADS, HEAD_DIM, AttentionMask.none()).withDropout(Dropout.of(PROBABILITY));

    /** Output and gradients, [T, heads d]. */
    private record Result(float[] o, float[] dq, float[] dk, float[] dv, String explanation) {}

    private static Result run(Device device, DType dtype, ModelPlan plan, AttentionConfig config, double[]... inputs) {
        DotProductAttention attention = new DotProductAttention(config, plan.group("layer"));
        try (Scope scope = device.openScope();
                Pass pass = Pass.training(device)) {
            Tensor[] tensors = new Tensor[inputs.length];
            for (int i = 0; i < inputs.length; i++) {
                float[] values = new float[inputs[i].length];
                for (int e = 0; e < values.length; e++) {
                    values[e] = (float) inputs[i][e];
                }
                tensors[i] = scope.tensor(dtype, TOKENS, config.heads(), HEAD_DIM);
                tensors[i].set(scope.stream(), values);
            }
            pass.begin(Sequences.packed(scope, LENGTHS));
            pass.seed(11, 2, 3);
            Tensor o = attention.forward(tensors[0], tensors[1], tensors[2], pass);
            Tensor dq = scope.like(o);
            Tensor dk = scope.like(o);
            Tensor dv = scope.like(o);
            attention.backward(tensors[3], dq, dk, dv, pass);
            return new Result(
                    o.toFloats(pass.stream()),
                    dq.toFloats(pass.stream()),
                    dk.toFloats(pass.stream()),
                    dv.toFloats(pass.stream()),
                    attention.explain(dtype, pass));
        }
    }

    private static double[] zeros(int heads) {
        return new double[TOKENS * heads * HEAD_DIM];
    }

    /** Of the j-th key of a sequence the j-th unit vector. */
    private static double[] units(int heads) {
        double[] values = zeros(heads);
        int token = 0;
        for (int length : LENGTHS) {
            for (int j = 0; j < length; j++, token++) {
                for (int h = 0; h < heads; h++) {
                    values[(token * heads + h) * HEAD_DIM + j] = 1;
                }
            }
        }
        return values;
    }

    /** What becomes of a weight: [T, heads, key]. */
    private static float[] factors(Device device, DType dtype, ModelPlan plan, AttentionConfig config) {
        int heads = config.heads();
        float[] o = run(device, dtype, plan, config, zeros(heads), zeros(heads), units(heads), zeros(heads)).o;
        int row = 0;
        for (int length : LENGTHS) {
            for (int end = row + length * heads; row < end; row++) {
                for (int j = 0; j < HEAD_DIM; j++) {
                    o[row * HEAD_DIM + j] *= length;
                }
            }
        }
        return o;
    }

    private static AttentionConfig ofRank() {
        return AttentionConfig.of(HEADS / RANKS, HEAD_DIM, AttentionMask.none()).withDropout(CONFIG.dropout());
    }

    private static List<float[]> factorsOfRanks(DType dtype) {
        return Ranks.local(RANKS)
                .run(rank ->
                        factors(rank.device(), dtype, new ModelPlan(TensorParallel.of(rank.communicator())), ofRank()));
    }

    @Test
    void ownKernelsDropWhatOneRankDrops() {
        DevicesNeeded.assume(RANKS);
        float[] whole;
        try (Device device = Device.open()) {
            whole = factors(device, DType.FLOAT32, new ModelPlan(), CONFIG);
        }
        List<float[]> parts = factorsOfRanks(DType.FLOAT32);
        int width = HEADS / RANKS * HEAD_DIM;
        for (int t = 0; t < TOKENS; t++) {
            for (int rank = 0; rank < RANKS; rank++) {
                float[] expected = new float[width];
                float[] actual = new float[width];
                System.arraycopy(whole, (t * RANKS + rank) * width, expected, 0, width);
                System.arraycopy(parts.get(rank), t * width, actual, 0, width);
                assertArrayEquals(expected, actual, 1e-6f, "token " + t + " of rank " + rank);
            }
        }
    }

    /** The masks of two ranks keep as many as they shall, and agree as often as unrelated ones do. */
    @Test
    void fusedKernelsDropByNumbersOfTheirOwn() {
        DevicesNeeded.assume(RANKS);
        List<float[]> parts = factorsOfRanks(DType.BFLOAT16);
        double weights = 0;
        double agreeing = 0;
        double[] kept = new double[RANKS];
        int row = 0;
        for (int length : LENGTHS) {
            for (int end = row + length * HEADS / RANKS; row < end; row++) {
                for (int j = 0; j < length; j++) {
                    boolean first = parts.get(0)[row * HEAD_DIM + j] > 0.5;
                    boolean second = parts.get(1)[row * HEAD_DIM + j] > 0.5;
                    weights++;
                    agreeing += first == second ? 1 : 0;
                    kept[0] += first ? 1 : 0;
                    kept[1] += second ? 1 : 0;
                }
            }
        }
        double keeping = 1 - PROBABILITY;
        assertShare(keeping, kept[0], weights);
        assertShare(keeping, kept[1], weights);
        assertShare(keeping * keeping + PROBABILITY * PROBABILITY, agreeing, weights);
    }

    private static void assertShare(double expected, double count, double weights) {
        assertEquals(expected, count / weights, DEVIATIONS * Math.sqrt(expected * (1 - expected) / weights));
    }

    /** Backward drops what forward dropped, on each rank. */
    @Test
    void gradientsAreThoseOfTheRanksOwnMask() {
        DevicesNeeded.assume(RANKS);
        for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16)) {
            List<float[]> masks = factorsOfRanks(dtype);
            int heads = HEADS / RANKS;
            double[][] drawn = new double[4][];
            SplittableRandom random = new SplittableRandom(5);
            for (int i = 0; i < drawn.length; i++) {
                // Of few bits, so that BFLOAT16 stores them as they are.
                drawn[i] = random.ints((long) TOKENS * heads * HEAD_DIM, -64, 65)
                        .asDoubleStream()
                        .map(value -> value / 32)
                        .toArray();
            }
            List<Result> results = Ranks.local(RANKS)
                    .run(rank -> run(
                            rank.device(),
                            dtype,
                            new ModelPlan(TensorParallel.of(rank.communicator())),
                            ofRank(),
                            drawn));
            RealMatrix[] in = new RealMatrix[drawn.length];
            for (int i = 0; i < in.length; i++) {
                in[i] = matrix(drawn[i], heads);
            }
            double tolerance = dtype == DType.FLOAT32 ? 1e-4 : 3e-2;
            for (int rank = 0; rank < RANKS; rank++) {
                float[] mask = masks.get(rank);
                AttentionWitness witness = new AttentionWitness(
                        ofRank(),
                        List.of(rows(0, LENGTHS[0]), rows(LENGTHS[0], LENGTHS[1])),
                        (b, h, i, j) -> mask[(((b == 0 ? 0 : LENGTHS[0]) + i) * heads + h) * HEAD_DIM + j] > 0.5
                                ? 1 / (1 - (double) PROBABILITY)
                                : 0);
                Result result = results.get(rank);
                close(witness.forward(in[0], in[1], in[2]), result.o, tolerance, "o");
                witness.backward(in[3]);
                close(witness.dq(), result.dq, tolerance, "dq");
                close(witness.dk(), result.dk, tolerance, "dk");
                close(witness.dv(), result.dv, tolerance, "dv");
                assertEquals(
                        dtype == DType.BFLOAT16,
                        result.explanation.contains("each of 2 ranks draws its own dropout"),
                        result.explanation);
            }
        }
    }

    private static int[] rows(int first, int count) {
        int[] rows = new int[count];
        for (int i = 0; i < count; i++) {
            rows[i] = first + i;
        }
        return rows;
    }

    private static RealMatrix matrix(double[] values, int heads) {
        RealMatrix matrix = new BlockRealMatrix(TOKENS, heads * HEAD_DIM);
        for (int i = 0; i < values.length; i++) {
            matrix.setEntry(i / (heads * HEAD_DIM), i % (heads * HEAD_DIM), values[i]);
        }
        return matrix;
    }

    private static void close(RealMatrix expected, float[] actual, double tolerance, String what) {
        int columns = expected.getColumnDimension();
        assertTrue(actual.length > 0);
        for (int i = 0; i < actual.length; i++) {
            double wanted = expected.getEntry(i / columns, i % columns);
            assertEquals(wanted, actual[i], tolerance * Math.max(1, Math.abs(wanted)), what + "[" + i + "]");
        }
    }
}
