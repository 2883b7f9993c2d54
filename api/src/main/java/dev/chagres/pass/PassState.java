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

    /** The pass is closed: frees what this owns. */
    @Override
    void close();
}
