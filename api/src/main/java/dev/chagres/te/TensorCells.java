package dev.chagres.te;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.DeviceState;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * Host memory for handles, kept per device, for functions that take pointers to handles.
 *
 * <p>Threading: the device's thread.
 */
final class TensorCells implements AutoCloseable {
    private static final int MOST = 5;
    private static final DeviceState.Attachment<TensorCells> ATTACHMENT =
            new DeviceState.Attachment<>(device -> new TensorCells());

    private final Arena arena = Arena.ofShared();
    private final MemorySegment[] cells = new MemorySegment[MOST];

    private TensorCells() {
        for (int i = 0; i < MOST; i++) {
            cells[i] = arena.allocate(ValueLayout.JAVA_LONG);
        }
    }

    static TensorCells of(Stream stream) {
        return Inside.state(stream).get(ATTACHMENT);
    }

    /** Stores the tensor's handle in cell {@code index}, and returns the cell; the next call for it overwrites it. */
    MemorySegment cell(int index, Tensor tensor) {
        cells[index].set(ValueLayout.JAVA_LONG, 0, tensor.handle().address());
        return cells[index];
    }

    @Override
    public void close() {
        arena.close();
    }
}
