package dev.chagres.bindings;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.util.Optional;
import org.jspecify.annotations.Nullable;

/** Asks an opened library for its version; none of these calls needs a driver. */
final class VersionReader {

    private static final FunctionDescriptor INT_OUT = FunctionDescriptor.of(ValueLayout.JAVA_INT, ValueLayout.ADDRESS);
    private static final FunctionDescriptor TWO_INTS_OUT =
            FunctionDescriptor.of(ValueLayout.JAVA_INT, ValueLayout.ADDRESS, ValueLayout.ADDRESS);
    private static final FunctionDescriptor SIZE = FunctionDescriptor.of(ValueLayout.JAVA_LONG);

    private VersionReader() {}

    /** The version of an opened library; empty when it does not say. */
    static Optional<LibraryVersion> read(LibrarySearch.Found found, MemorySegment library) {
        return switch (found.library()) {
            case CUDA_RUNTIME ->
                call(library, "cudaRuntimeGetVersion", INT_OUT, VersionReader::oneInt)
                        .map(v -> new LibraryVersion((int) (v / 1000), (int) (v % 1000 / 10), 0));
            case NVRTC ->
                call(library, "nvrtcVersion", TWO_INTS_OUT, VersionReader::twoInts)
                        .map(v -> new LibraryVersion((int) (v >>> 32), (int) v.longValue(), 0));
            case CUBLAS ->
                call(library, "cublasLtGetVersion", SIZE, VersionReader::size).map(VersionReader::decimal);
            case CUDNN ->
                call(library, "cudnnGetVersion", SIZE, VersionReader::size).map(VersionReader::decimal);
            case NCCL ->
                call(library, "ncclGetVersion", INT_OUT, VersionReader::oneInt).map(VersionReader::decimal);
            case TRANSFORMER_ENGINE -> FileVersion.of(found.library(), found.mainFile()); // it has no call for it
        };
    }

    private static LibraryVersion decimal(long number) {
        return new LibraryVersion((int) (number / 10000), (int) (number / 100 % 100), (int) (number % 100));
    }

    /** Calls a version function and packs its answer into one number; null when it reports an error. */
    @FunctionalInterface
    private interface Question {
        @Nullable
        Long ask(MethodHandle function) throws Throwable;
    }

    private static Optional<Long> call(
            MemorySegment library, String function, FunctionDescriptor descriptor, Question question) {
        Optional<MethodHandle> handle = DynamicLinker.function(library, function, descriptor);
        if (handle.isEmpty()) {
            return Optional.empty();
        }
        try {
            return Optional.ofNullable(question.ask(handle.get()));
        } catch (Throwable unexpected) {
            throw new AssertionError(function + " could not be called", unexpected);
        }
    }

    private static @Nullable Long oneInt(MethodHandle function) throws Throwable {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment out = arena.allocate(ValueLayout.JAVA_INT);
            int status = (int) function.invokeExact(out);
            return status == 0 ? (long) out.get(ValueLayout.JAVA_INT, 0) : null;
        }
    }

    private static @Nullable Long twoInts(MethodHandle function) throws Throwable {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment major = arena.allocate(ValueLayout.JAVA_INT);
            MemorySegment minor = arena.allocate(ValueLayout.JAVA_INT);
            int status = (int) function.invokeExact(major, minor);
            long packed = (long) major.get(ValueLayout.JAVA_INT, 0) << 32 | minor.get(ValueLayout.JAVA_INT, 0);
            return status == 0 ? packed : null;
        }
    }

    private static @Nullable Long size(MethodHandle function) throws Throwable {
        return (long) function.invokeExact();
    }
}
