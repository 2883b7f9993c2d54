package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.ranks.SameParameters;
import dev.chagres.nccl.CollectiveMemory;
import dev.chagres.nccl.Communicator;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Memory in windows of a communicator. Ranks write into each other's windows at the offset of their own, so all of them take the same sizes
 * and tensors in the same order.
 *
 * <p>Threading: the device's thread.
 */
final class RankWindows implements AutoCloseable {
    private final Communicator communicator;
    /** What the memory is for, as errors name it. */
    private final String content;

    private final List<CollectiveMemory> taken = new ArrayList<>();

    RankWindows(Communicator communicator, String content) {
        this.communicator = communicator;
        this.content = content;
    }

    /** Makes NCCL allocate now what copy engines need for their first collective, rather than in a step. */
    void prepareCopyEngines() {
        Stream stream = communicator.device().stream();
        long count = CollectiveMemory.byteSizeOf(DType.BYTE, 1);
        try (CollectiveMemory memory = communicator.allocate(count * (1 + communicator.ranks()), stream)) {
            Tensor part = memory.scope().tensor(DType.BYTE, count);
            part.zero(stream);
            communicator.allGather(part, memory.scope().tensor(DType.BYTE, count * communicator.ranks()), stream);
            communicator.synchronize(stream);
        }
    }

    /** Returns memory that NCCL has registered; null for no bytes. Each rank calls it, with the same size. */
    @Nullable
    CollectiveMemory take(long byteSize) {
        if (byteSize == 0) {
            return null;
        }
        SameParameters.ensureSame(
                communicator,
                "window of " + content,
                byteSize,
                bytes -> bytes + " bytes",
                "; build the same plan, with the same types and strategy, on each");
        CollectiveMemory memory = communicator.allocate(byteSize, communicator.device().stream());
        taken.add(memory);
        return memory;
    }

    /** Adds memory of a former communicator. */
    void takeOver(CollectiveMemory memory) {
        taken.add(memory);
        memory.register(communicator);
    }

    /** Returns whether a tensor lies in this memory. */
    boolean contains(Tensor tensor) {
        for (int i = 0; i < taken.size(); i++) { // An iterator would be garbage in each step.
            if (taken.get(i).contains(tensor)) {
                return true;
            }
        }
        return false;
    }

    /** Deregisters the remaining memory, which then belongs to no communicator. */
    @Override
    public void close() {
        for (CollectiveMemory memory : taken) {
            memory.deregister();
        }
        taken.clear();
    }
}
