package dev.chagres.batch;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.optim.LossScaler;
import dev.chagres.te.MultiTensor;
import dev.chagres.te.TensorLists;

/**
 * The share of a micro-batch on the device, and its product with a loss scale.
 *
 * <p>Threading: the device's thread.
 */
final class DeviceShare implements AutoCloseable {
    private final Tensor share;
    private final Tensor scaled;
    /** The flag that the kernel sets for a share that is not finite, which never happens. */
    private final Tensor infinite;

    private final TensorLists lists;

    DeviceShare(Tensor share, Tensor scaled, Tensor infinite) {
        this.share = share;
        this.scaled = scaled;
        this.infinite = infinite;
        lists = TensorLists.of(new Tensor[] {share}, new Tensor[] {scaled});
    }

    Tensor share() {
        return share;
    }

    /** Enqueues the product with the present scale of {@code scaler}, and returns it. */
    Tensor scaled(LossScaler scaler, Stream stream) {
        MultiTensor.scaleTensor(infinite, lists, scaler.scale(), stream);
        return scaled;
    }

    @Override
    public void close() {
        lists.close();
    }
}
