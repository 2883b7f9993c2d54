package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.QuantizedChecks;
import dev.chagres.internal.memory.BasicTensor;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.internal.memory.Workspace;
import java.lang.foreign.MemorySegment;

/**
 * The call of {@code nvte_fp8_transpose_dbias}: TE reads the rowwise data of one tensor and writes the columnwise data as rowwise data of a
 * second handle, of which each device keeps one. The workspace size of the last shape is cached.
 *
 * <p>Threading: the device's thread.
 */
final class Fp8TransposeDbias implements AutoCloseable {
    private static final DeviceState.Attachment<Fp8TransposeDbias> ATTACHMENT =
            new DeviceState.Attachment<>(Fp8TransposeDbias::new);

    /** Rows and columns that the kernel takes at once. */
    private static final int AT_ONCE = 8;

    private final BasicTensor description;
    private final MemorySegment transposed;
    private long rows = -1;
    private long columns;
    private long bytes;

    private Fp8TransposeDbias(DeviceState device) {
        description = device.basicTensor();
        transposed = description.create();
    }

    static Fp8TransposeDbias of(Stream stream) {
        return Inside.state(stream).get(ATTACHMENT);
    }

    static void check(QuantizedTensor gradient, Tensor dbias, Stream stream) {
        QuantizedChecks.on(stream, "gradient", gradient);
        QuantizedChecks.requireTensorScaling("gradient", gradient, "TE transposes no blocks");
        Tensor rowwise = QuantizedChecks.requireRowwise("gradient", gradient, "that is what is transposed");
        Tensor columnwise = QuantizedChecks.requireColumnwise("gradient", gradient, "that is what is written");
        if (gradient.rows() % AT_ONCE != 0 || gradient.columns() % AT_ONCE != 0) {
            throw new IllegalArgumentException("gradient: expected multiples of " + AT_ONCE + " rows and columns, which"
                    + " TE's kernel takes at once, got " + QuantizedChecks.describe(gradient) + "; pad it with zeros");
        }
        Checks.aligned("gradient", rowwise);
        Checks.aligned("gradient", columnwise);
        Checks.writable("gradient", columnwise);
        Checks.apart("the gradient's columnwise data", columnwise, "the gradient's rowwise data", rowwise);
        Checks.floats(stream, "dbias", dbias);
        Checks.vector(stream, "dbias", dbias, dbias.dtype(), gradient.columns());
        Checks.aligned("dbias", dbias);
        Checks.writable("dbias", dbias);
        QuantizedChecks.apart("dbias", dbias, "gradient", gradient);
    }

    /** Enqueues the kernels for checked tensors with elements. */
    void run(QuantizedTensor gradient, Tensor dbias, Stream stream) {
        Tensor columnwise = gradient.columnwise();
        Tensor scaleInverse = gradient.rowwiseScaleInverse();
        if (columnwise == null || scaleInverse == null) {
            throw new IllegalStateException("gradient " + QuantizedChecks.describe(gradient) + " was not checked");
        }
        description
                .at(columnwise.address(), gradient.dtype().code())
                .matrix(gradient.columns(), gradient.rows())
                .writeTo(transposed);
        description
                .at(scaleInverse.address(), DType.FLOAT32.code())
                .vector(1)
                .writeTo(transposed, TransformerEngine.kNVTERowwiseScaleInv());
        Workspace workspace = Inside.workspace(stream);
        if (gradient.rows() != rows || gradient.columns() != columns) {
            call(gradient, dbias, workspace.asking(), stream);
            rows = gradient.rows();
            columns = gradient.columns();
            bytes = workspace.asked();
        }
        call(gradient, dbias, workspace.provided(bytes), stream);
    }

    private void call(QuantizedTensor gradient, Tensor dbias, MemorySegment workspace, Stream stream) {
        Status.te(
                TransformerEngine.te_fp8_transpose_dbias(
                        gradient.handle(), transposed, dbias.handle(), workspace, stream.handle()),
                "te_fp8_transpose_dbias");
    }

    @Override
    public void close() {
        TransformerEngine.te_destroy_tensor(transposed);
    }
}
