package dev.chagres.bindings;

import java.lang.foreign.AddressLayout;
import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.util.Optional;

/**
 * Asks the opened libraries what went wrong. Only failures come here, so each question looks its function up anew, and a
 * library that lacks the function answers "": a second failure must not hide the first.
 */
final class ErrorTexts {

    private static final AddressLayout C_STRING =
            ValueLayout.ADDRESS.withTargetLayout(MemoryLayout.sequenceLayout(Long.MAX_VALUE, ValueLayout.JAVA_BYTE));
    private static final int TEXT_CAPACITY = 4096;

    private ErrorTexts() {}

    /** {@code const char *function(void)}. */
    static String text(String function) {
        Optional<MethodHandle> handle = handle(function, FunctionDescriptor.of(C_STRING));
        return handle.isEmpty() ? "" : string(() -> (MemorySegment) handle.get().invokeExact());
    }

    /** {@code const char *function(int code)}. */
    static String text(String function, int code) {
        Optional<MethodHandle> handle = handle(function, FunctionDescriptor.of(C_STRING, ValueLayout.JAVA_INT));
        return handle.isEmpty() ? "" : string(() -> (MemorySegment) handle.get().invokeExact(code));
    }

    /** {@code const char *ncclGetLastError(ncclComm_t)}, which takes null for "this thread's". */
    static String ncclLastError() {
        Optional<MethodHandle> handle =
                handle("ncclGetLastError", FunctionDescriptor.of(C_STRING, ValueLayout.ADDRESS));
        return handle.isEmpty() ? "" : string(() -> (MemorySegment) handle.get().invokeExact(MemorySegment.NULL));
    }

    /** {@code void cudnnGetLastErrorString(char *text, size_t capacity)}. */
    static String cudnnLastError() {
        Optional<MethodHandle> handle = handle(
                "cudnnGetLastErrorString", FunctionDescriptor.ofVoid(ValueLayout.ADDRESS, ValueLayout.JAVA_LONG));
        if (handle.isEmpty()) {
            return "";
        }
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment text = arena.allocate(TEXT_CAPACITY);
            return string(() -> {
                handle.get().invokeExact(text, (long) TEXT_CAPACITY - 1);
                return text;
            });
        }
    }

    /**
     * Takes the error that the CUDA runtime keeps for this thread: it has been reported, and a library that looks there
     * after its next kernel would take it for its own.
     */
    static void forgetCudaError() {
        Optional<MethodHandle> handle = handle("cudaGetLastError", FunctionDescriptor.of(ValueLayout.JAVA_INT));
        if (handle.isEmpty()) {
            return;
        }
        try {
            var _ = (int) handle.get().invokeExact();
        } catch (Throwable unexpected) {
            throw new AssertionError("cudaGetLastError(void) could not be called", unexpected);
        }
    }

    /** The calling thread's CUDA device, or -1 when no CUDA runtime is loaded or it cannot say. */
    static int currentDevice() {
        Optional<MethodHandle> handle =
                handle("cudaGetDevice", FunctionDescriptor.of(ValueLayout.JAVA_INT, ValueLayout.ADDRESS));
        if (handle.isEmpty()) {
            return NativeFailure.UNKNOWN_DEVICE;
        }
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment device = arena.allocate(ValueLayout.JAVA_INT);
            int status = (int) handle.get().invokeExact(device);
            return status == 0 ? device.get(ValueLayout.JAVA_INT, 0) : NativeFailure.UNKNOWN_DEVICE;
        } catch (Throwable unexpected) {
            throw new AssertionError("cudaGetDevice(int *) could not be called", unexpected);
        }
    }

    private static Optional<MethodHandle> handle(String function, FunctionDescriptor descriptor) {
        return OpenedLibraries.LOOKUP
                .find(function)
                .map(address -> Linker.nativeLinker().downcallHandle(address, descriptor));
    }

    @FunctionalInterface
    private interface Call {
        MemorySegment invoke() throws Throwable;
    }

    private static String string(Call call) {
        MemorySegment text;
        try {
            text = call.invoke();
        } catch (Throwable unexpected) {
            throw new AssertionError("a function that returns an error's text could not be called", unexpected);
        }
        return text.equals(MemorySegment.NULL) ? "" : text.getString(0);
    }
}
