package dev.chagres.bindings;

import java.io.Serializable;

/** What a native library said when it refused a call; the content of a {@link NativeException}. */
record NativeFailure(String library, String function, int code, String codeName, String text, int device)
        implements Serializable {

    /** The device when none is known: no CUDA runtime is loaded, or it cannot say. */
    static final int UNKNOWN_DEVICE = -1;

    NativeFailure {
        if (library.isEmpty() || function.isEmpty() || codeName.isEmpty()) {
            throw new IllegalArgumentException("library, function and codeName must not be empty: \"" + library
                    + "\", \"" + function + "\", \"" + codeName + "\"");
        }
    }

    String message() {
        String place = device == UNKNOWN_DEVICE ? "" : " on device " + device;
        String said = text.isBlank() ? "the library gave no text" : ForeignText.lines(text.strip());
        return library + ": " + function + " returned " + codeName + " (" + code + ")" + place + ": " + said;
    }
}
