package dev.chagres.besidete;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.io.Safetensors;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;

/** What both sides compute. */
interface DrawnCase {
    /** Returns the names of its options, which are counted. */
    List<String> options();

    /** Computes it and writes a file for {@code compare_with_te.py}. */
    void write(Device device, Path file);

    /** Writes a file: {@code layer} are the arguments of TE's constructor, {@code call} says the rest. */
    static void save(Device device, Path file, State.Builder state, String layer, String call) {
        Safetensors.save(file, state.build(), device.stream(), Map.of("layer", layer, "call", call));
    }

    static void addTo(State.Builder state, Parameters parameters) {
        for (Parameter parameter : parameters.all()) {
            state.tensor("weight." + parameter.name(), parameter.weight());
            state.tensor("gradient." + parameter.name(), parameter.gradient());
        }
    }

    static Tensor copy(Tensor tensor, Scope scope) {
        Tensor copy = scope.like(tensor);
        copy.copyFrom(scope.stream(), tensor);
        return copy;
    }

    static Tensor tensor(Scope scope, DType dtype, float[] values, long... sizes) {
        Tensor tensor = scope.tensor(dtype, Shape.of(sizes));
        tensor.set(scope.stream(), values);
        return tensor;
    }

    static float[] normal(SplittableRandom random, long count, float deviation) {
        float[] values = new float[Math.toIntExact(count)];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) (random.nextGaussian() * deviation);
        }
        return values;
    }
}
