package dev.chagres.te;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.internal.memory.Leaks;
import dev.chagres.te.RecipeUpdates.RecipeChecks;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.Arrays;
import java.util.Comparator;
import org.jspecify.annotations.Nullable;

/**
 * Amax histories, each with its scales, for {@link RecipeUpdates#delayedScalingUpdateAfterReduction}.
 * The native arrays are made once.
 *
 * <p>Each use checks that the tensors still are what they were when this was made.
 *
 * <p>Threading: the device's thread.
 */
public final class AmaxHistories implements AutoCloseable {
    /** TE's names of the algorithms in native memory, one pair per device. */
    private static final class Texts {
        private static final DeviceState.Attachment<Texts> ATTACHMENT = new DeviceState.Attachment<>(Texts::new);

        private final MemorySegment[] texts;

        Texts(DeviceState device) {
            texts = Arrays.stream(RecipeUpdates.AmaxAlgorithm.values())
                    .map(algorithm -> device.arena().allocateFrom(algorithm.text()))
                    .toArray(MemorySegment[]::new);
        }
    }

    /** A history at each even index, its scales at the next one. */
    private final Tensor[] tensors;

    private final int[] issues;
    private final Arena arena = Arena.ofShared();
    private final MemorySegment histories;
    private final MemorySegment scales;
    private final long scaleCount;
    private final Leaks.@Nullable Trace trace;
    private boolean closed;

    private AmaxHistories(Tensor[] tensors, Stream stream) {
        this.tensors = tensors;
        long sum = 0;
        for (int i = 0; i < tensors.length; i += 2) {
            RecipeChecks.history(name(i), tensors[i], name(i + 1), tensors[i + 1], stream);
            if (tensors[i].size(0) != tensors[0].size(0)) {
                throw new IllegalArgumentException(name(i) + ": expected " + tensors[0].size(0) + " rows as " + name(0)
                        + " has, got " + Checks.describe(tensors[i]));
            }
            if (tensors[i].count() == 0) {
                throw new IllegalArgumentException(
                        name(i) + ": expected at least one scale, got " + Checks.describe(tensors[i]));
            }
            sum += tensors[i].size(1);
        }
        scaleCount = sum;
        checkApart(tensors);
        issues = new int[tensors.length];
        histories = arena.allocate(ValueLayout.JAVA_LONG, Math.max(1, tensors.length / 2));
        scales = arena.allocate(ValueLayout.JAVA_LONG, Math.max(1, tensors.length / 2));
        for (int i = 0; i < tensors.length; i++) {
            issues[i] = Inside.issue(tensors[i]);
            (i % 2 == 0 ? histories : scales)
                    .setAtIndex(
                            ValueLayout.JAVA_LONG, i / 2, tensors[i].handle().address());
        }
        trace = Leaks.opened(tensors.length / 2 + " amax histories");
    }

    /**
     * Makes one object of these histories and scales.
     *
     * @param amaxHistories each FLOAT32 [L, n], L the same for all
     * @param scales one per history, FLOAT32 [n], with the n of that history
     * @param stream a stream of the device that holds them
     * @throws IllegalArgumentException when numbers, shapes, types or devices do not fit, or tensors share memory
     */
    public static AmaxHistories of(Tensor[] amaxHistories, Tensor[] scales, Stream stream) {
        Checks.given("stream", stream);
        if (Checks.given("amaxHistories", amaxHistories).length != Checks.given("scales", scales).length) {
            throw new IllegalArgumentException(
                    "scales: expected " + amaxHistories.length + ", one per history, got " + scales.length);
        }
        Tensor[] pairs = new Tensor[2 * scales.length];
        for (int i = 0; i < scales.length; i++) {
            pairs[2 * i] = amaxHistories[i];
            pairs[2 * i + 1] = scales[i];
        }
        return new AmaxHistories(pairs, stream);
    }

    private static void checkApart(Tensor[] tensors) {
        Integer[] order = new Integer[tensors.length];
        Arrays.setAll(order, i -> i);
        Arrays.sort(order, Comparator.comparingLong(i -> tensors[i].address()));
        for (int i = 1; i < order.length; i++) {
            Checks.apart(name(order[i]), tensors[order[i]], name(order[i - 1]), tensors[order[i - 1]]);
        }
    }

    private static String name(int index) {
        return (index % 2 == 0 ? "amaxHistories[" : "scales[") + index / 2 + "]";
    }

    /** Returns the number of histories. */
    public int count() {
        return tensors.length / 2;
    }

    /** Returns the number of scales of all histories together. */
    public long scaleCount() {
        return scaleCount;
    }

    /** Checks that every tensor is what it was, on the stream's device. */
    void check(Stream stream) {
        if (closed) {
            throw new IllegalStateException("amax histories are closed");
        }
        for (int i = 0; i < tensors.length; i++) {
            if (Inside.isTakenBack(tensors[i], issues[i])) {
                throw new IllegalStateException(
                        name(i) + ": its scope was restarted since the amax histories were made, and"
                                + " may have handed out its memory for something else; make the amax histories again");
            }
            Checks.on(stream, "amaxHistories", tensors[i]);
        }
    }

    void ensureApart(String argument, Tensor tensor) {
        for (Tensor own : tensors) {
            Checks.apart("amaxHistories", own, argument, tensor);
        }
    }

    MemorySegment histories() {
        return histories;
    }

    MemorySegment scales() {
        return scales;
    }

    static MemorySegment text(RecipeUpdates.AmaxAlgorithm algorithm, Stream stream) {
        return Inside.state(stream).get(Texts.ATTACHMENT).texts[algorithm.ordinal()];
    }

    /** Frees the native arrays; the tensors stay. A second call does nothing. */
    @Override
    public void close() {
        if (closed) {
            return;
        }
        closed = true;
        Leaks.closed(trace);
        arena.close();
    }
}
