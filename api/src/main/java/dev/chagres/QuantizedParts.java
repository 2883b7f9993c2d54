package dev.chagres;

import dev.chagres.QuantizedHandles.QuantizedHandle;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.internal.memory.QuantizedPart;
import java.lang.foreign.MemorySegment;
import java.util.Arrays;
import org.jspecify.annotations.Nullable;

/**
 * The tensors that a {@link QuantizedTensor} is made of, by Transformer Engine's numbers, each as it was when it was set, and
 * the handles that describe them.
 *
 * <p>Threading: the device's thread.
 */
final class QuantizedParts {
    static final int ROWWISE = TransformerEngine.kNVTERowwiseData();
    static final int COLUMNWISE = TransformerEngine.kNVTEColumnwiseData();
    static final int SCALE = TransformerEngine.kNVTEScale();
    static final int AMAX = TransformerEngine.kNVTEAmax();
    static final int ROWWISE_SCALE_INVERSE = TransformerEngine.kNVTERowwiseScaleInv();
    static final int COLUMNWISE_SCALE_INVERSE = TransformerEngine.kNVTEColumnwiseScaleInv();

    private final DeviceState device;
    private final @Nullable Tensor[] parts = new Tensor[COLUMNWISE_SCALE_INVERSE + 1];
    /** The issue number of each part when it was set. */
    private final int[] issues = new int[parts.length];

    private final QuantizedHandles handles;

    QuantizedParts(DeviceState device, QuantizedHandles handles) {
        this.device = device;
        this.handles = handles;
    }

    void clear() {
        Arrays.fill(parts, null);
    }

    @Nullable
    Tensor get(int part) {
        return parts[part];
    }

    void set(int part, Tensor tensor) {
        parts[part] = tensor;
        issues[part] = tensor.issueNumber();
    }

    /** Returns whether each part lives and has not been handed out for something else. */
    boolean areLive() {
        boolean live = true;
        for (int i = 0; live && i < parts.length; i++) {
            Tensor part = parts[i];
            live = part == null || (part.isLive() && part.issueNumber() == issues[i]);
        }
        return live;
    }

    void ensureUsable(QuantizedTensor owner) {
        for (int i = 0; i < parts.length; i++) {
            Tensor part = parts[i];
            if (part != null) {
                if (part.isTakenBack(issues[i])) {
                    throw new IllegalStateException(owner + ": its " + QuantizedPart.name(i)
                            + " is closed, for its scope was restarted; set another one");
                }
                part.ensureUsable();
            }
        }
    }

    /** Returns the handle of these parts. */
    MemorySegment handle(Scaling scaling, DType dtype) {
        QuantizedHandle handle = handles.of(scaling);
        for (int i = 0; i < parts.length; i++) {
            // TE reads the type of the rowwise data even where that is absent.
            handle.set(i, parts[i], i == ROWWISE || i == COLUMNWISE ? dtype : DType.FLOAT32);
        }
        return handle.segment();
    }

    void destroyHandles() {
        handles.destroy();
    }

    /** Checks that {@code tensor} is a matrix of exactly this type and shape on this device. */
    void ensureMatrix(String argument, Tensor tensor, DType type, long outer, long inner) {
        ensureHere(argument, tensor);
        if (tensor.rank() != 2 || tensor.size(0) != outer || tensor.size(1) != inner || tensor.dtype() != type) {
            throw new IllegalArgumentException(
                    argument + ": expected " + type + "[" + outer + ", " + inner + "], got " + describe(tensor));
        }
    }

    /** Checks that {@code tensor} is one FP32 number on this device. */
    void ensureOne(String argument, Tensor tensor) {
        ensureHere(argument, tensor);
        if (tensor.rank() != 1 || tensor.size(0) != 1 || tensor.dtype() != DType.FLOAT32) {
            throw new IllegalArgumentException(argument + ": expected FLOAT32[1], got " + describe(tensor));
        }
    }

    /** Checks that {@code tensor} is what scales data of these sizes. */
    void ensureScaleInverse(Scaling scaling, Tensor tensor, long outer, long inner) {
        if (scaling == Scaling.TENSOR) {
            ensureOne("scaleInverse", tensor);
        } else {
            ensureMatrix(
                    "scaleInverse",
                    tensor,
                    DType.FLOAT32,
                    scaling.scaleInverseRows(outer, inner),
                    scaling.scaleInverseColumns(outer, inner));
        }
    }

    private void ensureHere(String argument, Tensor tensor) {
        if (tensor == null) {
            throw new NullPointerException(argument + ": expected a value, got null");
        }
        tensor.ensureUsable();
        if (tensor.device() != device) {
            String which = tensor.deviceIndex() == device.index() ? ", opened another time" : "";
            throw new IllegalArgumentException(argument + ": expected a tensor of device " + device.index() + ", got "
                    + describe(tensor) + " of device " + tensor.deviceIndex() + which);
        }
    }

    private static String describe(Tensor tensor) {
        return tensor.dtype() + tensor.shape().toString();
    }
}
