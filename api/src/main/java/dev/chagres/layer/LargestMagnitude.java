package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.pass.Pass;
import dev.chagres.recipe.AmaxRecording;
import dev.chagres.recipe.Quantizer;
import dev.chagres.te.Cast;
import dev.chagres.te.TensorScale;

/**
 * Records amaxes of kernels that overwrite an amax, where casts keep a larger one: products of cuBLASLt that cast their result, and attention
 * of cuDNN. Without more, the last micro-batch of a step would decide the scales of the next step alone.
 *
 * <p>Threading: the device's thread.
 */
final class LargestMagnitude {
    private LargestMagnitude() {}

    /** Enqueues {@code amax = max(amax, found)}: a cast of {@code found}, FLOAT32 [1], whose result is not read. */
    static void raise(Tensor amax, Tensor found, Tensor scale, DType dtype, Pass pass) {
        Scope temporary = pass.temporary();
        QuantizedTensor unread = temporary
                .quantized(Scaling.TENSOR, dtype, 1, 1)
                .allocateRowwise(temporary)
                .scale(scale)
                .amax(amax);
        Cast.quantize(temporary.view(found, 0, 1, 1), unread, pass.stream());
    }

    /** If the pass records: raises the amax of a place to that which a kernel has written where none is recorded. */
    static void raise(Quantizer quantizer, Pass pass) {
        if (pass.recording() == AmaxRecording.ON) {
            TensorScale recorded = quantizer.tensorScale(AmaxRecording.ON);
            Tensor found = quantizer.tensorScale(AmaxRecording.OFF).amax();
            raise(recorded.amax(), found, recorded.scale(), quantizer.dtype(), pass);
        }
    }
}
