package dev.chagres.internal;

import java.lang.foreign.MemorySegment;

/**
 * The configuration objects of native calls on one device, made once and reused by every call.
 *
 * <p>Threading: the device's thread.
 */
public final class Calls implements AutoCloseable {
    private final MatrixProduct matrixProduct;
    private final FusedAttention fusedAttention;
    private final TiledAttention tiledAttention;
    private final Norm norm;

    Calls(DeviceState device) {
        matrixProduct = new MatrixProduct(device);
        fusedAttention = new FusedAttention(device);
        tiledAttention = new TiledAttention(device);
        norm = new Norm(device);
    }

    /** Returns the matrix products of a linear layer. */
    public MatrixProduct matrixProduct() {
        return matrixProduct;
    }

    /** Returns fused attention. */
    public FusedAttention fusedAttention() {
        return fusedAttention;
    }

    /** Returns attention by our own kernels. */
    public TiledAttention tiledAttention() {
        return tiledAttention;
    }

    /** Returns the norms. */
    public Norm norm() {
        return norm;
    }

    /** Returns a live handle of no tensor: what TE takes for an absent argument. */
    public MemorySegment unset() {
        return fusedAttention.unset();
    }

    @Override
    public void close() {
        fusedAttention.close();
        matrixProduct.close();
    }
}
