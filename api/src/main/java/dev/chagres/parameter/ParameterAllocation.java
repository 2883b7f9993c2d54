package dev.chagres.parameter;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.memory.Closing;
import dev.chagres.parameter.ParameterShard.Part;
import dev.chagres.parameter.QuantizerSite.Role;
import dev.chagres.parameter.ShardRanges.FirstWeights;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.function.Function;
import java.util.function.LongFunction;
import org.jspecify.annotations.Nullable;

/**
 * Allocates parameters and writes their initial values.
 *
 * <p>Threading: the device's thread.
 */
final class ParameterAllocation {
    /** What weights are before anything is loaded. */
    enum Beginning {
        DRAWN,
        ZEROS
    }

    private ParameterAllocation() {}

    /** Allocates the part of a model that {@code shard} keeps; its weights in {@code weightMemory}, unless that is null. */
    static Parameters allocate(
            Device device,
            ModelPlan plan,
            DType dtype,
            long seed,
            ParameterShard shard,
            @Nullable LongFunction<Scope> weightMemory) {
        int parts = Checks.given("shard", shard).updated().count();
        if (Checks.given("plan", plan).ranks() % parts != 0) {
            throw new IllegalArgumentException("plan: expected one padded for " + parts + " ranks, got " + plan.ranks()
                    + "; call plan.padGroups(" + parts + ")");
        }
        if (plan.productGradients() != DType.FLOAT32) {
            throw new IllegalArgumentException("plan: " + summed(plan.productGradients()));
        }
        return allocate(device, plan, dtype, seed, WeightStorage.MODEL_TYPE, shard, weightMemory, Beginning.DRAWN);
    }

    /** Says that ranks sum gradients, but not those of another type. */
    static String summed(DType gradients) {
        return "expected FLOAT32 gradients, which ranks sum, got those of products in " + gradients
                + "; call plan.productGradients(DType.FLOAT32) and choose the strategy's reduceType";
    }

    static Parameters allocate(
            Device device,
            ModelPlan plan,
            DType dtype,
            long seed,
            WeightStorage storage,
            @Nullable ParameterShard shard,
            @Nullable LongFunction<Scope> weightMemory,
            Beginning beginning) {
        check(device, plan, dtype, storage);
        plan.claim().claim(device);
        ensureNoMemory(plan);
        Scope scope = device.openScope();
        Scope weightScope = scope;
        Parameters parameters = null;
        try {
            Set<Parameter> quantized = storage == WeightStorage.MODEL_TYPE ? Set.of() : QuantizedStorage.of(plan);
            plan.ofModel().stream() // other stages' too, whose types this rank tells when the state is saved
                    .filter(parameter -> !parameter.hasMemory())
                    .forEach(parameter ->
                            parameter.keep(quantized.contains(parameter) ? storage : WeightStorage.MODEL_TYPE));
            ParameterLayout layout = new ParameterLayout(plan, dtype);
            weightScope =
                    weightMemory == null ? scope : weightMemory.apply(ParameterVectors.weightBytes(layout, shard));
            ParameterVectors vectors = new ParameterVectors(scope, weightScope, layout, shard);
            parameters = new Parameters(plan, dtype, layout, vectors, seed);
            place(parameters, layout, vectors);
            if (beginning == Beginning.DRAWN) {
                draw(parameters, seed);
            }
            vectors.countChanges();
            plan.claim().allocated(parameters);
            return parameters;
        } catch (RuntimeException | Error failure) {
            if (parameters != null) {
                parameters.close();
            }
            scope.close();
            weightScope.close();
            throw failure;
        }
    }

    /**
     * Makes parameters that are frozen and have no memory of their own.
     *
     * @param lent opens the weights, as a function of the parameter
     */
    static Parameters borrow(
            Device device,
            ModelPlan plan,
            DType dtype,
            Function<List<AutoCloseable>, Function<Parameter, Tensor>> lent) {
        check(device, plan, dtype, WeightStorage.MODEL_TYPE);
        plan.claim().claim(device);
        ensureNoMemory(plan);
        Scope scope = device.openScope();
        List<AutoCloseable> opened = new ArrayList<>(List.of(scope));
        try {
            for (Parameter parameter : plan.ofModel()) {
                parameter.freeze();
                parameter.keep(WeightStorage.MODEL_TYPE);
            }
            ParameterLayout layout = new ParameterLayout(plan, dtype);
            ParameterVectors vectors = new ParameterVectors(scope, lent.apply(opened));
            Parameters parameters = new Parameters(plan, dtype, layout, vectors, 0);
            opened.add(parameters);
            opened.subList(1, opened.size() - 1).forEach(parameters::adopt);
            place(parameters, layout, vectors);
            plan.claim().allocated(parameters);
            return parameters;
        } catch (RuntimeException | Error failure) {
            try {
                Closing.newestFirst(opened);
            } catch (RuntimeException later) {
                failure.addSuppressed(later);
            }
            throw failure;
        }
    }

    private static void check(Device device, ModelPlan plan, DType dtype, WeightStorage storage) {
        Checks.given("device", device, "plan", plan, "storage", storage);
        if (!Checks.given("dtype", dtype).isFloat()) {
            throw new IllegalArgumentException("dtype: expected FLOAT32, BFLOAT16 or FLOAT16, got " + dtype);
        }
        if (storage != WeightStorage.MODEL_TYPE && dtype == DType.FLOAT32) {
            throw new IllegalArgumentException("dtype: expected BFLOAT16 or FLOAT16 where weights are " + storage
                    + ", for" + " products in eight bits give results of 16, got FLOAT32");
        }
        if (plan.groups().isEmpty()) {
            throw new IllegalArgumentException("plan: expected at least one parameter, got none");
        }
        plan.checkChoice();
    }

    private static void ensureNoMemory(ModelPlan plan) {
        for (List<Parameter> group : plan.groups().values()) {
            for (Parameter parameter : group) {
                if (parameter.hasMemory()) {
                    throw new IllegalStateException(
                            "parameter " + parameter.name() + " has memory already: close its Parameters first");
                }
            }
        }
    }

    /** Sets the group and place of each parameter. */
    private static void place(Parameters parameters, ParameterLayout layout, ParameterVectors vectors) {
        List<FlatGroup> groups = parameters.access().groups();
        for (int i = 0; i < groups.size(); i++) {
            int group = i;
            groups.get(i).members().forEach(parameter -> parameter.group(group));
        }
        parameters.all().stream()
                .filter(Parameter::isQuantizedOnly)
                .forEach(parameter -> parameter.awaitQuantizers(parameters));
        layout.places.forEach((parameter, place) -> {
            parameter.lie(place);
            if (vectors.hasWholeWeights()) {
                parameter.place(parameters, vectors.weight(parameter, place), vectors.gradient(parameter, place));
            }
        });
    }

    private static void draw(Parameters parameters, long seed) {
        try (FirstWeights first = new FirstWeights(parameters.scope())) {
            for (Parameter parameter : parameters.all()) {
                if (!parameter.isQuantizedOnly()) {
                    write(parameter, parameters.access(), first, seed);
                }
            }
        }
    }

    /** Writes the initial values of this rank's part of {@code parameter}. */
    private static void write(Parameter parameter, ParameterAccess sharing, FirstWeights first, long seed) {
        ParameterShard shard = sharing.shard();
        Part part = shard == null ? null : shard.weights();
        if (part == null) {
            first.write(parameter, seed);
            return;
        }
        for (FlatParameter piece : sharing.groups().get(parameter.group()).pieces()) {
            if (piece.holds(parameter)) {
                ShardRanges.write(parameter, piece, part, sharing.vector(piece.dtype()), first, seed);
            }
        }
    }

    /** Chooses the weights of a plan that are kept {@link WeightStorage#QUANTIZED}. */
    private static final class QuantizedStorage {
        private QuantizedStorage() {}

        /** Returns the weights that only products read, and those in eight bits. */
        static Set<Parameter> of(ModelPlan plan) {
            Set<Parameter> weights = new HashSet<>();
            for (QuantizerSite site : plan.quantizers()) {
                if (site.role() == Role.WEIGHT && isOwn(site) && site.fits()) {
                    weights.add(site.weight());
                }
            }
            return weights;
        }

        /** Returns whether the layer that multiplies has declared the weight, without a type of its own. */
        private static boolean isOwn(QuantizerSite site) {
            return site.weight().ownType() == null
                    && site.name().equals(site.weight().name())
                    && !site.isInHead();
        }
    }
}
