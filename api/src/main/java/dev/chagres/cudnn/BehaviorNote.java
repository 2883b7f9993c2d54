package dev.chagres.cudnn;

import dev.chagres.bindings.cudnn.Cudnn;

/**
 * What an engine needs or does besides computing.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code cudnnBackendBehaviorNote_t} of {@code cudnn_graph.h}.
 */
public enum BehaviorNote {
    /** It compiles kernels when the plan is made. */
    RUNTIME_COMPILATION(Cudnn.CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION()),
    /** It wants filters reordered. */
    REQUIRES_FILTER_INT8x32_REORDER(Cudnn.CUDNN_BEHAVIOR_NOTE_REQUIRES_FILTER_INT8x32_REORDER()),
    /** It wants the bias reordered. */
    REQUIRES_BIAS_INT8x32_REORDER(Cudnn.CUDNN_BEHAVIOR_NOTE_REQUIRES_BIAS_INT8x32_REORDER()),
    /** It can write its work into a CUDA graph. */
    SUPPORTS_CUDA_GRAPH_NATIVE_API(Cudnn.CUDNN_BEHAVIOR_NOTE_SUPPORTS_CUDA_GRAPH_NATIVE_API()),
    /** It calls cuBLASLt. */
    CUBLASLT_DEPENDENCY(Cudnn.CUDNN_BEHAVIOR_NOTE_CUBLASLT_DEPENDENCY());

    private final int code;

    BehaviorNote(int code) {
        this.code = code;
    }

    int code() {
        return code;
    }

    /** Returns the name of a note, which may be newer than this class. */
    static String nameOf(int code) {
        for (BehaviorNote note : values()) {
            if (note.code == code) {
                return note.name();
            }
        }
        return "note " + code;
    }
}
