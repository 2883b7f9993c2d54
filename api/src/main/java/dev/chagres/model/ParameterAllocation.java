package dev.chagres.model;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.internal.Checks;
import java.util.List;
import java.util.Set;
import org.jspecify.annotations.Nullable;

/**
 * Takes memory for parameters and begins them.
 *
 * <p>Threading: the device's thread.
 */
final class ParameterAllocation {
    private ParameterAllocation() {}

    static Parameters allocate(
            Device device,
            ModelPlan plan,
            DType dtype,
            long seed,
            WeightStorage storage,
            @Nullable ParameterShard shard) {
        Checks.given("device", device);
        Checks.given("plan", plan);
        Checks.given("storage", storage);
        if (!Checks.given("dtype", dtype).isFloat()) {
            throw new IllegalArgumentException("dtype: expected FLOAT32, BFLOAT16 or FLOAT16, got " + dtype);
        }
        if (storage == WeightStorage.QUANTIZED && dtype == DType.FLOAT32) {
            throw new IllegalArgumentException("dtype: expected BFLOAT16 or FLOAT16 where weights are QUANTIZED, for"
                    + " products in eight bits give results of 16, got FLOAT32");
        }
        if (plan.groups().isEmpty()) {
            throw new IllegalArgumentException("plan: expected at least one parameter, got none");
        }
        for (List<Parameter> group : plan.groups().values()) {
            for (Parameter parameter : group) {
                if (parameter.hasMemory()) {
                    throw new IllegalStateException(
                            "parameter " + parameter.name() + " has memory already: close its Parameters first");
                }
            }
        }
        Scope scope = device.openScope();
        try {
            Set<Parameter> quantized = storage == WeightStorage.QUANTIZED ? QuantizedWeights.of(plan) : Set.of();
            ParameterLayout layout = new ParameterLayout(plan, dtype, quantized);
            Parameters parameters = new Parameters(scope, plan, dtype, layout, shard);
            parameters
                    .all()
                    .forEach(parameter -> parameter.keep(
                            quantized.contains(parameter) ? WeightStorage.QUANTIZED : WeightStorage.MODEL_TYPE));
            try (FirstWeights first = new FirstWeights(scope)) {
                parameters.all().forEach(parameter -> parameters.write(parameter, first, seed));
            }
            parameters.begun();
            return parameters;
        } catch (RuntimeException | Error failure) {
            scope.close();
            throw failure;
        }
    }
}
