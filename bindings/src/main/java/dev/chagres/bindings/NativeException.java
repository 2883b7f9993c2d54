package dev.chagres.bindings;

import org.jspecify.annotations.Nullable;

/**
 * A native library refused a call, or could not be opened.
 *
 * <p>The message of a refused call reads {@code LIBRARY: FUNCTION returned NAME (CODE) on device N: TEXT}; "on device N" is
 * left out when the device is unknown. {@link MissingLibraryException} has its own form, written there.
 *
 * <p>Threading: immutable.
 */
public abstract sealed class NativeException extends RuntimeException
        permits TransformerEngineException,
                CudaException,
                CudnnException,
                NcclException,
                OpsException,
                MissingLibraryException {

    private static final long serialVersionUID = 1;

    private final NativeFailure failure;

    NativeException(NativeFailure failure) {
        super(failure.message());
        this.failure = failure;
    }

    NativeException(NativeFailure failure, String message, @Nullable Throwable cause) {
        super(message, cause);
        this.failure = failure;
    }

    /** The library in words, such as {@code "Transformer Engine"}. */
    public final String library() {
        return failure.library();
    }

    /** The C function that was called, such as {@code "te_layernorm_fwd"}. */
    public final String function() {
        return failure.function();
    }

    /** The status code that the function returned. */
    public final int code() {
        return failure.code();
    }

    /** The code's name in the library's header, such as {@code "TE_ERROR"}. */
    public final String codeName() {
        return failure.codeName();
    }

    /** What the library itself said, {@code ""} when it said nothing. */
    public final String libraryText() {
        return failure.text();
    }

    /** The CUDA device that was current on the calling thread, or -1 when unknown. */
    public final int device() {
        return failure.device();
    }

    final NativeFailure failure() {
        return failure;
    }

    /** The same failure, met again: a new stack trace, this exception as its cause. */
    abstract NativeException again();
}
