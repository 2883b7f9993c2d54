package dev.chagres;

import dev.chagres.internal.memory.ScopeState;
import dev.chagres.internal.memory.Turns;
import java.util.ArrayList;
import java.util.List;

/**
 * The tensor objects that a scope hands out, in their order. Each place in the order has several, which restarts hand out in turn: a step
 * makes no garbage, and an object of an earlier step stays closed until its turn comes again.
 *
 * <p>The objects of one place share Transformer Engine's handle, of which a process has a limited number: only one of them is live.
 *
 * <p>Threading: the device's thread.
 */
final class IssuedTensors {
    private final ScopeState state;
    private final Turns<List<Tensor>> tensors = new Turns<>(ArrayList::new);
    private final Turns<List<QuantizedTensor>> quantized = new Turns<>(ArrayList::new);
    private int cursor;
    private int cursorQuantized;

    IssuedTensors(ScopeState state) {
        this.state = state;
    }

    Tensor next() {
        List<Tensor> own = tensors.present();
        if (cursor == own.size()) {
            // Those of all turns, so that the steps after this one make none.
            TensorHandle handle = new TensorHandle();
            tensors.forEach(list -> list.add(new Tensor(state, handle)));
        }
        return own.get(cursor++);
    }

    QuantizedTensor nextQuantized() {
        List<QuantizedTensor> own = quantized.present();
        if (cursorQuantized == own.size()) {
            QuantizedHandles handles = new QuantizedHandles(state.device());
            quantized.forEach(list -> list.add(new QuantizedTensor(state, handles)));
        }
        return own.get(cursorQuantized++);
    }

    /** Begins again with the first place, and the next object of each. */
    void restart() {
        tensors.next();
        quantized.next();
        cursor = 0;
        cursorQuantized = 0;
    }

    /** Frees the objects' handles of Transformer Engine. */
    void destroyHandles() {
        tensors.present().forEach(Tensor::destroyHandle);
        quantized.forEach(list -> list.forEach(QuantizedTensor::destroy));
    }
}
