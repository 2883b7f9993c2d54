package dev.chagres.bindings;

import java.lang.foreign.MemorySegment;

/** Whether the JVM lets this module call C at all. */
final class NativeAccess {

    /** Asked before the first restricted call: that one warns, and grants access from then on. */
    private static final boolean GRANTED = NativeAccess.class.getModule().isNativeAccessEnabled();

    private NativeAccess() {}

    /**
     * Tries the mildest restricted method, so that a refusal is an exception with the flag to add and not a broken class.
     *
     * @throws IllegalStateException when the JVM was started with native access denied
     */
    static void ensure() {
        try {
            MemorySegment unused = MemorySegment.NULL.reinterpret(0);
            assert unused.byteSize() == 0;
        } catch (IllegalCallerException denied) {
            throw new IllegalStateException(
                    "the JVM denies calls to native libraries: start it with " + flag(), denied);
        }
    }

    /** Whether the JVM was started with the flag. */
    static boolean isGranted() {
        return GRANTED;
    }

    /** The JVM flag that grants access to this module, or to the class path. */
    static String flag() {
        Module module = NativeAccess.class.getModule();
        return "--enable-native-access=" + (module.isNamed() ? module.getName() : "ALL-UNNAMED");
    }
}
