package dev.chagres.parameter;

/** Has numbers and tensors, by name, that a program must save to go on exactly: an optimizer, quantizers, a loss scaler, a place in data. */
public interface StateOwner {
    /** Returns them. */
    State state();
}
