package dev.chagres.nccl;

import dev.chagres.Tensor;
import dev.chagres.bindings.Provider;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * The memory of NCCL that is registered with one communicator, and the calls that NCCL must not make with it.
 *
 * <p>NCCL 2.24 to 2.28 lose the addresses by which a collective reaches the others' memory, where a transfer from or to the same memory came
 * before: the collective's kernel then reads at address 0 ({@code ipcRegisterBuffer} of {@code p2p.cc}, issue 1859 of NVIDIA/nccl; NCCL 2.29
 * does not). Gather, scatter and all-to-all are made of transfers, too, but for an all-to-all that copy engines make.
 *
 * <p>Threading: the device's thread.
 */
final class RegisteredMemory {
    private static final int FIRST_WRONG = 22_400;
    private static final int FIRST_RIGHT = 22_902;

    private final List<Stretch> stretches = new ArrayList<>();
    /** Asked once: each transfer of a step would ask NCCL again. */
    private final boolean refuses = isAffected();

    private record Stretch(long address, long bytes, Registration.Kind kind) {
        boolean contains(long place) {
            return place >= address && place < address + bytes;
        }
    }

    void add(MemorySegment memory, long bytes, Registration.Kind kind) {
        stretches.add(new Stretch(memory.address(), bytes, kind));
    }

    void remove(MemorySegment memory) {
        stretches.removeIf(stretch -> stretch.address == memory.address());
    }

    /** Checks that a transfer may read or write a tensor. */
    void ensureTransferable(String argument, Tensor tensor) {
        if (!refuses) {
            return;
        }
        if (holding(tensor) != null) {
            throw new IllegalArgumentException(argument
                    + ": expected memory other than the communicator's CollectiveMemory,"
                    + " for after a transfer NCCL " + UniqueId.ncclVersion()
                    + " reads at address 0 in a collective of"
                    + " that memory; copy it into a tensor of another scope, got " + Checks.describe(tensor));
        }
    }

    /** Returns whether a tensor lies in a window, which copy engines of other ranks can write. */
    boolean isInWindow(Tensor tensor) {
        Stretch stretch = holding(tensor);
        return stretch != null && stretch.kind == Registration.Kind.WINDOW;
    }

    private @Nullable Stretch holding(Tensor tensor) {
        long address = Inside.address(tensor);
        for (int i = 0; i < stretches.size(); i++) { // An iterator would be garbage in each step.
            Stretch stretch = stretches.get(i);
            if (stretch.contains(address)) {
                return stretch;
            }
        }
        return null;
    }

    /** Returns whether the NCCL that is loaded has the mistake. */
    static boolean isAffected() {
        return Provider.current() == Provider.CUDA && isWrong(UniqueId.ncclVersion());
    }

    /** Returns whether an NCCL of that version has it. */
    static boolean isWrong(int version) {
        return version >= FIRST_WRONG && version < FIRST_RIGHT;
    }
}
