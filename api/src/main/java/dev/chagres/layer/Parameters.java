package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.internal.Transfer;
import java.util.List;

/**
 * The memory of a model's parameters: one flat buffer of weights and one of FLOAT32 gradients, in which every parameter is
 * a view. Parameters that decay come first, so that an optimizer works on two ranges, whatever the number of parameters.
 *
 * <p>Threading: the device's thread.
 */
public final class Parameters implements AutoCloseable {
    /** Elements to whose multiple every parameter is aligned: 32 bytes of 16-bit numbers. */
    private static final long ALIGNMENT = 16;

    private final Scope scope;
    private final List<Parameter> all;
    private final Tensor weights;
    private final Tensor gradients;
    private final long decayedCount;

    private Parameters(Scope scope, List<Parameter> all, DType dtype, long decayedCount, long count) {
        this.scope = scope;
        this.all = all;
        this.decayedCount = decayedCount;
        weights = scope.tensor(dtype, count);
        gradients = scope.tensor(DType.FLOAT32, count);
    }

    /**
     * Takes memory for everything in {@code plan} and begins every parameter as it was declared. Gradients begin as 0.
     *
     * @param dtype type of the weights: FLOAT32, BFLOAT16 or FLOAT16
     * @param seed equal seeds give equal weights
     * @throws IllegalArgumentException when the type is no float, the plan is empty, or a parameter is larger than a Java
     *     array although it does not begin as zeros
     * @throws IllegalStateException when a parameter has memory already
     */
    public static Parameters allocate(Device device, ParameterPlan plan, DType dtype, long seed) {
        if (!dtype.isFloat()) {
            throw new IllegalArgumentException("dtype: expected FLOAT32, BFLOAT16 or FLOAT16, got " + dtype);
        }
        List<Parameter> all = List.copyOf(plan.parameters());
        if (all.isEmpty()) {
            throw new IllegalArgumentException("plan: expected at least one parameter, got none");
        }
        long decayed = 0;
        long rest = 0;
        for (Parameter parameter : all) {
            if (parameter.shape().count() > Transfer.MAX_ARRAY_LENGTH
                    && !(parameter.initializer() instanceof Initializer.Zeros)) {
                throw new IllegalArgumentException("plan: expected at most " + Transfer.MAX_ARRAY_LENGTH
                        + " elements in a parameter that does not begin as zeros, got " + parameter);
            }
            if (parameter.hasMemory()) {
                throw new IllegalStateException(
                        "parameter " + parameter.name() + " has memory already: close its Parameters first");
            }
            if (parameter.decays()) {
                decayed += padded(parameter);
            } else {
                rest += padded(parameter);
            }
        }
        Scope scope = device.openScope();
        try {
            Parameters parameters = new Parameters(scope, all, dtype, decayed, decayed + rest);
            parameters.place(seed);
            return parameters;
        } catch (RuntimeException | Error failure) {
            scope.close();
            throw failure;
        }
    }

    private void place(long seed) {
        weights.zero(scope.stream());
        gradients.zero(scope.stream());
        long[] next = {0, decayedCount};
        long number = 0;
        for (Parameter parameter : all) {
            int range = parameter.decays() ? 0 : 1;
            parameter.place(view(weights, next[range], parameter), view(gradients, next[range], parameter));
            next[range] += padded(parameter);
            number++;
            if (!(parameter.initializer() instanceof Initializer.Zeros)) {
                float[] values = new float[(int) parameter.shape().count()];
                parameter.initializer().fill(values, seed * 0x9E3779B97F4A7C15L + number);
                parameter.weight().set(scope.stream(), values);
            }
        }
    }

    private Tensor view(Tensor flat, long offset, Parameter parameter) {
        Shape shape = parameter.shape();
        return switch (shape.rank()) {
            case 1 -> scope.view(flat, offset, shape.size(0));
            case 2 -> scope.view(flat, offset, shape.size(0), shape.size(1));
            case 3 -> scope.view(flat, offset, shape.size(0), shape.size(1), shape.size(2));
            case 4 -> scope.view(flat, offset, shape.size(0), shape.size(1), shape.size(2), shape.size(3));
            default -> throw new IllegalArgumentException(parameter + ": expected 1 to 4 dimensions");
        };
    }

    private static long padded(Parameter parameter) {
        return (parameter.shape().count() + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }

    /** Returns the parameters in the order of their declaration. */
    public List<Parameter> all() {
        return all;
    }

    /** Returns all weights as one vector; elements between parameters are 0 and stay so. */
    public Tensor weights() {
        return weights;
    }

    /** Returns all gradients as one vector, FLOAT32, in the order of the weights. */
    public Tensor gradients() {
        return gradients;
    }

    /** Returns how many elements from the first on belong to parameters that decay. */
    public long decayedCount() {
        return decayedCount;
    }

    /** Returns the number of elements of all parameters, without alignment. */
    public long count() {
        return all.stream().mapToLong(p -> p.shape().count()).sum();
    }

    /** Returns the scope that owns the memory. */
    public Scope scope() {
        return scope;
    }

    /** Frees weights and gradients. A second call does nothing. */
    @Override
    public void close() {
        scope.close();
    }
}
