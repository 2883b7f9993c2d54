package dev.chagres.internal;

import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.memory.Capture;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.internal.memory.Fields;
import dev.chagres.internal.memory.Workspace;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import org.jspecify.annotations.Nullable;

/**
 * What devices, streams and tensors keep for the other packages of this module and show to nobody else.
 *
 * <p>Threading: the device's thread.
 */
public final class Inside {
    /** A constant of one class, so that a call through it costs what a call of the field's own class costs. */
    private static final Fields FIELDS = fields();

    private Inside() {}

    /** Returns the state of a device. */
    public static DeviceState state(Device device) {
        return FIELDS.stateOfDevice(device);
    }

    /** Returns the state of the device that {@code stream} belongs to. */
    public static DeviceState state(Stream stream) {
        return FIELDS.stateOfDevice(stream.device());
    }

    /** Returns the state of the device that holds {@code tensor}. */
    public static DeviceState state(Tensor tensor) {
        return FIELDS.stateOfTensor(tensor);
    }

    /** Returns the memory that kernels on {@code stream} use while they run. */
    public static Workspace workspace(Stream stream) {
        return FIELDS.workspace(stream);
    }

    /** Returns the scope for what goes back when a call returns. */
    public static Scope scratch(Stream stream) {
        return (Scope) FIELDS.scratch(stream);
    }

    /** Returns the scope for what recomputation saves. */
    public static Scope recomputed(Stream stream) {
        return (Scope) FIELDS.recomputed(stream);
    }

    /** Returns the device address of a tensor that was found usable already. */
    public static long address(Tensor tensor) {
        return FIELDS.address(tensor);
    }

    /** Returns what belongs to the graph that {@code stream} captures now, or null when it captures none. */
    public static @Nullable Capture capture(Stream stream) {
        return FIELDS.capture(stream);
    }

    /** Returns how often a tensor object was handed out: whoever relies on its contents compares. */
    public static int issue(Tensor tensor) {
        return FIELDS.issue(tensor);
    }

    /** Returns the tensor whose memory {@code tensor} is a view of, or {@code tensor} itself when it is no view. */
    public static Tensor root(Tensor tensor) {
        Tensor root = tensor;
        Tensor base = (Tensor) FIELDS.base(root);
        while (base != null) {
            root = base;
            base = (Tensor) FIELDS.base(root);
        }
        return root;
    }

    /** Says that the contents, which were checked, are not to be written to until the tensor is handed out again. */
    public static void fix(Tensor tensor) {
        FIELDS.fix(tensor);
    }

    /** Returns whether the contents were checked and are not to be written to. */
    public static boolean isFixed(Tensor tensor) {
        return FIELDS.isFixed(tensor);
    }

    /** Says whether backward passes compute a gradient of {@code tensor}. */
    public static void requireGradient(Tensor tensor, boolean required) {
        FIELDS.requireGradient(tensor, required);
    }

    private static Fields fields() {
        try {
            MethodHandles.Lookup lookup = MethodHandles.privateLookupIn(Tensor.class, MethodHandles.lookup());
            Class<?> implementation = lookup.findClass("dev.chagres.InsideFields");
            return (Fields) lookup.findConstructor(implementation, MethodType.methodType(void.class))
                    .invoke();
        } catch (Throwable e) { // A method handle declares every exception.
            throw new ExceptionInInitializerError(e);
        }
    }
}
