package dev.chagres.cudnn;

import dev.chagres.bindings.cudnn.Cudnn;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;

/**
 * An operation of a graph.
 *
 * <p>Threading: immutable.
 *
 * @param kind such as {@code matmul}
 * @param name of the operation
 * @param description of the operation, without what {@code detail} describes
 * @param detail what cuDNN describes apart, such as a pointwise mode; null where there is none
 * @param detailName the attribute that names the detail
 * @param gpuRefusal what cuDNN does instead of computing it on a GPU; null where it computes it
 * @param capability ten times the compute capability from which on cuDNN has engines for it; 0 for any
 * @param capable what that compute capability computes
 */
record Operation(
        String kind,
        String name,
        List<GraphTensor> reads,
        List<GraphTensor> writes,
        Description description,
        @Nullable Description detail,
        int detailName,
        @Nullable String gpuRefusal,
        int capability,
        String capable) {
    Operation {
        reads = List.copyOf(reads);
        writes = List.copyOf(writes);
    }

    /** Returns the same, refused on GPUs, where cuDNN does this instead of computing it. */
    Operation refusedOnGpu(String what) {
        return new Operation(kind, name, reads, writes, description, detail, detailName, what, capability, capable);
    }

    /** Returns the same, refused on GPUs of a lower compute capability, of which ten times is given. */
    Operation needsCapability(int least) {
        return needsCapability(least, capable);
    }

    /** The same, where that compute capability is wanted for more than the operation itself. */
    Operation needsCapability(int least, String what) {
        return new Operation(kind, name, reads, writes, description, detail, detailName, gpuRefusal, least, what);
    }

    boolean isPointwise() {
        return description.type == Cudnn.CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR();
    }

    /** Adds the descriptors of this operation to {@code made}, and returns the operation's own, the last of them. */
    BackendDescriptor make(Map<GraphTensor, BackendDescriptor> tensors, List<BackendDescriptor> made) {
        String what = kind + " \"" + name + "\"";
        Description present = detail;
        if (present == null) {
            made.add(description.make(what, tensors));
        } else {
            BackendDescriptor inner = present.make(what);
            made.add(inner);
            made.add(description.make(what, tensors, detailName, inner));
        }
        return made.getLast();
    }

    @Override
    public String toString() {
        return Stream.of(writes, reads)
                .map(some -> some.stream().map(GraphTensor::toString).collect(Collectors.joining(", ")))
                .collect(Collectors.joining(" = " + kind + "(", "", ")"));
    }
}
