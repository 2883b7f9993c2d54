package dev.chagres.pass;

import dev.chagres.pass.PassObserver.Direction;
import java.util.ArrayList;
import java.util.List;

/**
 * The observers of a pass: notified of the beginning of a call in the order of registration, and of its end in the reverse order.
 *
 * <p>Threading: the device's thread.
 */
final class Observers {
    private final List<PassObserver> all = new ArrayList<>();

    void add(PassObserver observer) {
        all.add(observer);
    }

    void remove(PassObserver observer) {
        all.remove(observer);
    }

    boolean isEmpty() {
        return all.isEmpty();
    }

    /** If one of them fails, those before it are notified that the call has failed. */
    void entering(Layer layer, Direction direction, Pass pass) {
        for (int i = 0; i < all.size(); i++) {
            try {
                all.get(i).entering(layer, direction, pass);
            } catch (RuntimeException | Error failure) {
                failed(i, layer, direction, pass);
                throw failure;
            }
        }
    }

    void left(Layer layer, Direction direction, Pass pass, long keptBytes) {
        for (int i = all.size() - 1; i >= 0; i--) {
            all.get(i).left(layer, direction, pass, keptBytes);
        }
    }

    void failed(Layer layer, Direction direction, Pass pass) {
        failed(all.size(), layer, direction, pass);
    }

    private void failed(int count, Layer layer, Direction direction, Pass pass) {
        for (int i = count - 1; i >= 0; i--) {
            all.get(i).failed(layer, direction, pass);
        }
    }
}
