package dev.chagres.cudnn;

import dev.chagres.bindings.cudnn.Cudnn;

/**
 * How cuDNN proposes engines for a graph.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code cudnnBackendHeurMode_t} of {@code cudnn_graph.h}.
 */
public enum HeuristicMode {
    /** The usual proposals, made quickly. */
    A(Cudnn.CUDNN_HEUR_MODE_A()),
    /** Proposals that take longer to make and may be better. */
    B(Cudnn.CUDNN_HEUR_MODE_B()),
    /** Engines that compute most graphs, without regard to speed. */
    FALLBACK(Cudnn.CUDNN_HEUR_MODE_FALLBACK());

    private final int code;

    HeuristicMode(int code) {
        this.code = code;
    }

    int code() {
        return code;
    }
}
