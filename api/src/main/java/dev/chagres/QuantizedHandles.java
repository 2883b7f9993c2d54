package dev.chagres;

import dev.chagres.internal.memory.DeviceState;
import org.jspecify.annotations.Nullable;

/**
 * Transformer Engine's handles of one place among the quantized tensors of a scope. A handle has its scaling for life: there is one a
 * scaling, made when it is asked for first.
 *
 * <p>Threading: the device's thread.
 */
final class QuantizedHandles {
    private final DeviceState device;
    private final @Nullable QuantizedHandle[] handles = new QuantizedHandle[Scaling.values().length];

    QuantizedHandles(DeviceState device) {
        this.device = device;
    }

    QuantizedHandle of(Scaling scaling) {
        QuantizedHandle handle = handles[scaling.ordinal()];
        if (handle == null) {
            handle = new QuantizedHandle(device, scaling);
            handles[scaling.ordinal()] = handle;
        }
        return handle;
    }

    void destroy() {
        for (int i = 0; i < handles.length; i++) {
            QuantizedHandle dead = handles[i];
            handles[i] = null;
            if (dead != null) {
                dead.destroy();
            }
        }
    }
}
