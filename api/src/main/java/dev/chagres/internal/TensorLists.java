package dev.chagres.internal;

import dev.chagres.Scope;
import dev.chagres.Tensor;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * The lists of tensors that TE's multi-tensor kernels take, over ranges of flat buffers: an array of pointers to arrays of
 * handles.
 *
 * <p>Threading: the device's thread.
 */
public final class TensorLists {
    /** The kernels count elements of one tensor in 32 bits, so longer ranges are given in pieces. */
    private static final long LONGEST_PIECE = 1L << 30;

    private final MemorySegment lists;
    private final int listCount;
    private final int tensorCount;
    private final TensorCell[] views;
    private final int[] issues;

    /**
     * Splits the range of {@code count} elements from {@code offset} on of every buffer into pieces.
     *
     * @param scope hands out the views
     * @param arena holds the arrays
     * @param buffers vectors of the same length
     */
    public TensorLists(Scope scope, Arena arena, long offset, long count, Tensor... buffers) {
        listCount = buffers.length;
        tensorCount = Math.toIntExact((count + LONGEST_PIECE - 1) / LONGEST_PIECE);
        lists = arena.allocate(ValueLayout.ADDRESS, listCount);
        views = new TensorCell[listCount * tensorCount];
        issues = new int[views.length];
        for (int i = 0; i < listCount; i++) {
            MemorySegment list = arena.allocate(ValueLayout.ADDRESS, Math.max(1, tensorCount));
            lists.setAtIndex(ValueLayout.ADDRESS, i, list);
            for (int piece = 0; piece < tensorCount; piece++) {
                long begin = piece * LONGEST_PIECE;
                TensorCell view = scope.view(buffers[i], offset + begin, Math.min(LONGEST_PIECE, count - begin))
                        .cell();
                list.setAtIndex(ValueLayout.ADDRESS, piece, view.handle());
                views[i * tensorCount + piece] = view;
                issues[i * tensorCount + piece] = view.issue();
            }
        }
    }

    /**
     * Returns the array of lists.
     *
     * @throws IllegalStateException when a buffer's scope was closed or restarted since: the arrays would lead to memory
     *     that is gone
     */
    public MemorySegment lists() {
        for (int i = 0; i < views.length; i++) {
            views[i].ensureUsable();
            if (views[i].issue() != issues[i]) {
                throw new IllegalStateException(views[i].scope() + " was restarted and has handed out the memory of"
                        + " parameters for something else; allocate Parameters again");
            }
        }
        return lists;
    }

    /** Returns the number of lists. */
    public int listCount() {
        return listCount;
    }

    /** Returns the number of tensors in each list; 0 when the range is empty. */
    public int tensorCount() {
        return tensorCount;
    }
}
