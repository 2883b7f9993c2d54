package dev.chagres.internal.memory;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import org.jspecify.annotations.Nullable;

/**
 * The waits of a device's thread for work of the device. Work of a collective may wait for another rank without an end, and the
 * thread is inside CUDA then: others see here that it waits, and since which wait.
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

    /** What the device's work may wait for: others can end such a wait, and the work is not done then. */
    public interface Interruptible {
        /** Returns how many failures there were so far of what is open. */
        int failures();

        /** Throws the newest failure, where there are more than {@code before}. */
        void throwNew(int before);
    }

    private long count;

    @SuppressWarnings("unused") // through PRESENT
    private long present;

    private int failures;
    private @Nullable Interruptible interruptible;

    HostWaits() {}

    /** Names what work of the device may wait for. */
    public void interruptedBy(Interruptible named) {
        interruptible = named;
    }

    /** Says that the thread is about to wait; {@link #end()} follows. */
    public void begin() {
        Interruptible known = interruptible;
        failures = known == null ? 0 : known.failures();
        PRESENT.setRelease(this, ++count);
    }

    /** Says that it waits no more. */
    public void end() {
        PRESENT.setRelease(this, 0L);
    }

    /** Throws why the wait that has ended was ended from outside, if it was. */
    public void check() {
        Interruptible known = interruptible;
        if (known != null && known.failures() > failures) {
            known.throwNew(failures);
        }
    }

    /** Throws why what work of the device may wait for has failed, if it has. */
    public void checkAll() {
        Interruptible known = interruptible;
        if (known != null && known.failures() > 0) {
            known.throwNew(0);
        }
    }

    /** Returns the number of the wait that the thread is in, 0 outside. Any thread. */
    public long present() {
        return (long) PRESENT.getAcquire(this);
    }
}
