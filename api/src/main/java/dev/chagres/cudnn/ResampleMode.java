package dev.chagres.cudnn;

import dev.chagres.bindings.cudnn.Cudnn;

/**
 * What a window gives in a resampling.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code cudnnResampleMode_t} of {@code cudnn_graph.h}.
 */
public enum ResampleMode {
    /** The nearest element. */
    NEAREST(Cudnn.CUDNN_RESAMPLE_NEAREST()),
    /** What lies between the nearest elements. */
    BILINEAR(Cudnn.CUDNN_RESAMPLE_BILINEAR()),
    /** The mean, in which padding counts as 0. */
    AVGPOOL_INCLUDE_PADDING(Cudnn.CUDNN_RESAMPLE_AVGPOOL_INCLUDE_PADDING()),
    /** The mean of what is no padding. */
    AVGPOOL_EXCLUDE_PADDING(Cudnn.CUDNN_RESAMPLE_AVGPOOL_EXCLUDE_PADDING()),
    /** The largest element. */
    MAXPOOL(Cudnn.CUDNN_RESAMPLE_MAXPOOL());

    private final int code;

    ResampleMode(int code) {
        this.code = code;
    }

    int code() {
        return code;
    }
}
