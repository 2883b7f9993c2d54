package dev.chagres.recipe;

import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.parameter.QuantizerSite;
import dev.chagres.te.TensorScale;
import org.jspecify.annotations.Nullable;

/**
 * Uses the scale from earlier steps, and records the amax in the first row of the history.
 *
 * <p>Threading: the device's thread.
 */
final class DelayedQuantizer extends Quantizer {
    private final TensorScale recorded;
    private final TensorScale unrecorded;

    DelayedQuantizer(QuantizerSite site, RecipeState state, TensorScale recorded, Tensor nobodyReads) {
        super(site, Scaling.TENSOR, state);
        this.recorded = recorded;
        unrecorded = new TensorScale(recorded.scale(), recorded.scaleInverse(), nobodyReads);
    }

    @Override
    TensorScale knownScale(AmaxRecording recording) {
        return recording == AmaxRecording.ON ? recorded : unrecorded;
    }

    @Override
    public boolean knowsScale() {
        return true;
    }

    @Override
    void enqueueScale(QuantizedTensor y, AmaxRecording recording) {
        y.scale(recorded.scale());
        if (recording == AmaxRecording.ON) {
            y.amax(recorded.amax());
        }
    }

    @Override
    void enqueueCast(
            Tensor x,
            QuantizedTensor y,
            @Nullable Tensor columnSums,
            AmaxRecording recording,
            Scope temporary,
            Stream stream) {
        enqueueScale(y, recording);
        castByOneScale(x, y, columnSums, stream);
    }
}
