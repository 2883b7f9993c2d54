package dev.chagres.cudnn;

import dev.chagres.bindings.BackendCalls;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.cudnn.Cudnn;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.List;

/**
 * A descriptor of cuDNN's backend. A refusal names what it describes.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code cudnnBackendDescriptor_t} of {@code cudnn_graph.h}.
 */
final class BackendDescriptor implements AutoCloseable {
    private final String what;
    private long handle;

    private BackendDescriptor(String what, long handle) {
        this.what = what;
        this.handle = handle;
    }

    /** Makes a descriptor; {@code what} stands in errors. */
    static BackendDescriptor make(int type, String what) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment out = arena.allocate(ValueLayout.JAVA_LONG);
            check(Cudnn.cudnnBackendCreateDescriptor(type, out), "cudnnBackendCreateDescriptor", what);
            return new BackendDescriptor(what, out.get(ValueLayout.JAVA_LONG, 0));
        }
    }

    private static void check(int status, String function, String what) {
        if (status != 0) {
            Status.cudnn(status, function + " (" + what + ")");
        }
    }

    long handle() {
        return handle;
    }

    private BackendDescriptor set(int name, int type, long count, MemorySegment elements) {
        check(
                BackendCalls.cudnnBackendSetAttribute(handle, name, type, count, elements),
                "cudnnBackendSetAttribute",
                what);
        return this;
    }

    BackendDescriptor longs(int name, int type, long... values) {
        try (Arena arena = Arena.ofConfined()) {
            return set(name, type, values.length, arena.allocateFrom(ValueLayout.JAVA_LONG, values));
        }
    }

    BackendDescriptor integer(int name, int type, int value) {
        return integers(name, type, value);
    }

    BackendDescriptor integers(int name, int type, int... values) {
        try (Arena arena = Arena.ofConfined()) {
            return set(name, type, values.length, arena.allocateFrom(ValueLayout.JAVA_INT, values));
        }
    }

    BackendDescriptor characters(int name, byte... values) {
        try (Arena arena = Arena.ofConfined()) {
            return set(name, Cudnn.CUDNN_TYPE_CHAR(), values.length, arena.allocateFrom(ValueLayout.JAVA_BYTE, values));
        }
    }

    BackendDescriptor truth(int name, boolean value) {
        try (Arena arena = Arena.ofConfined()) {
            return set(name, Cudnn.CUDNN_TYPE_BOOLEAN(), 1, arena.allocateFrom(ValueLayout.JAVA_BYTE, (byte)
                    (value ? 1 : 0)));
        }
    }

    BackendDescriptor number(int name, double value) {
        try (Arena arena = Arena.ofConfined()) {
            return set(name, Cudnn.CUDNN_TYPE_DOUBLE(), 1, arena.allocateFrom(ValueLayout.JAVA_DOUBLE, value));
        }
    }

    BackendDescriptor single(int name, float value) {
        try (Arena arena = Arena.ofConfined()) {
            return set(name, Cudnn.CUDNN_TYPE_FLOAT(), 1, arena.allocateFrom(ValueLayout.JAVA_FLOAT, value));
        }
    }

    BackendDescriptor descriptors(int name, List<BackendDescriptor> values) {
        return longs(
                name,
                Cudnn.CUDNN_TYPE_BACKEND_DESCRIPTOR(),
                values.stream().mapToLong(BackendDescriptor::handle).toArray());
    }

    BackendDescriptor complete() {
        check(BackendCalls.cudnnBackendFinalize(handle), "cudnnBackendFinalize", what);
        return this;
    }

    /** Returns how many elements an attribute has. */
    private long count(int name, int type, Arena arena) {
        MemorySegment out = arena.allocate(ValueLayout.JAVA_LONG);
        check(
                BackendCalls.cudnnBackendGetAttribute(handle, name, type, 0, out, MemorySegment.NULL),
                "cudnnBackendGetAttribute",
                what);
        return out.get(ValueLayout.JAVA_LONG, 0);
    }

    long getLong(int name) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment out = arena.allocate(ValueLayout.JAVA_LONG, 2);
            get(name, Cudnn.CUDNN_TYPE_INT64(), 1, out.asSlice(Long.BYTES), out);
            return out.get(ValueLayout.JAVA_LONG, 0);
        }
    }

    int getInteger(int name, int type) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment out = arena.allocate(ValueLayout.JAVA_LONG, 2);
            get(name, type, 1, out.asSlice(Long.BYTES), out);
            return out.get(ValueLayout.JAVA_INT, 0);
        }
    }

    private void get(int name, int type, long requested, MemorySegment count, MemorySegment elements) {
        check(
                BackendCalls.cudnnBackendGetAttribute(handle, name, type, requested, count, elements),
                "cudnnBackendGetAttribute",
                what);
    }

    byte[] getCharacters(int name) {
        try (Arena arena = Arena.ofConfined()) {
            long count = count(name, Cudnn.CUDNN_TYPE_CHAR(), arena);
            MemorySegment elements = arena.allocate(Math.max(1, count));
            get(name, Cudnn.CUDNN_TYPE_CHAR(), count, arena.allocate(ValueLayout.JAVA_LONG), elements);
            return elements.asSlice(0, count).toArray(ValueLayout.JAVA_BYTE);
        }
    }

    /** Returns the values of an enumeration that an attribute lists, of which there are {@code most} at most. */
    List<Integer> getIntegers(int name, int type, int most) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment out = arena.allocate(ValueLayout.JAVA_LONG);
            MemorySegment elements = arena.allocate(ValueLayout.JAVA_INT, most);
            get(name, type, most, out, elements);
            List<Integer> values = new ArrayList<>();
            for (long i = 0; i < Math.min(most, out.get(ValueLayout.JAVA_LONG, 0)); i++) {
                values.add(elements.getAtIndex(ValueLayout.JAVA_INT, i));
            }
            return values;
        }
    }

    /** Returns the descriptors that an attribute lists; the caller closes them. */
    List<BackendDescriptor> getDescriptors(int name, int type, String text) {
        List<BackendDescriptor> results = new ArrayList<>();
        try (Arena arena = Arena.ofConfined()) {
            long count = count(name, Cudnn.CUDNN_TYPE_BACKEND_DESCRIPTOR(), arena);
            for (long i = 0; i < count; i++) {
                results.add(make(type, text));
            }
            if (count != 0) {
                MemorySegment out = arena.allocate(ValueLayout.JAVA_LONG);
                long[] handles =
                        results.stream().mapToLong(BackendDescriptor::handle).toArray();
                get(
                        name,
                        Cudnn.CUDNN_TYPE_BACKEND_DESCRIPTOR(),
                        count,
                        out,
                        arena.allocateFrom(ValueLayout.JAVA_LONG, handles));
                while (results.size() > out.get(ValueLayout.JAVA_LONG, 0)) {
                    results.removeLast().close();
                }
            }
            return results;
        } catch (RuntimeException failure) {
            results.forEach(BackendDescriptor::close);
            throw failure;
        }
    }

    /** Destroys the descriptor. A second call does nothing. */
    @Override
    public void close() {
        long dead = handle;
        handle = 0;
        if (dead != 0) {
            check(BackendCalls.cudnnBackendDestroyDescriptor(dead), "cudnnBackendDestroyDescriptor", what);
        }
    }

    @Override
    public String toString() {
        return what;
    }
}
