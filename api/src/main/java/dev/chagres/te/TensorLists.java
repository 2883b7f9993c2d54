package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.Leaks;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.Arrays;
import java.util.Comparator;
import org.jspecify.annotations.Nullable;

/**
 * Lists of tensors for {@link MultiTensor}: all lists have the same length, and tensors at one index the same number of elements. The
 * native arrays are made once.
 *
 * <p>Each use checks that the tensors still are what they were when the lists were made.
 *
 * <p>Threading: the device's thread.
 */
public final class TensorLists implements AutoCloseable {
    /** The kernels count elements of one tensor in 32 bits, so longer buffers are split. */
    private static final long LONGEST_PIECE = 1L << 30;

    /** Lists of scale, amax and scale inverse. */
    static final int SCALE_CELLS = 3;

    private final Tensor[][] tensors;
    private final int cells;
    private final int[][] issues;
    private final Arena arena = Arena.ofShared();
    private final MemorySegment lists;
    private final Leaks.@Nullable Trace trace;
    private boolean closed;

    /** The lists; the last {@code cells} of them hold one number for each tensor of the others. */
    private TensorLists(int cells, Tensor[]... tensors) {
        checkShapes(tensors, tensors.length - cells);
        checkApart(tensors);
        this.tensors = tensors;
        this.cells = cells;
        issues = new int[tensors.length][];
        lists = arena.allocate(ValueLayout.ADDRESS, tensors.length);
        for (int i = 0; i < tensors.length; i++) {
            Tensor[] list = tensors[i];
            issues[i] = new int[list.length];
            MemorySegment handles = arena.allocate(ValueLayout.ADDRESS, Math.max(1, list.length));
            lists.setAtIndex(ValueLayout.ADDRESS, i, handles);
            for (int j = 0; j < list.length; j++) {
                issues[i][j] = Inside.issue(list[j]);
                handles.setAtIndex(ValueLayout.ADDRESS, j, list[j].handle());
            }
        }
        trace = Leaks.opened(tensors.length + " lists of " + tensorCount() + " tensors");
    }

    /**
     * Makes lists of these tensors.
     *
     * @param lists one array per list, of tensors of 1 to 2^30 elements, of types that Transformer Engine has, none sharing memory
     * @throws IllegalArgumentException when the numbers of tensors or elements differ, types do not fit, or tensors share memory
     */
    public static TensorLists of(Tensor[]... lists) {
        return new TensorLists(0, copies(lists));
    }

    /**
     * Makes lists of tensors in eight bits, and three more lists with one number for each tensor.
     *
     * @param lists one array per list, as for {@link #of}
     * @param scale FLOAT32 [1] for each tensor of a list
     * @param amax FLOAT32 [1] likewise
     * @param scaleInverse FLOAT32 [1] likewise
     * @throws IllegalArgumentException when the numbers of tensors or elements differ, or tensors share memory
     */
    public static TensorLists ofScaled(Tensor[][] lists, Tensor[] scale, Tensor[] amax, Tensor[] scaleInverse) {
        Tensor[][] given = copies(lists);
        Tensor[][] all = Arrays.copyOf(given, given.length + SCALE_CELLS);
        all[given.length] = Checks.givenAll("scale", scale).clone();
        all[given.length + 1] = Checks.givenAll("amax", amax).clone();
        all[given.length + 2] = Checks.givenAll("scaleInverse", scaleInverse).clone();
        return new TensorLists(SCALE_CELLS, all);
    }

    private static Tensor[][] copies(Tensor[]... lists) {
        Tensor[][] copies = new Tensor[Checks.given("lists", lists).length][];
        for (int i = 0; i < lists.length; i++) {
            copies[i] = Checks.givenAll("lists[" + i + "]", lists[i]).clone();
        }
        return copies;
    }

    /**
     * Makes one list per buffer. It has {@code count} elements from {@code offset} on, split into views short enough for the kernels.
     * Without elements the lists are empty.
     *
     * @param scope makes the views
     * @param buffers vectors of types that Transformer Engine has, none sharing memory
     * @throws IllegalArgumentException when the elements do not lie within the buffers, types do not fit, or buffers share memory
     */
    public static TensorLists ofRange(Scope scope, long offset, long count, Tensor... buffers) {
        Checks.given("scope", scope);
        if (Checks.givenAll("buffers", buffers).length == 0) {
            throw new IllegalArgumentException("buffers: expected at least one, got none");
        }
        if (count < 0) {
            throw new IllegalArgumentException("count: expected no negative number, got " + count);
        }
        for (int i = 0; i < buffers.length; i++) {
            Tensor buffer = buffers[i];
            Checks.withCode("buffers[" + i + "]", buffer);
            if (offset < 0 || offset > buffer.count() - count) {
                throw new IllegalArgumentException(
                        "offset: expected elements within " + buffer + ", got " + count + " from " + offset + " on");
            }
        }
        int pieces = Math.toIntExact((count + LONGEST_PIECE - 1) / LONGEST_PIECE);
        Tensor[][] views = new Tensor[buffers.length][pieces];
        for (int i = 0; i < buffers.length; i++) {
            for (int piece = 0; piece < pieces; piece++) {
                long begin = piece * LONGEST_PIECE;
                views[i][piece] = scope.view(buffers[i], offset + begin, Math.min(LONGEST_PIECE, count - begin));
            }
        }
        return new TensorLists(0, views);
    }

    private static void checkShapes(Tensor[][] tensors, int shaped) {
        if (shaped == 0) {
            throw new IllegalArgumentException("lists: expected at least one, got none");
        }
        for (int i = 0; i < tensors.length; i++) {
            if (tensors[i].length != tensors[0].length) {
                throw new IllegalArgumentException("list " + i + ": expected " + tensors[0].length
                        + " tensors as in list 0, got " + tensors[i].length);
            }
            for (int j = 0; j < tensors[i].length; j++) {
                long count = tensors[i][j].count();
                if (i >= shaped) {
                    checkCell(i, j, tensors[i][j]);
                } else if (count != tensors[0][j].count() || count == 0 || count > LONGEST_PIECE) {
                    throw new IllegalArgumentException(name(i, j) + ": expected as many elements as " + name(0, j)
                            + " has, from 1 to " + LONGEST_PIECE + ", got " + Checks.describe(tensors[i][j]));
                } else {
                    Checks.withCode(name(i, j), tensors[i][j]);
                }
            }
        }
    }

    private static void checkCell(int list, int index, Tensor tensor) {
        if (tensor.count() != 1 || tensor.dtype() != DType.FLOAT32) {
            throw new IllegalArgumentException(
                    name(list, index) + ": expected FLOAT32[1], got " + Checks.describe(tensor));
        }
    }

    /** The kernels write some lists while they read others, so no tensor may share memory with another. */
    private static void checkApart(Tensor[][] tensors) {
        int perList = tensors[0].length;
        Integer[] order = new Integer[tensors.length * perList];
        Arrays.setAll(order, i -> i);
        Arrays.sort(order, Comparator.comparingLong(i -> tensors[i / perList][i % perList].address()));
        for (int i = 1; i < order.length; i++) {
            int before = order[i - 1];
            int here = order[i];
            Checks.apart(
                    name(here / perList, here % perList),
                    tensors[here / perList][here % perList],
                    name(before / perList, before % perList),
                    tensors[before / perList][before % perList]);
        }
    }

    /** Returns the number of lists. */
    public int listCount() {
        return tensors.length;
    }

    /** Returns how many lists at the end hold one number for each tensor of the others. */
    int cellLists() {
        return cells;
    }

    /** Returns the number of tensors in each list. */
    public int tensorCount() {
        return tensors[0].length;
    }

    /** Returns tensor {@code index} of list {@code list}. */
    Tensor tensor(int list, int index) {
        return tensors[list][index];
    }

    /** Checks every tensor, and returns the array of lists. */
    MemorySegment lists() {
        if (closed) {
            throw new IllegalStateException("tensor lists are closed");
        }
        for (int i = 0; i < tensors.length; i++) {
            for (int j = 0; j < tensors[i].length; j++) {
                if (Inside.isTakenBack(tensors[i][j], issues[i][j])) {
                    throw new IllegalStateException(
                            name(i, j) + ": its scope was restarted since the lists were made, and"
                                    + " may have handed out its memory for something else; make the lists again");
                }
                tensors[i][j].address();
            }
        }
        return lists;
    }

    /** Checks that there are {@code count} lists on the stream's device, and returns their array. */
    static MemorySegment listed(TensorLists lists, int count, Stream stream) {
        return listed(lists, count, 0, stream);
    }

    /** The same where the last {@code cells} lists hold one number for each tensor. */
    static MemorySegment listed(TensorLists lists, int count, int cells, Stream stream) {
        MemorySegment array = Checks.given("lists", lists).lists();
        if (lists.listCount() != count) {
            throw new IllegalArgumentException("lists: expected " + count + " lists, got " + lists.listCount());
        }
        if (lists.cellLists() != cells) {
            throw new IllegalArgumentException(
                    cells == 0
                            ? "lists: expected lists of TensorLists.of, got some of TensorLists.ofScaled"
                            : "lists: expected lists of TensorLists.ofScaled, got some of TensorLists.of");
        }
        for (int i = 0; i < count; i++) {
            for (int j = 0; j < lists.tensorCount(); j++) {
                Checks.on(stream, "lists", lists.tensor(i, j));
                Checks.writable("lists", lists.tensor(i, j));
            }
        }
        return array;
    }

    /** Returns the type of the first tensor of the first list, after a check that all of that list have it. */
    static DType floats(TensorLists lists) {
        return floats(lists, 0);
    }

    /** Returns the type of the first tensor of a list, after a check that all of that list have it. */
    static DType floats(TensorLists lists, int list) {
        Tensor first = lists.tensor(list, 0);
        if (!first.dtype().isFloat()) {
            throw new IllegalArgumentException(name(list, 0)
                    + ": expected elements of FLOAT32, FLOAT16 or BFLOAT16, got " + Checks.describe(first));
        }
        return first.dtype();
    }

    static void ofType(TensorLists lists, int list, int index, DType type) {
        Tensor tensor = lists.tensor(list, index);
        if (tensor.dtype() != type) {
            throw new IllegalArgumentException(
                    name(list, index) + ": expected elements of " + type + ", got " + Checks.describe(tensor));
        }
    }

    static void apart(String argument, Tensor tensor, int list, int index, Tensor other) {
        if (Checks.overlaps(tensor, other)) {
            throw new IllegalArgumentException(argument + ": expected memory of its own, got some of "
                    + name(list, index) + "'s; one is written to while the other is read or written");
        }
    }

    static String name(int list, int index) {
        return "list " + list + ", tensor " + index;
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
