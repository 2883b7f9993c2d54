package dev.chagres.internal.memory;

import org.jspecify.annotations.Nullable;

/**
 * Reads what devices, streams and tensors keep. One class implements it, in their package; this one lies below that package and so
 * knows them as objects.
 *
 * <p>Threading: the device's thread.
 */
public abstract class Fields {
    /** For the one implementation. */
    protected Fields() {}

    /** Returns the state of a device. */
    public abstract DeviceState stateOfDevice(Object device);

    /** Returns the state of the device that holds a tensor. */
    public abstract DeviceState stateOfTensor(Object tensor);

    /** Returns the memory that kernels on a stream use while they run. */
    public abstract Workspace workspace(Object stream);

    /** Opens a scope of {@code memory} in the order of a stream, which is closed with the device at the latest. */
    public abstract Object openScope(Object stream, DeviceMemory memory);

    /** Returns the scope for what goes back when a call returns. */
    public abstract Object scratch(Object stream);

    /** Returns the scope for what recomputation saves. */
    public abstract Object recomputed(Object stream);

    /** Returns how often a method of Tensor has written to the memory of a tensor that is no view. */
    public abstract int writes(Object tensor);

    /** Returns the number of the latest of these writes among the changes on the device. */
    public abstract long writtenAt(Object tensor);

    /** Returns whether a tensor's memory still holds what was written there as that issue of the tensor. */
    public abstract boolean holds(Object tensor, int issue);

    /** Returns what belongs to the graph that a stream captures, null when it captures none. */
    public abstract @Nullable Capture capture(Object stream);

    /** Returns the device address of a tensor that was found usable already. */
    public abstract long address(Object tensor);

    /** Returns the number of a tensor's handing-out, among those of its scope. */
    public abstract int issue(Object tensor);

    /** Returns whether a scope that is open has taken back what it handed out as that issue of a tensor. */
    public abstract boolean isTakenBack(Object tensor, int issue);

    /** Returns the tensor that a tensor is a view of, null when it is no view. */
    public abstract @Nullable Object base(Object tensor);

    /** Says that the contents of a tensor, which were checked, are not to be written to. */
    public abstract void fix(Object tensor);

    /** Returns whether the contents of a tensor were checked and are not to be written to. */
    public abstract boolean isFixed(Object tensor);

    /** Lets others read the memory of a scope. */
    public abstract void shareMemory(Object scope, SharedMemory memory);

    /** Marks a tensor that is no view as one of shared memory. */
    public abstract void share(Object tensor, SharedMemory memory);

    /** Returns whether a tensor, or what it is a view of, lies in shared memory that is read-only now. */
    public abstract boolean isShared(Object tensor);

    /** Says whether backward passes compute a gradient of a tensor. */
    public abstract void requireGradient(Object tensor, boolean required);
}
