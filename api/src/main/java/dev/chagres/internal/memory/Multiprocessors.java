package dev.chagres.internal.memory;

import dev.chagres.bindings.ForeignText;

/**
 * The multiprocessors of a device, and how many of them kernels may use.
 *
 * <p>Threading: the device's thread.
 */
public final class Multiprocessors {
    private static final int NONE = -1;

    /** The margin of a thread's norms of Transformer Engine. */
    private static final class OfThread {
        private int margin = NONE;
    }

    /**
     * Transformer Engine keeps a plan for each shape of a norm that a thread has computed. The plan, but not its key, has the number of
     * multiprocessors: a later number would be ignored silently.
     */
    private static final ThreadLocal<OfThread> THREADS = ThreadLocal.withInitial(OfThread::new);

    private final int device;
    private final int count;
    private int normMargin;
    private int productMargin;

    Multiprocessors(int device, int count) {
        this.device = device;
        this.count = count;
    }

    /** Returns the number of streaming multiprocessors; of the reference 132, as many as an H200 has. */
    public int count() {
        return count;
    }

    /** Sets how many norms and products leave, each from 0 to one less than there are. */
    public void leave(int norms, int products) {
        normMargin = norms;
        productMargin = products;
    }

    /** Returns how many our own norms fill; 0 for all. */
    public int ofNorms() {
        return normMargin == 0 ? 0 : count - normMargin;
    }

    /** Returns how many products fill; 0 for all. */
    public int ofProducts() {
        return productMargin == 0 ? 0 : count - productMargin;
    }

    /**
     * Returns how many norms of Transformer Engine fill, which the thread then computes with.
     *
     * @throws IllegalStateException when the thread has computed such norms with another margin
     */
    public int ofTransformerEngineNorms() {
        OfThread thread = THREADS.get();
        if (thread.margin != normMargin) {
            if (thread.margin != NONE) {
                throw new IllegalStateException("norms: expected a margin of " + thread.margin
                        + " multiprocessors, with which thread "
                        + ForeignText.quoted(Thread.currentThread().getName())
                        + " has computed norms of Transformer Engine before, for it keeps the first one of a thread and"
                        + " shape; got " + normMargin + " of device " + device
                        + "; set the margin before the thread's first such norm, or use another thread");
            }
            thread.margin = normMargin;
        }
        return count - normMargin;
    }
}
