package dev.chagres.internal.memory;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import org.jspecify.annotations.Nullable;

/**
 * The waits of a device's thread for work of the device. A collective may wait forever for another rank, while the thread is inside CUDA:
 * other threads see here that it waits, and in which wait.
 *
 * <p>Threading: the device's thread, but for {@link #present()}.
 */
public final class HostWaits {
    private static final VarHandle PRESENT;

    static {
        try {
            PRESENT = MethodHandles.lookup().findVarHandle(HostWaits.class, "present", long.class);
        } catch (ReflectiveOperationException impossible) {
            throw new ExceptionInInitializerError(impossible);
        }
    }

    /** What the device's work may wait for: others can end such a wait, in which case the work is not done. */
    public interface Interruptible {
        /** Returns how many failures there were so far of what is open. */
        int failures();

        /** Throws the newest failure, if there are more than {@code before}. */
        void throwNew(int before);
    }

    private long count;

    @SuppressWarnings("unused") // through PRESENT
    private long present;

    /** Who was in the last wait. */
    private @Nullable Thread thread;

    private int failures;
    private @Nullable Interruptible interruptible;

    HostWaits() {}

    /** Sets what work of the device may wait for. */
    public void interruptedBy(Interruptible named) {
        interruptible = named;
    }

    /** Records that the thread is about to wait; {@link #end()} follows. */
    public void begin() {
        Interruptible known = interruptible;
        failures = known == null ? 0 : known.failures();
        thread = Thread.currentThread();
        PRESENT.setRelease(this, ++count);
    }

    /** Records the end of the wait. */
    public void end() {
        PRESENT.setRelease(this, 0L);
    }

    /** Throws if the last wait was ended from outside. */
    public void check() {
        Interruptible known = interruptible;
        if (known != null && known.failures() > failures) {
            known.throwNew(failures);
        }
    }

    /** Throws if what work of the device may wait for has failed. */
    public void checkAll() {
        Interruptible known = interruptible;
        if (known != null && known.failures() > 0) {
            known.throwNew(0);
        }
    }

    /** Returns whether the thread that is in a wait was interrupted, which a wait inside CUDA does not notice. Any thread. */
    public boolean isInterrupted() {
        Thread waiting = present() == 0 ? null : thread;
        return waiting != null && waiting.isInterrupted();
    }

    /** Returns the number of the wait that the thread is in, 0 outside. Any thread. */
    public long present() {
        return (long) PRESENT.getAcquire(this);
    }
}
