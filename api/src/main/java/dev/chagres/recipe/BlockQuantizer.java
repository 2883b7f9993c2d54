package dev.chagres.recipe;

import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.parameter.QuantizerSite;
import dev.chagres.te.Cast;
import dev.chagres.te.QuantizationConfig;
import org.jspecify.annotations.Nullable;

/**
 * Scales each block by its amax.
 *
 * <p>Threading: the device's thread.
 */
final class BlockQuantizer extends Quantizer {
    private final QuantizationConfig config;

    BlockQuantizer(QuantizerSite site, Scaling scaling, RecipeState state, QuantizationConfig config) {
        super(site, scaling, state);
        this.config = config;
    }

    @Override
    void enqueueCast(
            Tensor x,
            QuantizedTensor y,
            @Nullable Tensor columnSums,
            AmaxRecording recording,
            Scope temporary,
            Stream stream) {
        Cast.quantize(x, y, config, stream);
    }
}
