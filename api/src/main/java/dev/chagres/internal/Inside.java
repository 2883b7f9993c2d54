package dev.chagres.internal;

import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.internal.memory.ScopeState;
import dev.chagres.internal.memory.Workspace;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import org.jspecify.annotations.Nullable;

/**
 * What devices, streams and tensors keep for the other packages of this module and show to nobody else.
 *
 * <p>The handles are constants, so that reading one costs what reading a field costs.
 *
 * <p>Threading: the device's thread.
 */
public final class Inside {
    private static final VarHandle DEVICE_STATE = field(Device.class, "state", DeviceState.class);
    private static final VarHandle WORKSPACE = field(Stream.class, "workspace", Workspace.class);
    private static final VarHandle SCRATCH = field(Stream.class, "scratch", Scope.class);
    private static final VarHandle RECOMPUTED = field(Stream.class, "recomputed", Scope.class);
    private static final VarHandle SCOPE_STATE = field(Tensor.class, "scope", ScopeState.class);
    private static final VarHandle BASE = field(Tensor.class, "base", Tensor.class);
    private static final VarHandle ISSUE = field(Tensor.class, "issue", int.class);
    private static final VarHandle CONSTANT = field(Tensor.class, "constant", boolean.class);
    private static final VarHandle REQUIRES_GRADIENT = field(Tensor.class, "requiresGradient", boolean.class);

    private Inside() {}

    /** Returns the state of a device. */
    public static DeviceState state(Device device) {
        return (DeviceState) DEVICE_STATE.get(device);
    }

    /** Returns the state of the device that {@code stream} belongs to. */
    public static DeviceState state(Stream stream) {
        return state(stream.device());
    }

    /** Returns the state of the device that holds {@code tensor}. */
    public static DeviceState state(Tensor tensor) {
        return ((ScopeState) SCOPE_STATE.get(tensor)).device();
    }

    /** Returns the memory that kernels on {@code stream} use while they run. */
    public static Workspace workspace(Stream stream) {
        return (Workspace) WORKSPACE.get(stream);
    }

    /** Returns the scope for what goes back when a call returns. */
    public static Scope scratch(Stream stream) {
        return (Scope) SCRATCH.get(stream);
    }

    /** Returns the scope for what recomputation saves. */
    public static Scope recomputed(Stream stream) {
        return (Scope) RECOMPUTED.get(stream);
    }

    /** Returns how often a tensor object was handed out: whoever relies on its contents compares. */
    public static int issue(Tensor tensor) {
        return (int) ISSUE.get(tensor);
    }

    /** Returns the tensor whose memory {@code tensor} is a view of, or {@code tensor} itself when it is no view. */
    public static Tensor root(Tensor tensor) {
        Tensor root = tensor;
        Tensor base = base(root);
        while (base != null) {
            root = base;
            base = base(root);
        }
        return root;
    }

    private static @Nullable Tensor base(Tensor tensor) {
        return (Tensor) BASE.get(tensor);
    }

    /** Says that the contents, which were checked, are not to be written to until the tensor is handed out again. */
    public static void fix(Tensor tensor) {
        CONSTANT.set(tensor, true);
    }

    /** Returns whether the contents were checked and are not to be written to. */
    public static boolean isFixed(Tensor tensor) {
        return (boolean) CONSTANT.get(tensor);
    }

    /** Says whether backward passes compute a gradient of {@code tensor}. */
    public static void requireGradient(Tensor tensor, boolean required) {
        REQUIRES_GRADIENT.set(tensor, required);
    }

    private static VarHandle field(Class<?> owner, String name, Class<?> type) {
        try {
            return MethodHandles.privateLookupIn(owner, MethodHandles.lookup()).findVarHandle(owner, name, type);
        } catch (ReflectiveOperationException e) {
            throw new ExceptionInInitializerError(e);
        }
    }
}
