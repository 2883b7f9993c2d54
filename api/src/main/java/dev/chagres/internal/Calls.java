package dev.chagres.internal;

/**
 * The configuration objects of TE calls on one device, made once and reused by every call.
 *
 * <p>Threading: the device's thread.
 */
public final class Calls implements AutoCloseable {
    private final MatrixProduct matrixProduct;
    private final Attention attention;

    Calls(DeviceState device) {
        matrixProduct = new MatrixProduct(device);
        attention = new Attention(device);
    }

    /** Returns the matrix products of a linear layer. */
    public MatrixProduct matrixProduct() {
        return matrixProduct;
    }

    /** Returns fused attention. */
    public Attention attention() {
        return attention;
    }

    @Override
    public void close() {
        attention.close();
        matrixProduct.close();
    }
}
