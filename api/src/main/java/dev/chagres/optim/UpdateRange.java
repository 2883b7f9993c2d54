package dev.chagres.optim;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.ParameterRange;
import dev.chagres.parameter.ParameterRange.Decay;
import dev.chagres.parameter.Parameters;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;

/**
 * Neighbouring trained elements of one type, one weight decay and one group.
 *
 * <p>Threading: immutable.
 *
 * @param whole the range of the parameters that has them
 * @param first the first of them in it
 * @param count elements, with those between parameters, which are 0 and stay so
 * @param group the number of the group, 0 for what belongs to none
 * @param weightDecay at least 0
 */
record UpdateRange(ParameterRange whole, long first, long count, int group, float weightDecay) {
    /** The types that all rows of a table have in common. */
    private record Types(DType weights, DType gradients) {}

    /** Returns the vector of all weights of the type. */
    Tensor weights() {
        return whole.weights();
    }

    /** Returns the first element in {@link #weights()}. */
    long weightOffset() {
        return whole.weightOffset() + first;
    }

    /** Returns the first element in the order of all gradients, and in what is kept in it. */
    long gradientOffset() {
        return whole.gradientOffset() + first;
    }

    boolean isFloat32() {
        return weights().dtype() == DType.FLOAT32;
    }

    /** Returns whether {@code next} begins where this ends, in weights and gradients. */
    boolean endsAt(UpdateRange next) {
        return next.weights() == weights()
                && next.weightOffset() == weightOffset() + count
                && next.gradientOffset() == gradientOffset() + count;
    }

    /** Returns a view of the weights. */
    Tensor weights(Scope scope) {
        return scope.view(weights(), weightOffset(), count);
    }

    /** Returns a view of the gradients. */
    Tensor gradients(Scope scope) {
        return scope.view(whole.gradients(), first, count);
    }

    /** Returns the elements from {@code begin} to before {@code end} in the order of the gradients; perhaps none. */
    UpdateRange within(long begin, long end) {
        long skipped = Math.max(0, begin - gradientOffset());
        long rest = Math.max(0, Math.min(count, end - gradientOffset()) - skipped);
        return new UpdateRange(whole, first + skipped, rest, group, weightDecay);
    }

    /** Returns a table for each type of weights and of gradients, of the rows that ranges of it have. */
    static <R, T> List<T> tables(List<UpdateRange> ranges, Function<UpdateRange, R> row, Function<List<R>, T> table) {
        Map<Types, List<R>> byType = new LinkedHashMap<>();
        for (UpdateRange range : ranges) {
            Types types =
                    new Types(range.weights().dtype(), range.whole.gradients().dtype());
            byType.computeIfAbsent(types, _ -> new ArrayList<>()).add(row.apply(range));
        }
        return byType.values().stream().map(table).toList();
    }

    /** The first element of this rank's gradient of a trained parameter, and the number of the parameter's group. */
    private record Member(long offset, int group) {}

    /**
     * Returns the ranges in the order of the gradients. Without groups they are those of the parameters. Of sharded parameters
     * they are this rank's parts.
     *
     * @throws IllegalArgumentException when a group has no trained parameter, on other stages of a pipeline neither
     */
    static List<UpdateRange> of(Parameters parameters, float weightDecay, List<ParameterGroup> groups) {
        List<UpdateRange> ranges = new ArrayList<>();
        List<Member> members = groups.isEmpty() ? List.of() : members(parameters, groups);
        for (ParameterRange range : parameters.ranges()) {
            if (groups.isEmpty()) {
                float decay = range.decay() == Decay.DECAYED ? weightDecay : 0;
                ranges.add(new UpdateRange(range, 0, range.count(), 0, decay));
            } else {
                divide(range, weightDecay, groups, members, ranges);
            }
        }
        return List.copyOf(ranges);
    }

    /** Returns the parameters of which this rank has a part, in the order of the gradients. */
    private static List<Member> members(Parameters parameters, List<ParameterGroup> groups) {
        ensureMembers(parameters, groups);
        List<Member> members = new ArrayList<>();
        for (Parameter parameter : parameters.all()) {
            if (!parameter.isFrozen()) {
                long offset = parameters.access().gradientOffset(parameter);
                if (offset >= 0) {
                    members.add(new Member(offset, groupOf(parameter, groups)));
                }
            }
        }
        members.sort(Comparator.comparingLong(Member::offset));
        return members;
    }

    /** Ranks of a pipeline get the same groups, so all parameters of a group may be on other ranks. */
    private static void ensureMembers(Parameters parameters, List<ParameterGroup> groups) {
        boolean[] used = new boolean[groups.size() + 1];
        for (Parameter parameter : parameters.access().ofModel()) {
            if (!parameter.isFrozen()) {
                used[groupOf(parameter, groups)] = true;
            }
        }
        for (int i = 0; i < groups.size(); i++) {
            if (!used[i + 1]) {
                throw new IllegalArgumentException("groups: expected trained parameters in group "
                        + groups.get(i).name() + " that no group before it has, got none");
            }
        }
    }

    /** Splits a range at parameters of another group. */
    private static void divide(
            ParameterRange range,
            float weightDecay,
            List<ParameterGroup> groups,
            List<Member> members,
            List<UpdateRange> ranges) {
        long begin = range.gradientOffset();
        List<Member> inside = members.stream()
                .filter(member -> member.offset >= begin && member.offset < begin + range.count())
                .toList();
        long first = 0;
        for (int i = 0; i < inside.size(); i++) {
            int group = inside.get(i).group;
            boolean last = i + 1 == inside.size();
            if (last || inside.get(i + 1).group != group) {
                long end = last ? range.count() : inside.get(i + 1).offset - begin;
                float decay = decay(range, weightDecay, groups, group);
                ranges.add(new UpdateRange(range, first, end - first, group, decay));
                first = end;
            }
        }
    }

    /** Returns the number of a parameter's group, from 1 on; 0 where none takes it. */
    static int groupOf(Parameter parameter, List<ParameterGroup> groups) {
        for (int i = 0; i < groups.size(); i++) {
            if (groups.get(i).members().test(parameter)) {
                return i + 1;
            }
        }
        return 0;
    }

    private static float decay(ParameterRange range, float weightDecay, List<ParameterGroup> groups, int group) {
        Float own = group == 0 ? null : groups.get(group - 1).weightDecay();
        if (own != null) {
            return own;
        }
        return range.decay() == Decay.DECAYED ? weightDecay : 0;
    }
}
