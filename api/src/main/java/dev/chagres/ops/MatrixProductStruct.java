package dev.chagres.ops;

import dev.chagres.QuantizedTensor;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.bindings.ops.OpsMatrixProduct;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.internal.memory.Multiprocessors;
import dev.chagres.internal.memory.WorkListener;
import dev.chagres.internal.memory.Workspace;
import dev.chagres.te.Gemm.Accumulator;
import dev.chagres.te.Gemm.Transpose;
import dev.chagres.te.Output;
import java.lang.foreign.MemorySegment;
import org.jspecify.annotations.Nullable;

/**
 * The native struct of a matrix product, made once per device and filled anew by each call.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code OpsMatrixProduct} in {@code ops.h}.
 */
final class MatrixProductStruct {
    private static final DeviceState.Attachment<MatrixProductStruct> ATTACHMENT =
            new DeviceState.Attachment<>(MatrixProductStruct::new);

    private final MemorySegment segment;
    private final Multiprocessors multiprocessors;
    private final DeviceState device;
    /** What the device's listener is told of the product. */
    private WorkListener.Form told = WorkListener.Form.GRADIENT;

    private long inner;
    private int bits;

    private MatrixProductStruct(DeviceState device) {
        segment = OpsMatrixProduct.allocate(device.arena());
        multiprocessors = device.multiprocessors();
        this.device = device;
    }

    /** Returns the device's struct with checked operands that are not FP8, and no epilogue. */
    static MatrixProductStruct of(MatrixProduct form, Tensor a, Tensor b, long inner, Stream stream) {
        MatrixProductStruct product = Inside.state(stream).get(ATTACHMENT);
        MemorySegment segment = product.segment;
        product.told(form);
        product.matrices(a, form.transA() == Transpose.YES ? 1 : 0, b, form.transB() == Transpose.YES ? 1 : 0, inner);
        OpsMatrixProduct.a_scaling(segment, 0);
        OpsMatrixProduct.b_scaling(segment, 0);
        return product;
    }

    /** Returns the device's struct with checked operands of FP8, of which it takes the data whose rows are summed, and no epilogue. */
    static MatrixProductStruct of(
            MatrixProduct form,
            QuantizedTensor a,
            QuantizedTensor b,
            long inner,
            Accumulator accumulator,
            Stream stream) {
        MatrixProductStruct product = Inside.state(stream).get(ATTACHMENT);
        MemorySegment segment = product.segment;
        boolean plainA = form.transA() == Transpose.NO;
        boolean plainB = form.transB() == Transpose.NO;
        Tensor readA = Checks.given("a", plainA ? a.rowwise() : a.columnwise());
        Tensor readB = Checks.given("b", plainB ? b.columnwise() : b.rowwise());
        Tensor scaleA = Checks.given("a", plainA ? a.rowwiseScaleInverse() : a.columnwiseScaleInverse());
        Tensor scaleB = Checks.given("b", plainB ? b.columnwiseScaleInverse() : b.rowwiseScaleInverse());
        product.told(form);
        product.matrices(readA, 0, readB, 1, inner);
        OpsMatrixProduct.a_scale_inverse(segment, Inside.address(scaleA));
        OpsMatrixProduct.b_scale_inverse(segment, Inside.address(scaleB));
        OpsMatrixProduct.a_scaling(segment, a.scaling().code());
        OpsMatrixProduct.b_scaling(segment, b.scaling().code());
        OpsMatrixProduct.accumulator(
                segment, accumulator == Accumulator.FAST ? Ops.OPS_ACCUMULATOR_FAST() : Ops.OPS_ACCUMULATOR_SPLIT());
        return product;
    }

    private void told(MatrixProduct form) {
        boolean forward = form.transA() == Transpose.NO && form.transB() == Transpose.YES;
        told = forward ? WorkListener.Form.FORWARD : WorkListener.Form.GRADIENT;
    }

    private void matrices(Tensor a, int transA, Tensor b, int transB, long inner) {
        this.inner = inner;
        bits = Byte.SIZE * a.dtype().byteSize();
        OpsMatrixProduct.a(segment, Inside.address(a));
        OpsMatrixProduct.b(segment, Inside.address(b));
        OpsMatrixProduct.a_dtype(segment, a.dtype().code());
        OpsMatrixProduct.b_dtype(segment, b.dtype().code());
        OpsMatrixProduct.trans_a(segment, transA);
        OpsMatrixProduct.trans_b(segment, transB);
        OpsMatrixProduct.k(segment, inner);
        OpsMatrixProduct.accumulate(segment, 0);
        OpsMatrixProduct.epilogue(segment, Ops.OPS_EPILOGUE_NONE());
        OpsMatrixProduct.multiprocessors(segment, multiprocessors.ofProducts());
    }

    MatrixProductStruct output(Output output) {
        OpsMatrixProduct.accumulate(segment, output.beta());
        return this;
    }

    /** Says what happens behind the product: an {@code OPS_EPILOGUE}, and which tensors it reads or writes. */
    MatrixProductStruct epilogue(int epilogue, @Nullable Tensor bias, @Nullable Tensor preGelu) {
        OpsMatrixProduct.bias(segment, Checks.addressOrNull(bias));
        OpsMatrixProduct.pre_gelu(segment, Checks.addressOrNull(preGelu));
        OpsMatrixProduct.epilogue(segment, epilogue);
        return this;
    }

    /** Enqueues the product that was filled in. */
    void enqueue(Tensor d, ProductPlan plan, Stream stream) {
        WorkListener listener = device.workListener();
        if (listener != null) {
            listener.product(told, d.size(0), d.size(1), inner, bits);
        }
        Workspace workspace = Inside.workspace(stream);
        OpsMatrixProduct.workspace(segment, workspace.productAddress());
        OpsMatrixProduct.workspace_bytes(segment, workspace.productBytes());
        OpsMatrixProduct.d(segment, Inside.address(d));
        OpsMatrixProduct.d_dtype(segment, d.dtype().code());
        OpsMatrixProduct.m(segment, d.size(0));
        OpsMatrixProduct.n(segment, d.size(1));
        OpsMatrixProduct.plan(segment, plan.code());
        Status.ops(Ops.ops_matrix_product(segment, stream.handle()), "ops_matrix_product");
    }
}
