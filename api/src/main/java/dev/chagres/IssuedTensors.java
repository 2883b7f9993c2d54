package dev.chagres;

import dev.chagres.internal.memory.ScopeState;
import java.util.ArrayList;
import java.util.List;

/**
 * The tensor objects of one scope, in the order in which they are handed out: the same ones in the same order after each restart.
 *
 * <p>Threading: the device's thread.
 */
final class IssuedTensors {
    private final ScopeState state;
    private final List<Tensor> tensors = new ArrayList<>();
    private final List<QuantizedTensor> quantized = new ArrayList<>();
    private int cursor;
    private int cursorQuantized;

    IssuedTensors(ScopeState state) {
        this.state = state;
    }

    Tensor next() {
        if (cursor == tensors.size()) {
            tensors.add(new Tensor(state));
        }
        return tensors.get(cursor++);
    }

    QuantizedTensor nextQuantized() {
        if (cursorQuantized == quantized.size()) {
            quantized.add(new QuantizedTensor(state));
        }
        return quantized.get(cursorQuantized++);
    }

    /** Begins again with the first ones. */
    void restart() {
        cursor = 0;
        cursorQuantized = 0;
    }

    /** Frees the objects' handles of Transformer Engine. */
    void destroyHandles() {
        tensors.forEach(Tensor::destroyHandle);
        quantized.forEach(QuantizedTensor::destroy);
    }
}
