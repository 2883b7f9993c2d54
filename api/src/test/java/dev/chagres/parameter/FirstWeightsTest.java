package dev.chagres.parameter;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.witness.Rounding;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Random;
import java.util.function.Consumer;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** First weights: as declared, the same whatever the order, the company, the layout and the piece. */
@Tag("L0")
@Tag("L1")
class FirstWeightsTest {
    private static final long SEED = 20_260_731;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static float[] expected(Parameter parameter, DType dtype) {
        long key = CounterRandom.key(SEED, parameter.name());
        float[] values = new float[(int) parameter.shape().count()];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) Rounding.round(parameter.initializer().value(key, i), dtype);
        }
        return values;
    }

    private static ModelPlan plan() {
        ModelPlan plan = new ModelPlan();
        plan.child("a").declare("weight", Initializer.normal(0.02f), 33, 65);
        plan.child("a").declare("bias", Initializer.zeros(), 33);
        plan.child("b").declare("weight", Initializer.ones(), 17);
        plan.child("b").declare("matrix", Initializer.normal(3), 1, 16_385);
        plan.child("b").declare("none", Initializer.normal(0), 7);
        return plan;
    }

    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void areWhatWasDeclared(DType dtype) {
        try (Parameters parameters = Parameters.allocate(open.device(), plan(), dtype, SEED)) {
            for (Parameter parameter : parameters.all()) {
                assertArrayEquals(expected(parameter, dtype), open.read(parameter.weight()), parameter.name());
            }
            assertEquals(0, open.read(parameters.get("a.bias").weight())[32]);
            assertEquals(1, open.read(parameters.get("b.weight").weight())[16]);
            for (float value : open.read(parameters.get("b.none").weight())) {
                assertTrue(value == 0, "no spread: 0 or -0");
            }
        }
    }

    @Test
    void areZeroWhereTheyAreLoadedNext() {
        try (Parameters parameters = Parameters.allocateZeros(open.device(), plan(), DType.BFLOAT16)) {
            for (Parameter parameter : parameters.all()) {
                int count = (int) parameter.shape().count();
                assertArrayEquals(new float[count], open.read(parameter.weight()), parameter.name());
            }
        }
    }

    /** More elements than are drawn at once: no piece knows of another. */
    @Test
    void areTheSameInPieces() {
        ModelPlan plan = new ModelPlan();
        Parameter large = plan.declare("large", Initializer.normal(0.5f), (1 << 22) + 16_400);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.BFLOAT16, SEED)) {
            assertArrayEquals(expected(large, DType.BFLOAT16), open.read(large.weight()));
            assertEquals(1, parameters.all().size());
        }
    }

    /** The same names in another order, in groups, with other parameters between them, padded for ranks. */
    @Test
    void dependOnSeedNameAndElementAlone() {
        List<float[]> expected = new ArrayList<>();
        try (Parameters parameters = Parameters.allocate(open.device(), plan(), DType.FLOAT32, SEED)) {
            parameters.all().forEach(parameter -> expected.add(open.read(parameter.weight())));
        }
        for (Consumer<ModelPlan> change : List.<Consumer<ModelPlan>>of(
                plan -> {},
                plan -> plan.padGroups(3),
                plan -> plan.group("between").declare("x", Initializer.ones(), 5))) {
            List<Parameter> declared = new ArrayList<>(plan().parameters());
            Collections.shuffle(declared, new Random(SEED));
            ModelPlan other = new ModelPlan();
            change.accept(other);
            for (Parameter parameter : declared) {
                String[] parts = parameter.name().split("\\.");
                long[] sizes = new long[parameter.shape().rank()];
                java.util.Arrays.setAll(sizes, i -> parameter.shape().size(i));
                other.group(parts[0]).declare(parts[1], parameter.initializer(), sizes);
            }
            try (Parameters parameters = Parameters.allocate(open.device(), other, DType.FLOAT32, SEED)) {
                List<Parameter> all = plan().parameters();
                for (int i = 0; i < all.size(); i++) {
                    String name = all.get(i).name();
                    assertArrayEquals(
                            expected.get(i), open.read(parameters.get(name).weight()), name);
                }
            }
        }
    }

    @Test
    void followTheSeed() {
        List<float[]> drawn = new ArrayList<>();
        for (long seed : new long[] {1, 1, 2}) {
            try (Parameters parameters = Parameters.allocate(open.device(), plan(), DType.FLOAT32, seed)) {
                drawn.add(open.read(parameters.get("a.weight").weight()));
            }
        }
        assertArrayEquals(drawn.get(0), drawn.get(1));
        int equal = 0;
        for (int i = 0; i < drawn.get(0).length; i++) {
            equal += drawn.get(0)[i] == drawn.get(2)[i] ? 1 : 0;
        }
        assertEquals(0, equal);
    }

    @Test
    void spreadsThatAreNone() {
        for (float deviation : new float[] {-1, Float.NaN, Float.POSITIVE_INFINITY}) {
            assertThrown(
                    IllegalArgumentException.class,
                    "standardDeviation: expected a number of at least 0, got " + deviation,
                    () -> Initializer.normal(deviation));
        }
    }
}
