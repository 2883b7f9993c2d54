package dev.chagres.internal.memory;

import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;
import java.util.function.Supplier;

/**
 * {@value #COUNT} objects that are used in turn, for what callers keep references to and must make no garbage: a reference from an earlier
 * turn is to another object than the present one until all have had their turn.
 *
 * <p>Threading: the device's thread.
 *
 * @param <T> the type of the objects
 */
public final class Turns<T> {
    /** A prime: a program that looks again after 2, 4, 5, 8, 10 or 100 turns does not meet the object that it had. */
    public static final int COUNT = 7;

    private final List<T> all = new ArrayList<>(COUNT);
    private int turn;

    /** Makes the objects; the first has its turn. */
    public Turns(Supplier<? extends T> maker) {
        for (int i = 0; i < COUNT; i++) {
            all.add(maker.get());
        }
    }

    /** Returns the object that has its turn. */
    public T present() {
        return all.get(turn);
    }

    /** Gives the next object its turn, and returns it. */
    public T next() {
        turn = turn + 1 == COUNT ? 0 : turn + 1;
        return present();
    }

    /** Does something with each object. */
    public void forEach(Consumer<? super T> action) {
        all.forEach(action);
    }
}
