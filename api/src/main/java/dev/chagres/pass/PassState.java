package dev.chagres.pass;

/**
 * What layers of one kind keep for a pass, beside the tensors that forward saves: streams, tables, a cache. {@link Pass#state} makes it and
 * finds it again.
 *
 * <p>Threading: the device's thread.
 */
public interface PassState extends AutoCloseable {
    /** A micro-batch has ended: what lay in the memory of the pass is lost. */
    void restart();

    /** Returns the bytes of page-locked memory of the host that this holds: 0 unless overridden. */
    default long hostBytes() {
        return 0;
    }

    /** The pass is closed: frees what this owns. */
    @Override
    void close();
}
