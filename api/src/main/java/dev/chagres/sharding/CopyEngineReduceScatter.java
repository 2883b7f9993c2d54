package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Opened;
import dev.chagres.nccl.CollectiveMemory;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.Registration;
import dev.chagres.ops.RowSum;
import dev.chagres.te.Output;
import org.jspecify.annotations.Nullable;

/**
 * Reduces and scatters gradients by copy engines: they bring each rank its part of all ranks' gradients, and a kernel adds these up.
 *
 * <p>Threading: the device's thread.
 */
final class CopyEngineReduceScatter implements AutoCloseable {
    private final Communicator communicator;
    private final RankWindows windows;
    /** Null where nothing is trained. */
    private final @Nullable CollectiveMemory memory;
    /** This rank's part of each rank's gradients. */
    private final @Nullable Tensor parts;
    /** How gradients are really reduced: NCCL may have made no windows. */
    private final GradientReduction made;

    /**
     * {@code longest}: elements of the longest vector of a group; {@code longestCast}: those of the longest one that is cast to {@code dtype},
     * for which {@link #scope} then has room.
     */
    CopyEngineReduceScatter(Communicator communicator, DType dtype, long longest, long longestCast) {
        this.communicator = communicator;
        Opened opened = new Opened();
        try {
            windows = opened.add(new RankWindows(communicator, "gradients"));
            windows.prepareCopyEngines();
            long byteSize = longest == 0
                    ? 0
                    : CollectiveMemory.byteSizeOf(dtype, longest)
                            + (longestCast == 0 ? 0 : CollectiveMemory.byteSizeOf(dtype, longestCast));
            memory = windows.take(byteSize);
            parts = memory == null ? null : memory.scope().tensor(dtype, longest);
        } catch (RuntimeException | Error failure) {
            opened.closeAfter(failure);
            throw failure;
        }
        made = memory == null || memory.kind() == Registration.Kind.WINDOW
                ? GradientReduction.COPY_ENGINE
                : GradientReduction.REDUCE_SCATTER;
    }

    /** Returns the windows that also gradients must lie in. */
    RankWindows windows() {
        return windows;
    }

    /** Returns the scope that hands out memory for casts; {@code other} where nothing is trained. */
    Scope scope(Scope other) {
        return memory == null ? other : memory.scope();
    }

    GradientReduction made() {
        return made;
    }

    /** Returns whether copy engines can read these gradients. */
    boolean reaches(Tensor whole) {
        return made == GradientReduction.COPY_ENGINE && windows.contains(whole);
    }

    /** Enqueues {@code part = part r of the sum of whole}, or adds that to it; {@code part} is FP32. */
    void sum(Tensor whole, Tensor part, Output output, Scope views, Stream stream) {
        Tensor all = Checks.given("parts", parts);
        communicator.allToAll(whole, views.view(all, 0, whole.count()), stream);
        RowSum.rowSum(views.view(all, 0, communicator.ranks(), part.count()), part, output, stream);
    }

    long byteSize() {
        return memory == null ? 0 : memory.byteSize();
    }

    @Override
    public void close() {
        if (memory != null) {
            memory.close();
        }
        windows.close();
    }
}
