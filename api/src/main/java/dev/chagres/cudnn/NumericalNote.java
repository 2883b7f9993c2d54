package dev.chagres.cudnn;

import dev.chagres.bindings.cudnn.Cudnn;

/**
 * What an engine does that shows in its results.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code cudnnBackendNumericalNote_t} of {@code cudnn_graph.h}.
 */
public enum NumericalNote {
    /** It computes on tensor cores. */
    TENSOR_CORE(Cudnn.CUDNN_NUMERICAL_NOTE_TENSOR_CORE()),
    /** It rounds inputs to a smaller type. */
    DOWN_CONVERT_INPUTS(Cudnn.CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS()),
    /** It sums in a smaller type than asked for. */
    REDUCED_PRECISION_REDUCTION(Cudnn.CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION()),
    /** It computes by Fourier transforms. */
    FFT(Cudnn.CUDNN_NUMERICAL_NOTE_FFT()),
    /** Its results may have other bits from run to run. */
    NONDETERMINISTIC(Cudnn.CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC()),
    /** It computes by Winograd transforms. */
    WINOGRAD(Cudnn.CUDNN_NUMERICAL_NOTE_WINOGRAD()),
    /** Winograd transforms of tiles of 4 by 4. */
    WINOGRAD_TILE_4x4(Cudnn.CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4()),
    /** Winograd transforms of tiles of 6 by 6. */
    WINOGRAD_TILE_6x6(Cudnn.CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6()),
    /** Winograd transforms of tiles of 13 by 13. */
    WINOGRAD_TILE_13x13(Cudnn.CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13()),
    /** NaN in an input gives NaN in all results that depend on it. */
    STRICT_NAN_PROP(Cudnn.CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP());

    private final int code;

    NumericalNote(int code) {
        this.code = code;
    }

    int code() {
        return code;
    }

    /** Returns the name of a note, which may be newer than this class. */
    static String nameOf(int code) {
        for (NumericalNote note : values()) {
            if (note.code == code) {
                return note.name();
            }
        }
        return "note " + code;
    }
}
