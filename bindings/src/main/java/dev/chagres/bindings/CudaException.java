package dev.chagres.bindings;

/**
 * The CUDA runtime refused a call; {@link #codeName()} is a name of {@code cudaError_t}.
 *
 * <p>Threading: immutable.
 */
public final class CudaException extends NativeException {

    private static final long serialVersionUID = 1;

    static final String LIBRARY = "CUDA runtime";

    CudaException(NativeFailure failure) {
        super(failure);
    }

    private CudaException(CudaException first) {
        super(first.failure(), first.failure().message(), first);
    }

    @Override
    CudaException again() {
        return new CudaException(this);
    }
}
