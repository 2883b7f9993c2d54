package dev.chagres.recipe;

import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.model.QuantizerSite;
import org.jspecify.annotations.Nullable;

/**
 * Scales by what earlier steps have left, and writes the largest magnitude into the first row of the history.
 *
 * <p>Threading: the device's thread.
 */
final class DelayedQuantizer extends Quantizer {
    private final Tensor scale;
    private final Tensor amax;

    DelayedQuantizer(QuantizerSite site, RecipeState state, Tensor scale, Tensor amax) {
        super(site, Scaling.TENSOR, state);
        this.scale = scale;
        this.amax = amax;
    }

    @Override
    public boolean knowsScale() {
        return true;
    }

    @Override
    void enqueueScale(QuantizedTensor y, Recording recording) {
        y.scale(scale);
        if (recording == Recording.ON) {
            y.amax(amax);
        }
    }

    @Override
    void enqueueCast(
            Tensor x,
            QuantizedTensor y,
            @Nullable Tensor columnSums,
            Recording recording,
            Scope temporary,
            Stream stream) {
        enqueueScale(y, recording);
        castByOneScale(x, y, columnSums, stream);
    }
}
