package dev.chagres.internal;

import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.CaptureException;
import dev.chagres.internal.memory.Capture;
import dev.chagres.internal.memory.DeviceMemory;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.internal.memory.Fields;
import dev.chagres.internal.memory.SharedMemory;
import dev.chagres.internal.memory.StepWork;
import dev.chagres.internal.memory.Workspace;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import org.jspecify.annotations.Nullable;

/**
 * Access to the internals of devices, streams and tensors for the other packages of this module.
 *
 * <p>Threading: the device's thread.
 */
public final class Inside {
    /** A constant of one class, so that the JVM can inline calls through it. */
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

    /** Opens a scope of {@code memory}, which is used in the order of {@code stream}; it is closed with the device at the latest. */
    public static Scope openScope(Stream stream, DeviceMemory memory) {
        return (Scope) FIELDS.openScope(stream, memory);
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

    /**
     * Does {@code work} now or, if {@code stream} captures, at each launch of the graph.
     *
     * @throws CaptureException when another stream of the device captures: {@code stream} may have joined it, and the graph would
     *     repeat the numbers of now
     */
    public static void eachStep(Stream stream, StepWork work) {
        Capture capture = capture(stream);
        if (capture != null) {
            capture.add(work, stream.handle());
        } else if (state(stream).capture() == null) {
            work.enqueue(stream.handle());
        } else {
            throw new CaptureException(
                    "step: expected passes and optimizers on the stream that captures, got one on another "
                            + stream
                            + ", whose rate and random numbers a graph would repeat at each launch; capture the stream of"
                            + " the pass and the parameters");
        }
    }

    /**
     * Records that kernels which are enqueued now trust the contents of {@code tensor}. If they are captured, each launch checks that its
     * memory was not handed out for something else.
     *
     * @param what names the contents in the error
     */
    public static void trust(Tensor tensor, String what) {
        Capture capture = state(tensor).capture();
        if (capture != null) {
            int issue = issue(tensor);
            capture.trust(tensor, () -> {
                if (!FIELDS.holds(tensor, issue)) {
                    throw new IllegalStateException("launch: the scope that holds " + what
                            + " was restarted since the capture, and may have handed out their memory for something else;"
                            + " make them again, in a scope that stays as it is, and capture again");
                }
            });
        }
    }

    /** Returns how often a method of Tensor has written to the memory of {@code tensor}, which is no view, or of a view of it. */
    public static int writes(Tensor tensor) {
        return FIELDS.writes(tensor);
    }

    /** Returns the number of the latest of these writes among the changes that the device counts; 0 where there was none. */
    public static long writtenAt(Tensor tensor) {
        return FIELDS.writtenAt(tensor);
    }

    /** Returns the number of a tensor's handing-out, among those of its scope: whoever relies on its contents remembers it. */
    public static int issue(Tensor tensor) {
        return FIELDS.issue(tensor);
    }

    /** Returns whether a scope that is open has taken back what it handed out as {@code issue} of {@code tensor}: it was restarted. */
    public static boolean isTakenBack(Tensor tensor, int issue) {
        return FIELDS.isTakenBack(tensor, issue);
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

    /** Marks the contents, which were checked, as read-only until the tensor is handed out again. */
    public static void fix(Tensor tensor) {
        FIELDS.fix(tensor);
    }

    /** Returns whether the contents were checked and are not to be written to. */
    public static boolean isFixed(Tensor tensor) {
        return FIELDS.isFixed(tensor);
    }

    /** Sets whether backward passes compute a gradient of {@code tensor}. */
    public static void requireGradient(Tensor tensor, boolean required) {
        FIELDS.requireGradient(tensor, required);
    }

    /** Lets devices that other threads drive read the memory of {@code scope}, which is freed with the last of them. */
    public static void shareMemory(Scope scope, SharedMemory memory) {
        FIELDS.shareMemory(scope, memory);
    }

    /** Marks {@code tensor}, which is no view, as one of shared memory: while that is read-only, writes of it and its views are refused. */
    public static void share(Tensor tensor, SharedMemory memory) {
        FIELDS.share(tensor, memory);
    }

    /** Returns whether {@code tensor} lies in shared memory that is read-only now. */
    public static boolean isShared(Tensor tensor) {
        return FIELDS.isShared(tensor);
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
