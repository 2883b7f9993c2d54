package dev.chagres.attention;

import dev.chagres.Device;
import dev.chagres.HostBuffer;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Host memory in equal parts, each with room for the INT32 numbers of one tensor, from which they are copied to the device.
 *
 * <p>Threading: the device's thread.
 */
final class HostRegions implements AutoCloseable {
    static final ValueLayout.OfInt INT = ValueLayout.JAVA_INT;

    private final Device device;
    private final List<MemorySegment> regions = new ArrayList<>();
    private @Nullable HostBuffer host;
    /** Numbers that each region has room for. */
    private long room;

    HostRegions(Device device) {
        this.device = device;
    }

    /**
     * Makes sure that there are at least {@code count} regions with room for {@code numbers} each; if it allocates, old contents are lost.
     */
    void reserve(long numbers, int count) {
        if (room >= numbers && regions.size() >= count) {
            return;
        }
        close();
        room = 2 * numbers;
        long bytes = Integer.BYTES * room;
        HostBuffer made = HostBuffer.pageable(device, bytes * count);
        host = made;
        for (int i = 0; i < count; i++) {
            regions.add(made.segment().asSlice(i * bytes, bytes));
        }
    }

    MemorySegment get(int region) {
        return regions.get(region);
    }

    @Override
    public void close() {
        HostBuffer present = host;
        if (present != null) {
            present.close();
            host = null;
        }
        regions.clear();
        room = 0;
    }
}
