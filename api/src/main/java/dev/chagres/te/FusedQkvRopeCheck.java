package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import org.jspecify.annotations.Nullable;

/**
 * Checks of the arguments of {@link FusedQkvRope}.
 *
 * <p>Threading: the device's thread.
 */
final class FusedQkvRopeCheck {
    /** TE starts a block for each sequence in a grid's second dimension. */
    private static final int MOST_SEQUENCES = 65_535;
    /** Four floats for each angle fill the 48 KiB of shared memory that a block has. */
    private static final int MOST_ROTATED = 3072;

    /** Shapes of qkv, whole: put together in each call they would be garbage. */
    private static final String BSHD = "[B, S, g, (hq + hk + hv) / g d]";

    private static final String SBHD = "[S, B, g, (hq + hk + hv) / g d]";

    private FusedQkvRopeCheck() {}

    static void forward(
            Tensor qkv,
            Tensor qFreqs,
            Tensor kFreqs,
            @Nullable Tensor startPositions,
            Tensor q,
            Tensor k,
            Tensor v,
            QkvFormat format,
            Stream stream) {
        groups("qkvInput", qkv, format, stream);
        part("qOut", q, "qkvInput", qkv, format, stream);
        part("kOut", k, "qkvInput", qkv, format, stream);
        part("vOut", v, "qkvInput", qkv, format, stream);
        parts("qkvInput", qkv, q, k, v);
        angles("qFreqs", qFreqs, q, format, stream);
        angles("kFreqs", kFreqs, q, format, stream);
        sameAngles(qFreqs, kFreqs);
        if (startPositions != null) {
            Checks.vector(
                    stream, "startPositions", startPositions, DType.INT32, qkv.size(format == QkvFormat.BSHD ? 0 : 1));
        }
        written("qOut", q, qkv, qFreqs, kFreqs, startPositions);
        written("kOut", k, qkv, qFreqs, kFreqs, startPositions);
        written("vOut", v, qkv, qFreqs, kFreqs, startPositions);
        Checks.apart("qOut", q, "kOut", k);
        Checks.apart("qOut", q, "vOut", v);
        Checks.apart("kOut", k, "vOut", v);
    }

    static void backward(
            Tensor q, Tensor k, Tensor v, Tensor qFreqs, Tensor kFreqs, Tensor qkv, QkvFormat format, Stream stream) {
        groups("qkvGradInput", qkv, format, stream);
        part("qGradOut", q, "qkvGradInput", qkv, format, stream);
        part("kGradOut", k, "qkvGradInput", qkv, format, stream);
        part("vGradOut", v, "qkvGradInput", qkv, format, stream);
        parts("qkvGradInput", qkv, q, k, v);
        angles("qFreqs", qFreqs, q, format, stream);
        angles("kFreqs", kFreqs, q, format, stream);
        sameAngles(qFreqs, kFreqs);
        Checks.writable("qkvGradInput", qkv);
        Checks.apart("qkvGradInput", qkv, "qGradOut", q);
        Checks.apart("qkvGradInput", qkv, "kGradOut", k);
        Checks.apart("qkvGradInput", qkv, "vGradOut", v);
        Checks.apart("qkvGradInput", qkv, "qFreqs", qFreqs);
        Checks.apart("qkvGradInput", qkv, "kFreqs", kFreqs);
    }

    private static void groups(String argument, Tensor qkv, QkvFormat format, Stream stream) {
        if (Checks.given("format", format) == QkvFormat.THD) {
            throw new IllegalArgumentException(
                    "format: expected BSHD or SBHD, got THD; FusedRope rotates packed tokens");
        }
        FusedRopeCheck.shaped(argument, qkv, format.rank(), format == QkvFormat.BSHD ? BSHD : SBHD, stream);
        if (qkv.size(2) == 0) {
            throw new IllegalArgumentException(
                    argument + ": expected at least one group of heads, got " + Checks.describe(qkv));
        }
        if (qkv.size(format == QkvFormat.BSHD ? 0 : 1) > MOST_SEQUENCES) {
            throw new IllegalArgumentException(argument + ": expected at most " + MOST_SEQUENCES
                    + " sequences, as many as TE can start blocks for, got " + Checks.describe(qkv));
        }
    }

    private static void part(
            String argument, Tensor part, String qkvArgument, Tensor qkv, QkvFormat format, Stream stream) {
        FusedRopeCheck.heads(argument, part, format, stream);
        boolean fits = part.dtype() == qkv.dtype()
                && part.size(0) == qkv.size(0)
                && part.size(1) == qkv.size(1)
                && part.size(2) != 0
                && part.size(2) % qkv.size(2) == 0;
        if (!fits) {
            throw new IllegalArgumentException(argument + ": expected " + qkv.dtype() + "[" + qkv.size(0) + ", "
                    + qkv.size(1) + ", h, d] with h a multiple of the " + qkv.size(2) + " groups of " + qkvArgument
                    + ", got " + Checks.describe(part));
        }
    }

    private static void parts(String argument, Tensor qkv, Tensor q, Tensor k, Tensor v) {
        long headDim = q.size(3);
        long elements = (q.size(2) + k.size(2) + v.size(2)) / qkv.size(2) * headDim;
        if (k.size(3) != headDim || v.size(3) != headDim || qkv.size(3) != elements) {
            throw new IllegalArgumentException(argument + ": expected groups that hold all heads, of one size, of q "
                    + q.shape() + ", k " + k.shape() + " and v " + v.shape() + ", got " + Checks.describe(qkv));
        }
    }

    private static void angles(String argument, Tensor freqs, Tensor q, QkvFormat format, Stream stream) {
        Checks.typed(stream, argument, freqs, DType.FLOAT32);
        long positions = q.size(format == QkvFormat.BSHD ? 1 : 0);
        long most = Math.min(q.size(3), MOST_ROTATED);
        boolean fits = freqs.rank() == 4
                && freqs.size(0) >= positions
                && freqs.size(1) == 1
                && freqs.size(2) == 1
                && freqs.size(3) >= 2
                && freqs.size(3) % 2 == 0
                && freqs.size(3) <= most
                && freqs.count() <= Integer.MAX_VALUE;
        if (!fits) {
            throw new IllegalArgumentException(argument + ": expected FLOAT32[positions, 1, 1, r] of at least "
                    + positions
                    + " positions and at most " + Integer.MAX_VALUE + " elements, with r even, from 2 to " + most
                    + ", got " + Checks.describe(freqs));
        }
    }

    private static void sameAngles(Tensor qFreqs, Tensor kFreqs) {
        if (kFreqs.size(3) != qFreqs.size(3)) {
            throw new IllegalArgumentException("kFreqs: expected as many angles a position as qFreqs has, "
                    + qFreqs.size(3) + ", got " + Checks.describe(kFreqs));
        }
    }

    private static void written(
            String argument, Tensor output, Tensor qkv, Tensor qFreqs, Tensor kFreqs, @Nullable Tensor startPositions) {
        Checks.writable(argument, output);
        Checks.apart(argument, output, "qkvInput", qkv);
        Checks.apart(argument, output, "qFreqs", qFreqs);
        Checks.apart(argument, output, "kFreqs", kFreqs);
        if (startPositions != null) {
            Checks.apart(argument, output, "startPositions", startPositions);
        }
    }
}
