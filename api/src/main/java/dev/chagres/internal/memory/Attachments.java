package dev.chagres.internal.memory;

import dev.chagres.internal.memory.DeviceState.Attachment;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * The attachments of one device: each is made when it is first asked for, and closed with the device.
 *
 * <p>Threading: the device's thread.
 */
final class Attachments {
    private final DeviceState device;
    /** By {@link Attachment#slot}; null if it was not asked for yet. */
    private @Nullable Object[] made = new Object[16];

    Attachments(DeviceState device) {
        this.device = device;
    }

    <A> A get(Attachment<A> attachment) {
        int slot = attachment.slot();
        Object present = slot < made.length ? made[slot] : null;
        if (present == null) {
            present = make(attachment);
        }
        @SuppressWarnings("unchecked") // A slot holds what its own attachment has made.
        A typed = (A) present;
        return typed;
    }

    /** The maker may ask for other attachments and make the array longer, so this one is stored after that. */
    private Object make(Attachment<?> attachment) {
        Object one = attachment.make(device);
        int slot = attachment.slot();
        if (slot >= made.length) {
            made = Arrays.copyOf(made, Math.max(slot + 1, 2 * made.length));
        }
        made[slot] = one;
        return one;
    }

    /** Closes them, the newest slot first; throws the first failure once all are closed. */
    void close() {
        List<AutoCloseable> all = new ArrayList<>();
        for (Object one : made) {
            if (one instanceof AutoCloseable closing) {
                all.add(closing);
            }
        }
        Closing.newestFirst(all);
    }
}
