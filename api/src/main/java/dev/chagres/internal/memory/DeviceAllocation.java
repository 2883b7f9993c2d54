package dev.chagres.internal.memory;

import jdk.jfr.Category;
import jdk.jfr.DataAmount;
import jdk.jfr.Description;
import jdk.jfr.Event;
import jdk.jfr.EventType;
import jdk.jfr.Label;
import jdk.jfr.Name;
import jdk.jfr.StackTrace;

/**
 * An event of JDK Flight Recorder: memory was taken from CUDA, which steps do once.
 *
 * <p>Threading: one thread at a time.
 */
@Name("dev.chagres.DeviceAllocation")
@Label("Device allocation")
@Description("Memory was taken from CUDA or NCCL")
@Category("Chagres")
@StackTrace
final class DeviceAllocation extends Event {
    private static final EventType TYPE = EventType.getEventType(DeviceAllocation.class);

    @Label("Bytes")
    @DataAmount
    long bytes;

    @Label("Held")
    @Description("Bytes that the device's scopes and workspaces hold then")
    @DataAmount
    long held;

    static void emit(long bytes, long held) {
        if (TYPE.isEnabled()) {
            var event = new DeviceAllocation();
            event.bytes = bytes;
            event.held = held;
            event.commit();
        }
    }
}
