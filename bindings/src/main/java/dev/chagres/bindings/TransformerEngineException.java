package dev.chagres.bindings;

/**
 * Transformer Engine, or the guard round it, refused a call; {@link #codeName()} is a name of {@code TeStatus}.
 *
 * <p>Threading: immutable.
 */
public final class TransformerEngineException extends NativeException {

    private static final long serialVersionUID = 1;

    static final String LIBRARY = "Transformer Engine";

    TransformerEngineException(NativeFailure failure) {
        super(failure);
    }

    private TransformerEngineException(TransformerEngineException first) {
        super(first.failure(), first.failure().message(), first);
    }

    @Override
    TransformerEngineException again() {
        return new TransformerEngineException(this);
    }
}
