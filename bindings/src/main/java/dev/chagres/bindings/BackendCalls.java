package dev.chagres.bindings;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import dev.chagres.bindings.cudnn.Cudnn;
import java.lang.foreign.MemorySegment;
import java.lang.invoke.MethodHandle;

/**
 * Functions of cuDNN's backend, with {@code long} for handles and descriptors: as segments they cost an object for each call. Host memory
 * stays a segment, so that Java checks that it is there. Names, order and results are those of the generated methods.
 *
 * <p>Threading: as the functions themselves.
 *
 * <p>Source: {@code cudnn_graph.h}.
 */
public final class BackendCalls {
    private static final MethodHandle SET_STREAM =
            AddressCalls.link(Cudnn.cudnnSetStream$address(), JAVA_LONG, ADDRESS);
    private static final MethodHandle DESTROY = AddressCalls.link(Cudnn.cudnnDestroy$address(), JAVA_LONG);
    private static final MethodHandle DESTROY_DESCRIPTOR =
            AddressCalls.link(Cudnn.cudnnBackendDestroyDescriptor$address(), JAVA_LONG);
    private static final MethodHandle FINALIZE = AddressCalls.link(Cudnn.cudnnBackendFinalize$address(), JAVA_LONG);
    private static final MethodHandle SET_ATTRIBUTE = AddressCalls.link(
            Cudnn.cudnnBackendSetAttribute$address(), JAVA_LONG, JAVA_INT, JAVA_INT, JAVA_LONG, ADDRESS);
    private static final MethodHandle GET_ATTRIBUTE = AddressCalls.link(
            Cudnn.cudnnBackendGetAttribute$address(), JAVA_LONG, JAVA_INT, JAVA_INT, JAVA_LONG, ADDRESS, ADDRESS);
    private static final MethodHandle EXECUTE =
            AddressCalls.link(Cudnn.cudnnBackendExecute$address(), JAVA_LONG, JAVA_LONG, JAVA_LONG);

    private BackendCalls() {}

    /** Calls {@link Cudnn#cudnnSetStream}. */
    public static int cudnnSetStream(long handle, MemorySegment streamId) {
        try {
            return (int) SET_STREAM.invokeExact(handle, streamId);
        } catch (Throwable thrown) {
            throw AddressCalls.unchecked(thrown);
        }
    }

    /** Calls {@link Cudnn#cudnnDestroy}. */
    public static int cudnnDestroy(long handle) {
        try {
            return (int) DESTROY.invokeExact(handle);
        } catch (Throwable thrown) {
            throw AddressCalls.unchecked(thrown);
        }
    }

    /** Calls {@link Cudnn#cudnnBackendDestroyDescriptor}. */
    public static int cudnnBackendDestroyDescriptor(long descriptor) {
        try {
            return (int) DESTROY_DESCRIPTOR.invokeExact(descriptor);
        } catch (Throwable thrown) {
            throw AddressCalls.unchecked(thrown);
        }
    }

    /** Calls {@link Cudnn#cudnnBackendFinalize}. */
    public static int cudnnBackendFinalize(long descriptor) {
        try {
            return (int) FINALIZE.invokeExact(descriptor);
        } catch (Throwable thrown) {
            throw AddressCalls.unchecked(thrown);
        }
    }

    /** Calls {@link Cudnn#cudnnBackendSetAttribute}. */
    public static int cudnnBackendSetAttribute(
            long descriptor, int attributeName, int attributeType, long elementCount, MemorySegment arrayOfElements) {
        try {
            return (int)
                    SET_ATTRIBUTE.invokeExact(descriptor, attributeName, attributeType, elementCount, arrayOfElements);
        } catch (Throwable thrown) {
            throw AddressCalls.unchecked(thrown);
        }
    }

    /** Calls {@link Cudnn#cudnnBackendGetAttribute}. */
    public static int cudnnBackendGetAttribute(
            long descriptor,
            int attributeName,
            int attributeType,
            long requestedElementCount,
            MemorySegment elementCount,
            MemorySegment arrayOfElements) {
        try {
            return (int) GET_ATTRIBUTE.invokeExact(
                    descriptor, attributeName, attributeType, requestedElementCount, elementCount, arrayOfElements);
        } catch (Throwable thrown) {
            throw AddressCalls.unchecked(thrown);
        }
    }

    /** Calls {@link Cudnn#cudnnBackendExecute}. */
    public static int cudnnBackendExecute(long handle, long executionPlan, long variantPack) {
        try {
            return (int) EXECUTE.invokeExact(handle, executionPlan, variantPack);
        } catch (Throwable thrown) {
            throw AddressCalls.unchecked(thrown);
        }
    }
}
