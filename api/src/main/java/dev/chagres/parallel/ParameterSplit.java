package dev.chagres.parallel;

import dev.chagres.Shape;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Numbers;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * The part of a parameter that one of several tensor-parallel ranks keeps. One dimension consists of sections, and each section of {@code
 * ranks} consecutive parts; a rank keeps its part of each section, concatenated. The parts of a section of S are ceil(S / ranks) long; if
 * the ranks do not divide S, a later part is shorter, and the last ones may be empty.
 *
 * <p>For example the weight [3 h d, H] of query, key and value is split by rows, with a section for each of the three: so a rank has query,
 * key and value of its heads.
 *
 * <p>Threading: immutable.
 *
 * @param whole the shape of the whole parameter
 * @param dimension that is split
 * @param sections sizes along that dimension, which add up to it
 * @param rank from 0 to {@code ranks - 1}
 * @param ranks number of parts
 */
public record ParameterSplit(Shape whole, int dimension, List<Long> sections, int rank, int ranks) {
    /**
     * Checks that the sections fill the dimension.
     *
     * @throws IllegalArgumentException when they do not, or there is no such dimension or rank
     */
    public ParameterSplit {
        Checks.given("whole", whole);
        sections = Checks.givenAll("sections", sections);
        Numbers.within("dimension", dimension, 0, whole.rank() - 1L);
        if (rank < 0 || rank >= ranks) {
            throw new IllegalArgumentException("rank: expected one of " + ranks + ", got " + rank);
        }
        long sum = 0;
        for (long section : sections) {
            if (section < 1) {
                throw new IllegalArgumentException("sections: expected sizes of at least 1, got " + sections);
            }
            sum += section;
        }
        if (sum != whole.size(dimension)) {
            throw new IllegalArgumentException("sections: expected sizes that add up to " + whole.size(dimension)
                    + " of " + whole + ", got " + sections);
        }
    }

    /** Returns {@code split}, or where that is null all of {@code shape}, as one dimension that one rank has. */
    public static ParameterSplit of(@Nullable ParameterSplit split, Shape shape) {
        long count = Checks.given("shape", shape).count();
        return split != null
                ? split
                : new ParameterSplit(new Shape(count), 0, count == 0 ? List.of() : List.of(count), 0, 1);
    }

    /** Returns where the part of rank {@code rank} of {@code size} begins, which is where that of the rank before ends. */
    static long begin(long size, int rank, int ranks) {
        return Math.min(size, rank * Math.ceilDiv(size, (long) ranks));
    }

    private long begin(long section) {
        return begin(section, rank, ranks);
    }

    private long part(long section) {
        return begin(section, rank + 1, ranks) - begin(section);
    }

    private long parts() {
        long sum = 0;
        for (long section : sections) {
            sum += part(section);
        }
        return sum;
    }

    private long inner() {
        long inner = 1;
        for (int i = dimension + 1; i < whole.rank(); i++) {
            inner *= whole.size(i);
        }
        return inner;
    }

    /** Returns the shape of the rank's part, which has no elements if there are not enough for all ranks. */
    public Shape shape() {
        long[] sizes = whole.sizes();
        sizes[dimension] = parts();
        return new Shape(sizes);
    }

    /** Returns whether the parts of all ranks have the same size. */
    public boolean isEven() {
        return sections.stream().allMatch(section -> section % ranks == 0);
    }

    /** Returns the part that another rank keeps. */
    public ParameterSplit of(int otherRank) {
        return new ParameterSplit(whole, dimension, sections, otherRank, ranks);
    }

    /**
     * Returns the row-major index in the whole parameter of an element of the rank's part.
     *
     * @throws IndexOutOfBoundsException when the part has no such element
     */
    public long element(long local) {
        long inner = inner();
        long parts = parts();
        long row = inner == 0 ? 0 : local / inner;
        if (local < 0 || inner == 0 || parts == 0 || row >= parts * outer()) {
            throw new IndexOutOfBoundsException("element: expected one of " + shape() + ", got " + local);
        }
        return (row / parts * whole.size(dimension) + place(row % parts)) * inner + local % inner;
    }

    private long outer() {
        return whole.count() == 0 ? 0 : whole.count() / whole.size(dimension) / inner();
    }

    /**
     * Returns the index in the rank's part of an element of the whole parameter; -1 if another rank has it.
     *
     * @throws IndexOutOfBoundsException when the whole has no such element
     */
    public long local(long element) {
        if (element < 0 || element >= whole.count()) {
            throw new IndexOutOfBoundsException("element: expected one of " + whole + ", got " + element);
        }
        long inner = inner();
        long size = whole.size(dimension);
        long row = element / inner;
        long place = row % size;
        long before = 0;
        int section = 0;
        while (place >= sections.get(section)) {
            place -= sections.get(section);
            before += part(sections.get(section++));
        }
        long index = place - begin(sections.get(section));
        boolean own = index >= 0 && index < part(sections.get(section));
        return own ? (row / size * parts() + before + index) * inner + element % inner : -1;
    }

    /** Returns the position along the whole dimension of the rank's {@code index}-th position. */
    private long place(long index) {
        long begin = 0;
        for (long section : sections) {
            long part = part(section);
            if (index < part) {
                return begin + begin(section) + index;
            }
            index -= part;
            begin += section;
        }
        throw new IndexOutOfBoundsException("element: expected one of " + shape());
    }

    /**
     * Returns the number of elements that are contiguous both in a part and in the whole, for copies: it divides the size of each rank's
     * part of each section.
     */
    public long run() {
        long common = 0;
        for (long section : sections) {
            long full = Math.ceilDiv(
                    section, (long) ranks); // what all have but one, which has the rest, and those behind it
            common = greatestDivisor(full, greatestDivisor(section % full, common));
        }
        return common * inner();
    }

    /**
     * Returns how many neighbours of the whole lie together in a block of a part, wherever blocks begin with each part: the greatest common
     * divisor of {@code block} and {@link #run}, and all of a block where one rank has the whole.
     *
     * @param block elements of a block, at least 1; the last one of a part may have fewer
     * @throws IllegalArgumentException when it is less
     */
    public long unit(int block) {
        Checks.atLeastOne("block", block);
        return ranks == 1 ? block : greatestDivisor(block, run());
    }

    /**
     * Returns the same split of units, each in the place of its elements.
     *
     * @param unit elements of a unit: 1, or what {@link #unit} returns
     * @throws IllegalArgumentException when it is below 1, or several ranks have elements of one unit
     */
    public ParameterSplit ofUnits(long unit) {
        Checks.atLeastOne("unit", unit);
        if (ranks == 1) {
            return of(null, new Shape(Math.ceilDiv(whole.count(), unit)));
        }
        if (run() % unit != 0) {
            throw new IllegalArgumentException("unit: expected a divisor of " + run() + ", got " + unit);
        }
        long rows = unit / greatestDivisor(unit, inner()); // of which each has less than a unit
        List<Long> sectionsOfUnits =
                sections.stream().map(section -> section / rows).toList();
        Shape shape = new Shape(outer(), whole.size(dimension) / rows, inner() * rows / unit);
        return new ParameterSplit(shape, 1, sectionsOfUnits, rank, ranks);
    }

    private static long greatestDivisor(long a, long b) {
        return b == 0 ? a : greatestDivisor(b, a % b);
    }
}
