package dev.chagres.optim;

import dev.chagres.parameter.FlatParameter;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.ParameterShard;
import dev.chagres.parameter.ParameterShard.Part;
import dev.chagres.parameter.Parameters;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * The elements of a matrix that this rank updates: all, or those of its shard.
 *
 * <p>Threading: immutable.
 *
 * @param matrix the parameter
 * @param first the first of its elements that this rank updates
 * @param count how many; 0 where it updates none
 * @param gradientOffset the first of them in this rank's gradients
 */
record MatrixPart(Parameter matrix, long first, long count, long gradientOffset) {
    static MatrixPart of(Parameters parameters, Parameter matrix) {
        ParameterShard shard = parameters.access().shard();
        return of(parameters, matrix, shard == null ? new Part(0, 1) : shard.updated());
    }

    /** Returns what the rank has that updates {@code updated} of each group. */
    static MatrixPart of(Parameters parameters, Parameter matrix, Part updated) {
        FlatParameter piece = parameters.access().groups().stream()
                .flatMap(group -> group.pieces().stream())
                .filter(one -> one.isTrained() && one.holds(matrix))
                .findFirst()
                .orElseThrow();
        long offset = piece.offset(matrix);
        long begin = updated.begin(piece.count());
        long first = Math.max(0, begin - offset);
        long end = Math.min(matrix.shape().count(), begin + updated.of(piece.count()) - offset);
        long place = updated.of(piece.gradientOffset()) + offset + first - begin;
        return new MatrixPart(matrix, first, Math.max(0, end - first), place);
    }

    private long end() {
        return gradientOffset + count;
    }

    /** Returns this part of one of {@code ranges}; null where this rank updates nothing. */
    @Nullable
    UpdateRange range(List<UpdateRange> ranges) {
        if (count == 0) {
            return null;
        }
        UpdateRange whole = ranges.stream()
                .filter(range ->
                        range.gradientOffset() <= gradientOffset && end() <= range.gradientOffset() + range.count())
                .findFirst()
                .orElseThrow();
        return whole.within(gradientOffset, end());
    }

    /** Returns what no part of a matrix has of {@code ranges}. */
    static List<UpdateRange> rest(List<UpdateRange> ranges, List<MatrixPart> parts) {
        List<MatrixPart> sorted = parts.stream()
                .filter(part -> part.count > 0)
                .sorted(Comparator.comparingLong(MatrixPart::gradientOffset))
                .toList();
        List<UpdateRange> rest = new ArrayList<>();
        for (UpdateRange range : ranges) {
            long begin = range.gradientOffset();
            long end = begin + range.count();
            for (MatrixPart part : sorted) {
                if (part.gradientOffset >= begin && part.gradientOffset < end) {
                    rest.add(range.within(begin, part.gradientOffset));
                    begin = part.end();
                }
            }
            rest.add(range.within(begin, end));
        }
        return rest.stream().filter(range -> range.count() > 0).toList();
    }
}
