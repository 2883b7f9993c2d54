package dev.chagres.bindings;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import dev.chagres.bindings.cuda.CudaRuntime;
import dev.chagres.bindings.te.TransformerEngine;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.invoke.MethodHandle;

/**
 * Functions of the CUDA runtime and Transformer Engine that each training step calls, with {@code long} for device addresses: as
 * segments they cost an object for each address. Host memory stays a segment, so that Java checks that it is there. Names,
 * order and results are those of the generated methods.
 *
 * <p>Threading: as the functions themselves.
 *
 * <p>Source: {@code cuda_runtime_api.h}; {@code te.h}.
 */
public final class AddressCalls {
    private static final MethodHandle MEMSET =
            link(CudaRuntime.cudaMemsetAsync$address(), JAVA_LONG, JAVA_INT, JAVA_LONG, ADDRESS);
    private static final MethodHandle COPY_TO_DEVICE = linkCopy(JAVA_LONG, ADDRESS);
    private static final MethodHandle COPY_TO_HOST = linkCopy(ADDRESS, JAVA_LONG);
    private static final MethodHandle COPY_ON_DEVICE = linkCopy(JAVA_LONG, JAVA_LONG);
    private static final MethodHandle COPY_ROWS_ON_DEVICE = link(
            CudaRuntime.cudaMemcpy2DAsync$address(),
            JAVA_LONG,
            JAVA_LONG,
            JAVA_LONG,
            JAVA_LONG,
            JAVA_LONG,
            JAVA_LONG,
            JAVA_INT,
            ADDRESS);
    private static final MethodHandle COPY_VIA_KERNEL =
            link(TransformerEngine.te_copy_host_to_device_via_kernel$address(), ADDRESS, JAVA_LONG, JAVA_LONG, ADDRESS);
    private static final MethodHandle SPLITS_TO_OFFSETS =
            link(TransformerEngine.te_splits_to_offsets$address(), JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_LONG, ADDRESS);
    private static final MethodHandle EXTRACT_SEED = link(
            TransformerEngine.te_extract_seed_and_offset$address(),
            JAVA_LONG,
            JAVA_INT,
            JAVA_LONG,
            JAVA_LONG,
            JAVA_LONG,
            JAVA_LONG,
            JAVA_INT,
            ADDRESS);

    private AddressCalls() {}

    /** For others that call so: returns what calls a function of these arguments that returns an {@code int}. */
    public static MethodHandle link(MemorySegment function, MemoryLayout... arguments) {
        return Linker.nativeLinker().downcallHandle(function, FunctionDescriptor.of(JAVA_INT, arguments));
    }

    private static MethodHandle linkCopy(MemoryLayout dst, MemoryLayout src) {
        return link(CudaRuntime.cudaMemcpyAsync$address(), dst, src, JAVA_LONG, JAVA_INT, ADDRESS);
    }

    /**
     * Returns what to throw for what the call of a method handle has thrown, which declares everything; an {@link Error} it throws
     * itself.
     */
    public static RuntimeException unchecked(Throwable thrown) {
        return switch (thrown) {
            case RuntimeException exception -> exception;
            case Error error -> throw error;
            default -> new IllegalStateException("a call into C threw a checked exception", thrown);
        };
    }

    /** Calls {@link CudaRuntime#cudaMemsetAsync}. */
    public static int cudaMemsetAsync(long devPtr, int value, long count, MemorySegment stream) {
        try {
            return (int) MEMSET.invokeExact(devPtr, value, count, stream);
        } catch (Throwable thrown) {
            throw unchecked(thrown);
        }
    }

    /** Calls {@link CudaRuntime#cudaMemcpyAsync} from host memory. */
    public static int cudaMemcpyAsync(long dst, MemorySegment src, long count, int kind, MemorySegment stream) {
        try {
            return (int) COPY_TO_DEVICE.invokeExact(dst, src, count, kind, stream);
        } catch (Throwable thrown) {
            throw unchecked(thrown);
        }
    }

    /** Calls {@link CudaRuntime#cudaMemcpyAsync} to host memory. */
    public static int cudaMemcpyAsync(MemorySegment dst, long src, long count, int kind, MemorySegment stream) {
        try {
            return (int) COPY_TO_HOST.invokeExact(dst, src, count, kind, stream);
        } catch (Throwable thrown) {
            throw unchecked(thrown);
        }
    }

    /** Calls {@link CudaRuntime#cudaMemcpyAsync} between places on the device. */
    public static int cudaMemcpyAsync(long dst, long src, long count, int kind, MemorySegment stream) {
        try {
            return (int) COPY_ON_DEVICE.invokeExact(dst, src, count, kind, stream);
        } catch (Throwable thrown) {
            throw unchecked(thrown);
        }
    }

    /** Calls {@link CudaRuntime#cudaMemcpy2DAsync} between places on the device. */
    public static int cudaMemcpy2DAsync(
            long dst, long dpitch, long src, long spitch, long width, long height, int kind, MemorySegment stream) {
        try {
            return (int) COPY_ROWS_ON_DEVICE.invokeExact(dst, dpitch, src, spitch, width, height, kind, stream);
        } catch (Throwable thrown) {
            throw unchecked(thrown);
        }
    }

    /** Calls {@link TransformerEngine#te_copy_host_to_device_via_kernel}. */
    public static int te_copy_host_to_device_via_kernel(
            MemorySegment hostPtr, long devicePtr, long numBytes, MemorySegment stream) {
        try {
            return (int) COPY_VIA_KERNEL.invokeExact(hostPtr, devicePtr, numBytes, stream);
        } catch (Throwable thrown) {
            throw unchecked(thrown);
        }
    }

    /** Calls {@link TransformerEngine#te_splits_to_offsets}. */
    public static int te_splits_to_offsets(
            long splitSizes, long output, long numSplits, long stride, MemorySegment stream) {
        try {
            return (int) SPLITS_TO_OFFSETS.invokeExact(splitSizes, output, numSplits, stride, stream);
        } catch (Throwable thrown) {
            throw unchecked(thrown);
        }
    }

    /** Calls {@link TransformerEngine#te_extract_seed_and_offset}; an address of 0 is C's null. */
    public static int te_extract_seed_and_offset(
            long rngStatePtr,
            int captured,
            long seedPtr,
            long seedVal,
            long offsetPtr,
            long offsetVal,
            int offsetIntragraph,
            MemorySegment stream) {
        try {
            return (int) EXTRACT_SEED.invokeExact(
                    rngStatePtr, captured, seedPtr, seedVal, offsetPtr, offsetVal, offsetIntragraph, stream);
        } catch (Throwable thrown) {
            throw unchecked(thrown);
        }
    }
}
