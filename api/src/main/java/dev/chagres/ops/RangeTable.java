package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.te.HostToDevice;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * A table on the device that has the addresses of ranges, which an optimizer's step updates, and the tensors that these belong to.
 *
 * <p>Threading: the device's thread.
 */
final class RangeTable {
    /** A tensor of a range, and which issue of its object the table has the address of. */
    private record Part(String name, int range, Tensor tensor, boolean isWritten, int issue) {
        long begin() {
            return Inside.address(tensor);
        }

        long end() {
            return begin() + tensor.byteSize();
        }

        String text() {
            return name + " of range " + range;
        }
    }

    private final String maker;
    private final List<Part> parts = new ArrayList<>();
    private final Stream stream;
    private final Part table;

    /**
     * Allocates the table.
     *
     * @param maker the method that makes the ranges again
     */
    RangeTable(String maker, Scope scope, long bytes) {
        this.maker = maker;
        stream = scope.stream();
        Tensor memory = scope.tensor(DType.BYTE, bytes);
        table = new Part("table", 0, memory, false, Inside.issue(memory));
    }

    /** Adds a tensor of a range, if there is one. */
    void add(String name, int index, @Nullable Tensor tensor, boolean isWritten) {
        if (tensor != null) {
            parts.add(new Part(name, index, tensor, isWritten, Inside.issue(tensor)));
        }
    }

    /** Goes by address: before a written tensor begins, all earlier ones must have ended; before a read one, all earlier written ones. */
    void ensureApart() {
        List<Part> sorted = parts.stream()
                .filter(part -> part.tensor().count() > 0)
                .sorted(Comparator.comparingLong(Part::begin))
                .toList();
        Part farthest = null;
        Part written = null;
        for (Part part : sorted) {
            Part other = part.isWritten() ? farthest : written;
            if (other != null && other.end() > part.begin()) {
                throw new IllegalArgumentException("ranges: expected memory of its own for " + part.text()
                        + ", got some of " + other.text() + "'s; one is written to while the other is read or written");
            }
            farthest = farthest == null || part.end() > farthest.end() ? part : farthest;
            if (part.isWritten() && (written == null || part.end() > written.end())) {
                written = part;
            }
        }
    }

    /** Enqueues a copy of {@code host} into the table. */
    void write(MemorySegment host) {
        HostToDevice.copyHostToDeviceViaKernel(host, table.tensor(), stream);
    }

    /** Checks that the table still holds, and that a step's numbers overlap no range, and returns its address. */
    long address(Tensor step, Tensor gradientScale, Tensor skip, Stream runs) {
        ensureSame(table, runs);
        for (int i = 0; i < parts.size(); i++) {
            Part part = parts.get(i);
            ensureSame(part, runs);
            if (part.isWritten()) {
                Checks.apart(part.name(), part.tensor(), "step", step);
                Checks.apart(part.name(), part.tensor(), "gradientScale", gradientScale);
                Checks.apart(part.name(), part.tensor(), "skip", skip);
            }
        }
        return table.tensor().address();
    }

    private void ensureSame(Part part, Stream runs) {
        if (Inside.isTakenBack(part.tensor(), part.issue())) {
            throw new IllegalStateException("ranges: expected the tensors that they were made of, got " + part.text()
                    + " handed out anew, for its scope was restarted; make them again with " + maker);
        }
        Checks.on(runs, part.name(), part.tensor());
    }
}
