package dev.chagres.parameter;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.layer.Linear;
import dev.chagres.parameter.ParameterRange.Decay;
import dev.chagres.parameter.QuantizerSite.Role;
import dev.chagres.te.Output;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.SplittableRandom;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Where parameters lie, and what counts their steps. */
@Tag("L0")
@Tag("L1")
class ParametersTest {
    private static final Class<IllegalStateException> STATE = IllegalStateException.class;

    /** Elements to whose multiple every parameter is aligned. */
    private static final long ALIGNMENT = 16;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /** First byte behind that of {@code all}. */
    private static long offset(Tensor part, Tensor all) {
        return part.address() - all.address();
    }

    private static long end(Tensor part, Tensor all) {
        return offset(part, all) + part.byteSize();
    }

    /** A plan of groups that are declared by turns, with matrices, vectors, frozen parameters and types in any order. */
    private static ModelPlan random(SplittableRandom random) {
        ModelPlan plan = new ModelPlan();
        int groups = random.nextInt(1, 5);
        for (int i = 0; i < 30; i++) {
            ModelPlan group = plan.group("g" + random.nextInt(groups));
            int columns = random.nextInt(1, 70);
            long[] sizes = random.nextBoolean() ? new long[] {random.nextInt(1, 9), columns} : new long[] {columns};
            Parameter parameter = random.nextInt(4) == 0
                    ? group.declareAs(DType.FLOAT32, "p" + i, Initializer.normal(1), sizes)
                    : group.declare("p" + i, Initializer.normal(1), sizes);
            if (random.nextInt(5) == 0) {
                parameter.freeze();
            }
        }
        return plan;
    }

    @Test
    void aStepCountsForAllThoughOneActionFails() {
        ModelPlan plan = new ModelPlan();
        plan.declare("weight", Initializer.zeros(), 8);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.FLOAT32, 1)) {
            List<String> run = new ArrayList<>();
            parameters.atNextStep(() -> run.add("first"));
            parameters.atNextStep(() -> {
                run.add("fails");
                throw new IllegalStateException("a rank has failed");
            });
            parameters.atNextStep(() -> {
                run.add("fails, too");
                throw new IllegalArgumentException("and another");
            });
            IllegalArgumentException thrown = assertThrows(IllegalArgumentException.class, () -> parameters.nextStep());
            assertEquals("a rank has failed", thrown.getSuppressed()[0].getMessage());
            assertEquals(List.of("fails, too", "fails", "first"), run);
            assertEquals(1, parameters.step());
        }
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2, 3, 8})
    void groupsLieSideBySideWithWhatDecaysFirst(int ranks) {
        for (int round = 0; round < 10; round++) {
            ModelPlan plan = random(open.random());
            plan.padGroups(ranks);
            for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16)) {
                try (Parameters parameters = Parameters.allocate(open.device(), plan, dtype, 1)) {
                    for (DType type : List.of(DType.FLOAT32, DType.BFLOAT16)) {
                        checkWeights(plan.groups().values(), type, ranks);
                    }
                    checkGradients(parameters);
                    checkRanges(parameters);
                }
            }
        }
    }

    private static void checkWeights(Collection<List<Parameter>> groups, DType type, int ranks) {
        long unit = ALIGNMENT * ranks * type.byteSize();
        Tensor vector = null;
        long end = 0;
        for (List<Parameter> group : groups) {
            List<Parameter> members = group.stream()
                    .filter(parameter -> parameter.weight().dtype() == type)
                    .sorted((a, b) -> Integer.compare(kind(a), kind(b)))
                    .toList();
            if (members.isEmpty()) {
                continue;
            }
            Tensor first = members.getFirst().weight();
            vector = vector == null ? first : vector;
            assertEquals(
                    (end + unit - 1) / unit * unit, offset(first, vector), "a group begins where the last one ends");
            long before = offset(first, vector);
            for (Parameter parameter : members) {
                Tensor weight = parameter.weight();
                long gap = offset(weight, vector) - before;
                assertTrue(gap >= 0 && gap < 2 * unit, () -> parameter + " follows its group after " + gap + " bytes");
                assertEquals(0, offset(weight, vector) % (ALIGNMENT * type.byteSize()), parameter.name());
                before = end(weight, vector);
            }
            end = before;
        }
    }

    /** What decays, then what does not, then what is frozen. */
    private static int kind(Parameter parameter) {
        return parameter.isFrozen() ? 2 : parameter.decays() ? 0 : 1;
    }

    private static void checkGradients(Parameters parameters) {
        Tensor all = parameters.gradients();
        boolean[] used = new boolean[(int) all.count()];
        for (Parameter parameter : parameters.all()) {
            if (parameter.isFrozen()) {
                assertThrown(
                        STATE, "parameter " + parameter.name() + " is frozen: it has no gradient", parameter::gradient);
                continue;
            }
            Tensor gradient = parameter.gradient();
            assertEquals(DType.FLOAT32, gradient.dtype());
            assertEquals(parameter.shape(), gradient.shape());
            int first = (int) (offset(gradient, all) / Float.BYTES);
            assertEquals(0, first % ALIGNMENT);
            for (int i = first; i < first + gradient.count(); i++) {
                assertFalse(used[i], () -> parameter + " shares its gradient's memory");
                used[i] = true;
            }
        }
        assertArrayEquals(new float[used.length], all.toFloats(open.stream()));
    }

    /** Every trained element lies in one range, at the same place in weights and gradients. */
    private static void checkRanges(Parameters parameters) {
        List<ParameterRange> ranges = parameters.ranges();
        long gradients = 0;
        for (ParameterRange range : ranges) {
            assertEquals(gradients, range.gradientOffset());
            assertTrue(range.count() > 0);
            gradients += range.count();
        }
        assertEquals(parameters.gradients().count(), gradients);
        for (Parameter parameter : parameters.all()) {
            List<ParameterRange> own = ranges.stream()
                    .filter(range ->
                            range.weights().dtype() == parameter.weight().dtype())
                    .filter(range -> weightsIn(range, parameter))
                    .toList();
            if (parameter.isFrozen()) {
                assertEquals(List.of(), own, parameter::name);
                continue;
            }
            assertEquals(1, own.size(), parameter::name);
            ParameterRange range = own.getFirst();
            assertEquals(parameter.decays() ? Decay.DECAYED : Decay.KEPT, range.decay());
            long inWeights = offset(parameter.weight(), range.weights())
                            / parameter.weight().dtype().byteSize()
                    - range.weightOffset();
            long inGradients =
                    offset(parameter.gradient(), parameters.gradients()) / Float.BYTES - range.gradientOffset();
            assertEquals(inWeights, inGradients, () -> parameter + ": gradients lie as weights do");
        }
    }

    private static boolean weightsIn(ParameterRange range, Parameter parameter) {
        long size = parameter.weight().dtype().byteSize();
        long first = offset(parameter.weight(), range.weights()) / size;
        return first >= range.weightOffset()
                && first + parameter.weight().count() <= range.weightOffset() + range.count();
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2, 3, 8})
    void paddedGroupsCanBeCutIntoEqualShards(int ranks) {
        ModelPlan plan = new ModelPlan();
        plan.padGroups(ranks);
        for (int i = 0; i < 3; i++) {
            ModelPlan group = plan.group("g" + i);
            group.declare("matrix", Initializer.normal(1), 5, 7 + i);
            group.declare("bias", Initializer.ones(), 3);
        }
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.BFLOAT16, 1)) {
            long unit = ALIGNMENT * ranks;
            assertEquals(0, parameters.weights().count() % unit);
            assertEquals(0, parameters.gradients().count() % unit);
            for (int i = 0; i < 3; i++) {
                long begin = offset(parameters.get("g" + i + ".matrix").weight(), parameters.weights()) / 2;
                assertEquals(0, begin % unit);
                assertEquals(
                        begin * 4, offset(parameters.get("g" + i + ".matrix").gradient(), parameters.gradients()));
            }
            double inside = 0;
            for (Parameter parameter : parameters.all()) {
                inside += sum(parameter.weight());
            }
            assertEquals(inside, sum(parameters.weights()), 1e-3, "elements between parameters are 0");
        }
    }

    private static double sum(Tensor tensor) {
        float[] values = open.read(tensor);
        return IntStream.range(0, values.length)
                .mapToDouble(i -> Math.abs(values[i]))
                .sum();
    }

    @Test
    void typesOfTheirOwnHaveVectorsOfTheirOwn() {
        ModelPlan plan = new ModelPlan();
        ModelPlan group = plan.group("g");
        Parameter matrix = group.declare("matrix", Initializer.normal(1), 4, 4);
        Parameter norm = group.declareAs(DType.FLOAT32, "norm", Initializer.ones(), 20);
        Parameter half = group.declareAs(DType.FLOAT16, "half", Initializer.ones(), 3);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.BFLOAT16, 1)) {
            assertEquals(DType.BFLOAT16, parameters.dtype());
            assertEquals(DType.BFLOAT16, matrix.weight().dtype());
            assertEquals(DType.FLOAT32, norm.weight().dtype());
            assertEquals(DType.FLOAT16, half.weight().dtype());
            assertEquals(DType.BFLOAT16, parameters.weights().dtype());
            assertEquals(16, parameters.weights().count());
            assertEquals(64, parameters.gradients().count());
            assertEquals(64 * 4 + 16 * 2 + 32 * 4 + 16 * 2, parameters.byteSize());
            assertEquals(39, parameters.count());
            assertArrayEquals(new float[] {1, 1, 1}, open.read(half.weight()));
        }
        ModelPlan own = new ModelPlan();
        own.declareAs(DType.FLOAT32, "x", Initializer.ones(), 3);
        try (Parameters parameters = Parameters.allocate(open.device(), own, DType.BFLOAT16, 1)) {
            assertThrown(
                    STATE,
                    "weights: every parameter was declared with a type of its own, none is BFLOAT16; use Parameter.weight()",
                    parameters::weights);
            assertEquals(16, parameters.gradients().count());
        }
    }

    @Test
    void everythingFrozenHasNoGradients() {
        ModelPlan plan = new ModelPlan();
        plan.declare("x", Initializer.normal(1), 3, 4);
        plan.freeze();
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.FLOAT32, 1)) {
            assertEquals(0, parameters.gradients().count());
            assertEquals(List.of(), parameters.ranges());
            parameters.completeGradients();
            assertEquals(16 * 4, parameters.byteSize());
        }
    }

    @Test
    void aGradientBelongsToItsStep() {
        ModelPlan plan = new ModelPlan();
        Parameter x = plan.declare("x", Initializer.zeros(), 4);
        Parameter y = plan.declare("y", Initializer.zeros(), 4);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.FLOAT32, 1)) {
            assertSame(parameters, x.owner());
            assertFalse(x.hasGradient());
            assertEquals(Output.OVERWRITE, x.nextGradient());
            assertEquals(Output.ADD, x.nextGradient());
            assertTrue(x.hasGradient());
            assertFalse(y.hasGradient());
            parameters.gradients().set(open.stream(), filled(32, 5));
            parameters.completeGradients();
            assertArrayEquals(filled(4, 5), open.read(x.gradient()), "written by a backward pass");
            assertArrayEquals(filled(4, 0), open.read(y.gradient()), "written by none");
            y.gradient().set(open.stream(), filled(4, 7));
            parameters.completeGradients();
            assertArrayEquals(filled(4, 7), open.read(y.gradient()), "a second call does nothing");
            assertEquals(0, parameters.step());
            parameters.nextStep();
            assertEquals(1, parameters.step());
            assertFalse(x.hasGradient());
            assertEquals(Output.OVERWRITE, x.nextGradient());
            parameters.forgetGradients();
            assertEquals(1, parameters.step());
            assertFalse(x.hasGradient());
            assertEquals(0, parameters.version());
            parameters.changed();
            assertEquals(1, parameters.version());
        }
    }

    private static float[] filled(int count, float value) {
        float[] values = new float[count];
        Arrays.fill(values, value);
        return values;
    }

    @Test
    void firstValuesAreDrawnInFloatingPointTypes() {
        ModelPlan plan = new ModelPlan();
        Parameter x = plan.declare("x", Initializer.ones(), 4);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.FLOAT32, 1)) {
            Tensor half = open.scope().tensor(DType.FLOAT16, 4);
            parameters.drawFirst(x, half);
            assertArrayEquals(filled(4, 1), open.read(half));
            assertThrows(
                    IllegalArgumentException.class,
                    () -> parameters.drawFirst(x, open.scope().tensor(DType.INT32, 4)));
            Tensor five = open.scope().tensor(DType.FLOAT32, 5);
            assertThrown(
                    IllegalArgumentException.class,
                    "target: expected the 4 elements of " + x + ", got FLOAT32[5]",
                    () -> parameters.drawFirst(x, five));
        }
    }

    @Test
    void namesAndTable() {
        ModelPlan plan = new ModelPlan();
        plan.child("a").declare("b", Initializer.zeros(), 2, 3);
        plan.declareAs(DType.BFLOAT16, "c", Initializer.zeros(), 1000, 5).freeze();
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.FLOAT32, 1)) {
            assertEquals("a.b", parameters.get("a.b").name());
            assertThrown(
                    IllegalArgumentException.class,
                    "name: expected that of a parameter, got b; all() lists them",
                    () -> parameters.get("b"));
            String line = "%-48s %-18s %-9s %,15d elements %,15d bytes%s";
            assertEquals(
                    List.of(
                            line.formatted("a.b", "[2, 3]", "FLOAT32", 6, 24, ""),
                            line.formatted("c", "[1000, 5]", "BFLOAT16", 5000, 10_000, "  frozen"),
                            "2 parameters, 5,006 elements, " + "%,d".formatted(2 * 16 * 4 + 5008 * 2)
                                    + " bytes with gradients"),
                    parameters.toString().lines().toList());
            assertThrows(
                    UnsupportedOperationException.class, () -> parameters.all().removeFirst());
            assertThrows(
                    UnsupportedOperationException.class,
                    () -> parameters.ranges().removeFirst());
        }
    }

    @Test
    void nothingIsDeclaredWhileParametersHaveMemory() {
        ModelPlan plan = new ModelPlan();
        plan.declare("x", Initializer.ones(), 4);
        Parameter matrix = plan.declare("w", Initializer.ones(), 4, 4);
        Parameters first = Parameters.allocate(open.device(), plan, DType.FLOAT32, 1);
        String late =
                ": expected declarations before Parameters.allocate, got one after it, which would have no memory;"
                        + " make all layers of a plan before its parameters are allocated";
        assertThrown(STATE, "a.y" + late, () -> plan.child("a").declare("y", Initializer.ones(), 4));
        assertThrown(STATE, "a.weight" + late, () -> new Linear(4, 4, Initializer.ones(), plan.child("a")));
        assertThrown(STATE, "w" + late, () -> plan.quantizer("w", matrix));
        assertThrown(STATE, "in" + late, () -> plan.quantizer("in", Role.INPUT));
        assertThrown(STATE, "y" + late, () -> plan.part(_ -> true, _ -> "all").declare("y", Initializer.ones(), 4));
        first.close();
        Parameter y = plan.declare("y", Initializer.ones(), 4);
        try (Parameters second = Parameters.allocate(open.device(), plan, DType.FLOAT32, 1)) {
            assertSame(second, y.owner());
        }
    }

    @Test
    void memoryIsGivenOnceAtATime() {
        ModelPlan plan = new ModelPlan();
        Parameter x = plan.declare("x", Initializer.ones(), 4);
        Parameters first = Parameters.allocate(open.device(), plan, DType.FLOAT32, 1);
        assertThrown(
                STATE,
                "parameter x has memory already: close its Parameters first",
                () -> Parameters.allocate(open.device(), plan, DType.FLOAT32, 1));
        assertThrown(
                STATE,
                "parameter x has memory already: freeze it before Parameters.allocate, which lays the gradients out",
                plan::freeze);
        first.close();
        assertThrown(
                STATE,
                "parameter x has lost its memory: its Parameters are closed, or the strategy that allocated them is; allocate"
                        + " others",
                x::weight);
        try (Parameters second = Parameters.allocate(open.device(), plan, DType.BFLOAT16, 1)) {
            assertEquals(DType.BFLOAT16, x.weight().dtype());
            assertSame(second, x.owner());
            assertFalse(x.hasGradient());
        }
        assertThrown(
                IllegalArgumentException.class,
                "plan: expected at least one parameter, got none",
                () -> Parameters.allocate(open.device(), new ModelPlan(), DType.FLOAT32, 1));
        assertThrown(
                IllegalArgumentException.class,
                "dtype: expected FLOAT32, BFLOAT16 or FLOAT16, got INT64",
                () -> Parameters.allocate(open.device(), plan, DType.INT64, 1));
    }

    @Test
    void whatWasAdoptedIsClosedFirstNewestFirst() {
        List<String> closed = new ArrayList<>();
        ModelPlan plan = new ModelPlan();
        Parameter x = plan.declare("x", Initializer.ones(), 4);
        Parameters parameters = Parameters.allocate(open.device(), plan, DType.FLOAT32, 1);
        for (String name : List.of("one", "two", "three")) {
            parameters.adopt(() -> {
                closed.add(name + (x.weight().isLive() ? " before the weights" : ""));
                if (!name.equals("one")) {
                    throw new IllegalArgumentException(name);
                }
            });
        }
        IllegalArgumentException thrown = assertThrows(IllegalArgumentException.class, parameters::close);
        assertEquals("three", thrown.getMessage());
        assertEquals("two", thrown.getSuppressed()[0].getMessage());
        assertEquals(List.of("three before the weights", "two before the weights", "one before the weights"), closed);
        assertFalse(x.hasMemory());
        parameters.close();
        assertEquals(3, closed.size(), "a second call does nothing");
    }

    @Test
    void whatCannotBeAdopted() {
        ModelPlan plan = new ModelPlan();
        plan.declare("x", Initializer.ones(), 4);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.FLOAT32, 1)) {
            AutoCloseable child = () -> {};
            parameters.adopt(child);
            String expected = "child: expected what these parameters do not close yet, got ";
            assertThrown(IllegalArgumentException.class, expected + "it a second time", () -> parameters.adopt(child));
            assertThrown(
                    IllegalArgumentException.class,
                    expected + "the parameters themselves",
                    () -> parameters.adopt(parameters));
            assertThrown(NullPointerException.class, "child: expected a value, got null", () -> parameters.adopt(null));
        }
    }
}
