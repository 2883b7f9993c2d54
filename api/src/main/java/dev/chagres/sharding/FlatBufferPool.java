package dev.chagres.sharding;

import dev.chagres.Event;
import dev.chagres.MemoryUse;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Opened;
import dev.chagres.nccl.CollectiveMemory;
import dev.chagres.parameter.Parameters;
import dev.chagres.sharding.FlatBufferContent.Vector;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * Buffers for whole weights or gradients of groups, which groups of equal sizes use in turn: usually one is computed with while another is
 * communicated.
 *
 * <p>Threading: the device's thread.
 */
final class FlatBufferPool implements AutoCloseable {
    private static final int NONE = -1;

    /**
     * Groups with fewer bytes lie in device memory if they are also far smaller than the largest: NCCL's kernels gather and reduce little faster than
     * copy engines. A step of four layers of 4096 on four H200 whose first norms are a group takes 74.1 ms so, 74.4 with all in a window.
     */
    private static final long SMALL_BYTES = 1 << 20;

    private static final int FAR_SMALLER = 16;

    /** Memory for one group at a time. */
    static final class Buffer {
        /** The vectors of the content, one after another. */
        private final Tensor[] vectors;
        /** By group, the content's views of this buffer, once it has held the group. */
        private final Tensor[] @Nullable [] views;
        /** On the stream that used it last. */
        final Event free;
        /** On the stream that filled it. */
        final Event ready;

        private int holder = NONE;
        private long turn;
        /** The number of calls that use it; 1 while it holds the only copy of its content. */
        int pins;
        /** Whether the computing stream already waits for {@link #ready}. */
        boolean awaited;

        private Buffer(Tensor[] vectors, int groups, Event free, Event ready) {
            this.vectors = vectors;
            views = new Tensor[groups][];
            this.free = free;
            this.ready = ready;
        }

        Tensor vector(int index) {
            return vectors[index];
        }
    }

    /** Groups whose vectors have the same types and lengths. */
    private static final class SizeClass {
        private final List<Buffer> buffers = new ArrayList<>();
        /** The number of groups that use such buffers, and one of them. */
        private int groups;

        private int group = NONE;
    }

    private final FlatBufferContent content;
    private final int usual;
    private final Scope scope;
    /** The memory of the usual buffers, which are then made at once; null: each is made when needed. */
    private final @Nullable CollectiveMemory window;

    /** The least bytes of a group whose usual buffers lie in the window. */
    private final long leastInWindow;

    private final SizeClass[] classes;
    private final @Nullable Buffer[] held;
    private long turns;

    /**
     * If there are {@code windows}, the usual buffers of all but small groups lie in one; further ones, made during steps, lie in device memory.
     * {@code usual}: number of buffers of one size; more are made only if all are in use.
     */
    FlatBufferPool(Parameters parameters, FlatBufferContent content, int usual, @Nullable RankWindows windows) {
        this.content = content;
        this.usual = usual;
        Stream stream = parameters.scope().stream();
        classes = new SizeClass[parameters.access().groups().size()];
        held = new Buffer[classes.length];
        Map<List<Vector>, SizeClass> bySize = new LinkedHashMap<>();
        for (int i = 0; i < classes.length; i++) {
            classes[i] = bySize.computeIfAbsent(content.vectors(i), key -> new SizeClass());
            if (content.holds(i)) {
                classes[i].groups++;
                classes[i].group = i;
            }
        }
        long largest = bySize.keySet().stream()
                .mapToLong(FlatBufferPool::byteSize)
                .max()
                .orElse(0);
        leastInWindow = Math.min(SMALL_BYTES, largest / FAR_SMALLER);
        try (Opened opened = new Opened()) {
            scope = opened.add(stream.device().openScope(stream)).countedAs(MemoryUse.Holder.COLLECTIVES);
            window = windows == null ? null : windows.take(usualBytes(bySize));
            if (window != null) {
                opened.add(window);
                opened.add(this::closeEvents);
                fill(bySize, window.scope());
            }
            opened.keep();
        }
    }

    private int usual(SizeClass one) {
        return Math.min(usual, one.groups);
    }

    private long usualBytes(Map<List<Vector>, SizeClass> bySize) {
        long bytes = 0;
        for (Map.Entry<List<Vector>, SizeClass> one : bySize.entrySet()) {
            if (liesInWindow(one.getKey())) {
                bytes += usual(one.getValue()) * byteSize(one.getKey());
            }
        }
        return bytes;
    }

    private boolean liesInWindow(List<Vector> vectors) {
        return byteSize(vectors) >= leastInWindow;
    }

    private static long byteSize(List<Vector> vectors) {
        long bytes = 0;
        for (Vector vector : vectors) {
            bytes += CollectiveMemory.byteSizeOf(vector.dtype(), vector.count());
        }
        return bytes;
    }

    private void fill(Map<List<Vector>, SizeClass> bySize, Scope memory) {
        for (Map.Entry<List<Vector>, SizeClass> entry : bySize.entrySet()) {
            SizeClass one = entry.getValue();
            while (liesInWindow(entry.getKey()) && one.buffers.size() < usual(one)) {
                make(one.group, memory);
            }
        }
    }

    /** Returns the buffer that holds {@code group}, or null. */
    @Nullable
    Buffer held(int group) {
        return held[group];
    }

    /** Gives {@code group} a buffer: a new one if there are fewer than usual, else one that is not in use. */
    Buffer take(int group) {
        Buffer idle = idle(group);
        return hold(group, idle == null ? make(group, scope) : idle);
    }

    /** Gives {@code group} a buffer; null if all usual ones are in use. */
    @Nullable
    Buffer takeIdle(int group) {
        Buffer idle = idle(group);
        return idle == null ? null : hold(group, idle);
    }

    private @Nullable Buffer idle(int group) {
        SizeClass own = classes[group];
        if (own.buffers.size() < usual(own)) {
            return make(group, scope);
        }
        Buffer oldest = null;
        for (int i = 0; i < own.buffers.size(); i++) {
            Buffer one = own.buffers.get(i);
            if (one.pins == 0 && (oldest == null || one.turn < oldest.turn)) {
                oldest = one;
            }
        }
        return oldest;
    }

    private Buffer make(int group, Scope memory) {
        List<Vector> own = content.vectors(group);
        Tensor[] vectors = new Tensor[own.size()];
        for (int i = 0; i < vectors.length; i++) {
            vectors[i] = memory.tensor(own.get(i).dtype(), own.get(i).count());
            vectors[i].zero(scope.stream());
        }
        Buffer made;
        try (Opened opened = new Opened()) {
            Event free = opened.add(scope.device().openEvent());
            Event ready = opened.add(scope.device().openEvent());
            free.record(scope.stream());
            made = new Buffer(vectors, classes.length, free, ready);
            opened.keep();
        }
        classes[group].buffers.add(made);
        return made;
    }

    private Buffer hold(int group, Buffer buffer) {
        if (buffer.holder != NONE) {
            held[buffer.holder] = null;
        }
        buffer.holder = group;
        buffer.turn = ++turns;
        buffer.awaited = false;
        held[group] = buffer;
        return buffer;
    }

    /** Sets the members of a group to the views of {@code buffer}. */
    void lend(int group, Buffer buffer) {
        content.lend(group, views(group, buffer));
    }

    /** Returns the content's views of {@code buffer} for a group. */
    Tensor[] views(int group, Buffer buffer) {
        Tensor[] views = buffer.views[group];
        if (views == null) {
            views = content.views(group, buffer.vectors, scope);
            buffer.views[group] = views;
        }
        return views;
    }

    /** Gives every group views of a buffer of its size, for their types and offsets only. */
    void lendAll() {
        for (int group = 0; group < classes.length; group++) {
            if (classes[group].buffers.isEmpty()) {
                make(group, scope);
            }
            lend(group, classes[group].buffers.getFirst());
        }
    }

    /** Records that a group is no longer used; its content stays until another group takes the buffer. */
    void release(Buffer buffer) {
        buffer.pins = 0;
        buffer.turn = ++turns;
    }

    /** Takes the buffer away from a group. */
    void takeBack(Buffer buffer) {
        release(buffer);
        if (buffer.holder != NONE) {
            held[buffer.holder] = null;
            buffer.holder = NONE;
        }
    }

    /** Returns whether a call uses a group. */
    boolean isPinned() {
        for (Buffer buffer : held) {
            if (buffer != null && buffer.pins > 0) {
                return true;
            }
        }
        return false;
    }

    /** Takes the buffers away from all groups. */
    void takeBackAll() {
        for (Buffer buffer : held) {
            if (buffer != null) {
                takeBack(buffer);
            }
        }
    }

    /** Returns the bytes of all buffers. */
    long byteSize() {
        return scope.reservedBytes() + (window == null ? 0 : window.byteSize());
    }

    private void closeEvents() {
        for (SizeClass one : classes) {
            for (Buffer buffer : one.buffers) {
                buffer.free.close();
                buffer.ready.close();
            }
            one.buffers.clear();
        }
    }

    @Override
    public void close() {
        closeEvents();
        scope.close();
        if (window != null) {
            window.close();
        }
    }
}
