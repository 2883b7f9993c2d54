package dev.chagres.bindings;

/**
 * cuDNN refused a call; {@link #codeName()} is a name of {@code cudnnStatus_t}.
 *
 * <p>Threading: immutable.
 */
public final class CudnnException extends NativeException {

    private static final long serialVersionUID = 1;

    static final String LIBRARY = "cuDNN";

    CudnnException(NativeFailure failure) {
        super(failure);
    }

    private CudnnException(CudnnException first) {
        super(first.failure(), first.failure().message(), first);
    }

    @Override
    CudnnException again() {
        return new CudnnException(this);
    }
}
