package dev.chagres.bindings;

/**
 * An operation of {@code ops.h} refused a call; {@link #codeName()} is a name of {@code OpsStatus}.
 *
 * <p>Threading: immutable.
 */
public final class OpsException extends NativeException {

    private static final long serialVersionUID = 1;

    static final String LIBRARY = "Chagres operations";

    OpsException(NativeFailure failure) {
        super(failure);
    }

    private OpsException(OpsException first) {
        super(first.failure(), first.failure().message(), first);
    }

    @Override
    OpsException again() {
        return new OpsException(this);
    }
}
