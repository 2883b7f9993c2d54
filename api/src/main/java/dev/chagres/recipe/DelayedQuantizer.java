package dev.chagres.recipe;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import org.jspecify.annotations.Nullable;

/**
 * Scales by what earlier steps have left, and writes the largest magnitude into the first row of the history.
 *
 * <p>Threading: the device's thread.
 */
final class DelayedQuantizer extends Quantizer {
    private final Tensor scale;
    private final Tensor amax;

    DelayedQuantizer(DType dtype, Tensor scale, Tensor amax) {
        super(Scaling.TENSOR, dtype);
        this.scale = scale;
        this.amax = amax;
    }

    @Override
    boolean knowsScale() {
        return true;
    }

    @Override
    void setScale(QuantizedTensor y, Recording recording) {
        y.scale(scale);
        if (recording == Recording.ON) {
            y.amax(amax);
        }
    }

    @Override
    void cast(
            Tensor x,
            QuantizedTensor y,
            @Nullable Tensor columnSums,
            Recording recording,
            Scope temporary,
            Stream stream) {
        setScale(y, recording);
        castByOneScale(x, y, columnSums, stream);
    }
}
