package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.BasicTensor;
import dev.chagres.internal.memory.DeviceState;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.List;

/**
 * The arrays that padding reads during a call, one of each a device: handles of inputs and outputs, and rows of the outputs. They
 * grow to the longest list. Of FP8 numbers TE wants a scale that it does not use, so their handles say that they are bytes.
 *
 * <p>Threading: the device's thread.
 */
final class PaddingLists implements AutoCloseable {
    private static final DeviceState.Attachment<PaddingLists> ATTACHMENT =
            new DeviceState.Attachment<>(PaddingLists::new);

    private final BasicTensor description;
    private final List<MemorySegment> bytes = new ArrayList<>();
    private Arena arena = Arena.ofShared();
    private MemorySegment inputs = MemorySegment.NULL;
    private MemorySegment outputs = MemorySegment.NULL;
    private MemorySegment rows = MemorySegment.NULL;

    private PaddingLists(DeviceState device) {
        description = device.basicTensor();
    }

    /** Returns the arrays of the stream's device, with room for {@code count} pairs. */
    static PaddingLists of(Stream stream, int count) {
        PaddingLists lists = Inside.state(stream).get(ATTACHMENT);
        lists.reserve(count);
        return lists;
    }

    private void reserve(int count) {
        if (rows.byteSize() < (long) count * Integer.BYTES) {
            arena.close();
            arena = Arena.ofShared();
            inputs = arena.allocate(ValueLayout.JAVA_LONG, count);
            outputs = arena.allocate(ValueLayout.JAVA_LONG, count);
            rows = arena.allocate(ValueLayout.JAVA_INT, count);
        }
    }

    /** Sets pair {@code index}. */
    void set(int index, Tensor input, Tensor output) {
        inputs.setAtIndex(ValueLayout.JAVA_LONG, index, handle(2 * index, input).address());
        outputs.setAtIndex(
                ValueLayout.JAVA_LONG, index, handle(2 * index + 1, output).address());
        rows.setAtIndex(ValueLayout.JAVA_INT, index, Math.toIntExact(output.size(0)));
    }

    private MemorySegment handle(int index, Tensor tensor) {
        if (!tensor.dtype().isFloat8()) {
            return tensor.handle();
        }
        while (bytes.size() <= index) {
            bytes.add(description.create());
        }
        MemorySegment handle = bytes.get(index);
        description
                .at(tensor.address(), DType.BYTE.code())
                .matrix(tensor.size(0), tensor.size(1))
                .writeTo(handle);
        return handle;
    }

    MemorySegment inputs() {
        return inputs;
    }

    MemorySegment outputs() {
        return outputs;
    }

    MemorySegment rows() {
        return rows;
    }

    @Override
    public void close() {
        for (MemorySegment handle : bytes) {
            TransformerEngine.te_destroy_tensor(handle);
        }
        arena.close();
    }
}
