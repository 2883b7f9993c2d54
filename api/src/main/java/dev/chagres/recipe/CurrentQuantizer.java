package dev.chagres.recipe;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.parameter.QuantizerSite;
import dev.chagres.te.QuantizationConfig;
import dev.chagres.te.RecipeUpdates;
import org.jspecify.annotations.Nullable;

/**
 * Scales by the tensor's own amax.
 *
 * <p>Threading: the device's thread.
 */
final class CurrentQuantizer extends Quantizer {
    private final QuantizationConfig config;

    CurrentQuantizer(QuantizerSite site, RecipeState state, QuantizationConfig config) {
        super(site, Scaling.TENSOR, state);
        this.config = config;
    }

    @Override
    public boolean scalesByAmax() {
        return true;
    }

    @Override
    void enqueueAmax(Tensor x, QuantizedTensor y, Scope temporary, Stream stream) {
        y.amax(temporary.tensor(DType.FLOAT32, 1)).scale(temporary.tensor(DType.FLOAT32, 1));
        RecipeUpdates.computeAmax(x, y, config, stream);
    }

    @Override
    void enqueueCast(
            Tensor x,
            QuantizedTensor y,
            @Nullable Tensor columnSums,
            AmaxRecording recording,
            Scope temporary,
            Stream stream) {
        if (y.amax() == null) {
            enqueueAmax(x, y, temporary, stream);
        } else {
            y.scale(temporary.tensor(DType.FLOAT32, 1));
        }
        RecipeUpdates.computeScaleFromAmax(y, config, stream);
        castByOneScale(x, y, columnSums, stream);
    }
}
