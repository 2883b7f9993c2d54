package dev.chagres.bindings;

/**
 * NCCL refused a call; {@link #codeName()} is a name of {@code ncclResult_t}.
 *
 * <p>Threading: immutable.
 */
public final class NcclException extends NativeException {

    private static final long serialVersionUID = 1;

    static final String LIBRARY = "NCCL";

    NcclException(NativeFailure failure) {
        super(failure);
    }

    private NcclException(NcclException first) {
        super(first.failure(), first.failure().message(), first);
    }

    @Override
    NcclException again() {
        return new NcclException(this);
    }
}
