package dev.chagres.internal.memory;

import java.lang.foreign.MemorySegment;
import java.util.Arrays;
import org.jspecify.annotations.Nullable;

/**
 * One zero-length segment for each address that was asked for: calls into C take addresses as such objects, and a step that
 * repeats its addresses then makes none.
 *
 * <p>Threading: one thread at a time.
 */
final class AddressTable {
    private static final int FIRST_SLOTS = 1 << 10;
    private static final int MOST_SLOTS = 1 << 19;
    private static final long GOLDEN = 0x9E3779B97F4A7C15L;

    private @Nullable MemorySegment[] slots = new MemorySegment[FIRST_SLOTS];
    private int used;

    MemorySegment get(long address) {
        int mask = slots.length - 1;
        int slot = (int) ((address * GOLDEN) >>> 32) & mask;
        MemorySegment found = slots[slot];
        while (found != null && found.address() != address) {
            slot = (slot + 1) & mask;
            found = slots[slot];
        }
        if (found == null) {
            found = MemorySegment.ofAddress(address);
            slots[slot] = found;
            used++;
            if (2 * used > slots.length) {
                grow();
            }
        }
        return found;
    }

    /** Doubles the table; at its largest it is emptied, for a program without repetition would fill the heap. */
    private void grow() {
        if (slots.length == MOST_SLOTS) {
            Arrays.fill(slots, null);
            used = 0;
            return;
        }
        @Nullable MemorySegment[] before = slots;
        slots = new MemorySegment[2 * before.length];
        used = 0;
        for (MemorySegment segment : before) {
            if (segment != null) {
                put(segment);
            }
        }
    }

    private void put(MemorySegment segment) {
        int mask = slots.length - 1;
        int slot = (int) ((segment.address() * GOLDEN) >>> 32) & mask;
        while (slots[slot] != null) {
            slot = (slot + 1) & mask;
        }
        slots[slot] = segment;
        used++;
    }
}
