package dev.chagres.cudnn;

import dev.chagres.bindings.cudnn.Cudnn;

/**
 * Over which elements a norm takes its mean and variance.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code cudnnBackendNormMode_t} of {@code cudnn_graph.h}.
 */
public enum NormMode {
    /** All elements of a sample that a scale is for. */
    LAYER_NORM(Cudnn.CUDNN_LAYER_NORM()),
    /** The spatial elements of a sample and channel. */
    INSTANCE_NORM(Cudnn.CUDNN_INSTANCE_NORM()),
    /** All elements of a channel. */
    BATCH_NORM(Cudnn.CUDNN_BATCH_NORM()),
    /** As layer norm, without a mean. */
    RMS_NORM(Cudnn.CUDNN_RMS_NORM());

    private final int code;

    NormMode(int code) {
        this.code = code;
    }

    int code() {
        return code;
    }
}
