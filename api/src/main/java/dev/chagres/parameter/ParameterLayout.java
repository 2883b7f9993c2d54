package dev.chagres.parameter;

import dev.chagres.DType;
import dev.chagres.parameter.ParameterRange.Decay;
import java.util.ArrayList;
import java.util.EnumMap;
import java.util.EnumSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * The memory layout of a plan's parameters: group by group; in a group first those with weight decay, then those without, then frozen ones.
 * Each type has its own vector. Gradients of trained parameters have the same order, in one vector or, where those that products write
 * have another type, in two.
 *
 * <p>Threading: immutable.
 */
final class ParameterLayout {
    /** Every parameter is aligned to a multiple of at least this many elements: 32 bytes of 16-bit numbers. */
    static final int ALIGNMENT = 16;

    private static final int NO_GRADIENT = -1;

    /**
     * First elements of one parameter.
     *
     * @param gradient in the order of all gradients
     * @param gradientType type of the gradient
     * @param ofType first element among gradients of that type
     */
    record Place(DType dtype, long weight, long gradient, DType gradientType, long ofType) {
        boolean isTrained() {
            return gradient != NO_GRADIENT;
        }
    }

    /** A {@link ParameterRange} before its vector has memory. */
    record Stretch(DType dtype, long weight, long gradient, DType gradientType, long ofType, long count, Decay decay) {
        private boolean endsWhere(Stretch next) {
            return dtype == next.dtype
                    && decay == next.decay
                    && gradientType == next.gradientType
                    && weight + count == next.weight
                    && gradient + count == next.gradient
                    && ofType + count == next.ofType;
        }

        /** Adds it behind {@code all}, to the last one where that ends. */
        void addTo(List<Stretch> all) {
            Stretch last = all.isEmpty() ? null : all.getLast();
            if (last != null && last.endsWhere(this)) {
                all.removeLast();
                all.add(new Stretch(
                        dtype, last.weight, last.gradient, gradientType, last.ofType, last.count + count, decay));
            } else {
                all.add(this);
            }
        }
    }

    /** The place of each parameter. */
    final Map<Parameter, Place> places = new LinkedHashMap<>();
    /** The elements of the weights of each type. */
    final Map<DType, Long> weightCounts = new EnumMap<>(DType.class);
    /** The ranges that optimizers update in the same way, in order. */
    final List<Stretch> stretches = new ArrayList<>();
    /** The groups, in order. */
    final List<FlatGroup> groups = new ArrayList<>();

    /** The elements of the gradients of each type; FLOAT32 always is among them. */
    final Map<DType, Long> gradientCounts = new EnumMap<>(Map.of(DType.FLOAT32, 0L));

    private long gradientCount;
    private final DType productGradients;
    /** Each parameter begins at a multiple of so many elements. */
    private final long ofParameter;

    /** Sets how each parameter is kept. */
    ParameterLayout(ModelPlan plan, DType modelType) {
        ofParameter = plan.alignment();
        productGradients = plan.productGradients();
        long alignment = ofParameter * plan.ranks();
        plan.groups().forEach((name, group) -> {
            long first = gradientCount;
            List<FlatParameter> pieces = new ArrayList<>();
            for (DType dtype : DType.values()) {
                List<Parameter> members = group.stream()
                        .filter(parameter -> !parameter.isQuantizedOnly() && typeOf(parameter, modelType) == dtype)
                        .toList();
                if (!members.isEmpty()) {
                    lay(dtype, members, alignment, pieces);
                }
            }
            groups.add(new FlatGroup(name, group, first, gradientCount - first, pieces));
        });
    }

    private static DType typeOf(Parameter parameter, DType modelType) {
        if (parameter.storage() == WeightStorage.QUANTIZED) {
            return DType.FLOAT32;
        }
        DType own = parameter.ownType();
        return own == null ? modelType : own;
    }

    private void lay(DType dtype, List<Parameter> members, long alignment, List<FlatParameter> pieces) {
        long first = weightCounts.getOrDefault(dtype, 0L);
        long gradient = gradientCount;
        List<Parameter> trained = members.stream().filter(p -> !p.isFrozen()).toList();
        Set<DType> gradientTypes = EnumSet.of(DType.FLOAT32, productGradients);
        gradientTypes.forEach(type -> layTrained(dtype, trained, Decay.DECAYED, type, 1));
        long decayed = gradientCount - gradient;
        gradientTypes.forEach(type -> layTrained(dtype, trained, Decay.KEPT, type, alignment));
        long weight = weightCounts.getOrDefault(dtype, 0L);
        if (weight > first) {
            pieces.add(new FlatParameter(dtype, first, gradient, weight - first, decayed));
        }
        long frozen = weight;
        for (Parameter parameter : members) {
            if (parameter.isFrozen()) {
                places.put(parameter, new Place(dtype, weight, NO_GRADIENT, DType.FLOAT32, NO_GRADIENT));
                weight += room(parameter);
            }
        }
        weight = aligned(weight, alignment);
        weightCounts.put(dtype, weight);
        if (weight > frozen) {
            pieces.add(new FlatParameter(dtype, frozen, NO_GRADIENT, weight - frozen, 0));
        }
    }

    /** Lays members side by side whose gradients have this type, and rounds the end of the weights up to {@code alignment}. */
    private void layTrained(DType dtype, List<Parameter> trained, Decay decay, DType gradientType, long alignment) {
        long first = weightCounts.getOrDefault(dtype, 0L);
        long ofType = gradientCounts.getOrDefault(gradientType, 0L);
        long count = 0;
        for (Parameter parameter : trained) {
            if (parameter.decays() == (decay == Decay.DECAYED) && gradientType(dtype, parameter) == gradientType) {
                places.put(
                        parameter,
                        new Place(dtype, first + count, gradientCount + count, gradientType, ofType + count));
                count += room(parameter);
            }
        }
        count = aligned(first + count, alignment) - first;
        if (count > 0) {
            new Stretch(dtype, first, gradientCount, gradientType, ofType, count, decay).addTo(stretches);
            weightCounts.put(dtype, first + count);
            gradientCounts.put(gradientType, ofType + count);
            gradientCount += count;
        }
    }

    /** Returns the type of the gradient of a parameter whose weight has {@code dtype}. */
    private DType gradientType(DType dtype, Parameter parameter) {
        return dtype == productGradients && parameter.isWrittenByProducts() && !parameter.isPartial()
                ? productGradients
                : DType.FLOAT32;
    }

    /** Returns the elements laid out for a parameter: some for one without elements, too, so that a piece holds it. */
    private long room(Parameter parameter) {
        return aligned(Math.max(1, parameter.shape().count()), ofParameter);
    }

    private static long aligned(long count, long alignment) {
        return (count + alignment - 1) / alignment * alignment;
    }
}
