package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.parameter.CounterRandom;
import java.util.SplittableRandom;

/** Tensors of attention that are the same on every rank. */
public final class ScoreTensors {
    private ScoreTensors() {}

    /** Returns normal numbers that follow from {@code name}. */
    public static Tensor drawn(Scope scope, DType dtype, String name, long... sizes) {
        Tensor tensor = scope.tensor(dtype, new Shape(sizes));
        float[] values = new float[(int) tensor.count()];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) CounterRandom.normal(CounterRandom.key(3, name), i);
        }
        tensor.set(scope.stream(), values);
        return tensor;
    }

    /** Returns a mask [batch, heads, longest, longest] that hides a score where a random byte is above {@code limit}. */
    public static Tensor mask(Scope scope, long batch, long heads, long longest, int limit) {
        Tensor tensor = scope.tensor(DType.BYTE, batch, heads, longest, longest);
        byte[] values = new byte[(int) tensor.count()];
        new SplittableRandom(9).nextBytes(values);
        for (int i = 0; i < values.length; i++) {
            values[i] = (byte) (values[i] > limit ? 1 : 0);
        }
        tensor.set(scope.stream(), values);
        return tensor;
    }
}
