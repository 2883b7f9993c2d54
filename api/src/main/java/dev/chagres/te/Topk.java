package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Checks;

/**
 * The k largest keys of each row, found by radix selection.
 *
 * <p>Keys are compared by their bits: -0 is below 0; NaN is above infinity or, if negative, below -infinity.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code nvte_topk} in TE's {@code topk.h}; Zhang et al., Parallel top-k algorithms on GPU (2023).
 */
public final class Topk {
    /** Keys of a row that one block of TE's kernel takes. */
    private static final long ONE_BLOCK = 32_768;

    private static final long MOST_ROWS = 1L << 24;
    private static final long MOST_COLUMNS = 1L << 28;

    private Topk() {}

    /**
     * Enqueues the k largest of the first {@code lengths[b]} keys of each row b, and their places in the row, {@code nvte_topk}. Their
     * order, and which of equal keys are chosen, is undefined and differs from call to call. A row of at most k keys is copied; behind it
     * keys and indices are -1.
     *
     * <p>The contents of lengths are trusted: from 0 to L; in rows of more than 32,768 keys only L, since TE's kernel then reads whole
     * rows.
     *
     * @param keysIn [B, L], FLOAT32 or BFLOAT16; FLOAT32 in rows of more than 32,768 keys
     * @param lengths INT32 [B]
     * @param keysOut [B, k], in the type of keysIn
     * @param indicesOut INT32 [B, k]
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     */
    public static void topk(Tensor keysIn, Tensor lengths, Tensor keysOut, Tensor indicesOut, Stream stream) {
        checkKeys(keysIn, stream);
        Checks.vector(stream, "lengths", lengths, DType.INT32, keysIn.size(0));
        long k = found(keysOut, keysIn, stream);
        places(indicesOut, keysIn.size(0), k, stream);
        Checks.written("keysOut", keysOut, "keysIn", keysIn, "lengths", lengths);
        Checks.written("indicesOut", indicesOut, "keysIn", keysIn, "lengths", lengths);
        Checks.apart("indicesOut", indicesOut, "keysOut", keysOut);
        if (keysOut.count() == 0) {
            return;
        }
        AskedWorkspace space = AskedWorkspace.of(AskedWorkspace.Function.TOPK, null, stream)
                .with(keysIn.size(0))
                .with(keysIn.size(1));
        do {
            Status.te(
                    TransformerEngine.te_topk(
                            stream.handle(),
                            keysIn.handle(),
                            lengths.handle(),
                            keysOut.handle(),
                            indicesOut.handle(),
                            space.memory(),
                            Math.toIntExact(keysIn.size(0)),
                            Math.toIntExact(keysIn.size(1)),
                            Math.toIntExact(k)),
                    "te_topk");
        } while (space.wasAsked());
    }

    private static void checkKeys(Tensor keysIn, Stream stream) {
        Checks.on(stream, "keysIn", keysIn);
        if (keysIn.rank() != 2 || (keysIn.dtype() != DType.FLOAT32 && keysIn.dtype() != DType.BFLOAT16)) {
            throw new IllegalArgumentException(
                    "keysIn: expected a matrix of FLOAT32 or BFLOAT16, got " + Checks.describe(keysIn));
        }
        long rows = keysIn.size(0);
        long columns = keysIn.size(1);
        if (rows > MOST_ROWS || columns < 1 || columns > MOST_COLUMNS) {
            throw new IllegalArgumentException("keysIn: expected at most " + MOST_ROWS + " rows of 1 to " + MOST_COLUMNS
                    + " keys, got " + Checks.describe(keysIn));
        }
        if (columns > ONE_BLOCK && keysIn.dtype() != DType.FLOAT32) {
            throw new IllegalArgumentException("keysIn: expected FLOAT32 in rows of more than " + ONE_BLOCK
                    + " keys, for which TE can ask too little memory for BFLOAT16, got " + Checks.describe(keysIn));
        }
    }

    private static long found(Tensor keysOut, Tensor keysIn, Stream stream) {
        Checks.on(stream, "keysOut", keysOut);
        boolean fits = keysOut.rank() == 2
                && keysOut.dtype() == keysIn.dtype()
                && keysOut.size(0) == keysIn.size(0)
                && keysOut.size(1) >= 1
                && keysOut.size(1) <= Integer.MAX_VALUE;
        if (!fits) {
            throw new IllegalArgumentException("keysOut: expected " + keysIn.dtype() + "[" + keysIn.size(0)
                    + ", k] with k from 1 on, got " + Checks.describe(keysOut));
        }
        return keysOut.size(1);
    }

    private static void places(Tensor indicesOut, long rows, long k, Stream stream) {
        Checks.on(stream, "indicesOut", indicesOut);
        boolean fits = indicesOut.rank() == 2
                && indicesOut.dtype() == DType.INT32
                && indicesOut.size(0) == rows
                && indicesOut.size(1) == k;
        if (!fits) {
            throw new IllegalArgumentException(
                    "indicesOut: expected INT32[" + rows + ", " + k + "], got " + Checks.describe(indicesOut));
        }
    }
}
