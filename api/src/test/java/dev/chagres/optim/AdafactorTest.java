package dev.chagres.optim;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Shape;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.ops.AdafactorMatrices;
import dev.chagres.ops.AdafactorMatrix;
import dev.chagres.ops.AdafactorRange;
import dev.chagres.ops.AdafactorRanges;
import dev.chagres.ops.AdafactorStep;
import dev.chagres.ops.AdafactorStep.Rate;
import dev.chagres.ops.AdafactorStep.Scale;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.commons.math3.linear.Array2DRowRealMatrix;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Steps of {@code Adafactor} against double precision, and what its state takes. */
@Tag("L0")
@Tag("L1")
class AdafactorTest {
    private static final float RATE = 2e-2f;
    private static final int STEPS = 8;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static double[] gradient(Parameter parameter, int step) {
        double[] values = new double[(int) parameter.shape().count()];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) Math.sin(step + 0.37 * i + i % 5);
        }
        return values;
    }

    /** A parameter as a matrix of its first dimension and the rest, or of one row. */
    private static RealMatrix matrix(Parameter parameter, double... values) {
        int rows = parameter.shape().rank() < 2 ? 1 : (int) parameter.shape().size(0);
        int columns = values.length / rows;
        RealMatrix matrix = new Array2DRowRealMatrix(rows, columns);
        for (int i = 0; i < values.length; i++) {
            matrix.setEntry(i / columns, i % columns, values[i]);
        }
        return matrix;
    }

    private static double rms(RealMatrix matrix) {
        return matrix.getFrobeniusNorm() / Math.sqrt((double) matrix.getRowDimension() * matrix.getColumnDimension());
    }

    private static double rate(Adafactor.Config config, int t) {
        return switch (config.rate()) {
            case GIVEN -> RATE;
            case CAPPED -> Math.min(RATE, 1 / Math.sqrt(t));
            case WARM_UP -> Math.min(RATE * t / 1e4, 1 / Math.sqrt(t));
        };
    }

    private static RealMatrix stepped(Parameter parameter, double[] first, Adafactor.Config config) {
        RealMatrix w = matrix(parameter, first);
        int rows = w.getRowDimension();
        int columns = w.getColumnDimension();
        double[] row = new double[rows];
        double[] column = new double[columns];
        RealMatrix mean = w.scalarMultiply(0);
        for (int t = 1; t <= STEPS; t++) {
            RealMatrix g = matrix(parameter, gradient(parameter, t - 1));
            double share = Math.pow(t, -config.decayRate());
            double average = 0;
            for (int r = 0; r < rows; r++) {
                row[r] += share * (g.getRowVector(r).dotProduct(g.getRowVector(r)) / columns + 1e-30 - row[r]);
                average += row[r] / rows;
            }
            for (int c = 0; c < columns; c++) {
                column[c] += share * (g.getColumnVector(c).dotProduct(g.getColumnVector(c)) / rows + 1e-30 - column[c]);
            }
            RealMatrix u = g.copy();
            for (int r = 0; r < rows; r++) {
                for (int c = 0; c < columns; c++) {
                    u.setEntry(r, c, g.getEntry(r, c) / Math.sqrt(row[r] / average) / Math.sqrt(column[c]));
                }
            }
            double size = rate(config, t) * (config.scale() == Scale.NONE ? 1 : Math.max(config.epsilon(), rms(w)));
            RealMatrix d = u.scalarMultiply(size / Math.max(1, rms(u) / config.threshold()));
            mean = mean.scalarMultiply(config.beta1()).add(d.scalarMultiply(1 - config.beta1()));
            double decay = parameter.shape().rank() > 1 ? config.weightDecay() : 0;
            w = w.scalarMultiply(1 - size * decay).subtract(mean);
        }
        return w;
    }

    private enum Setting {
        STANDARD(Adafactor.Config.standard().withWeightDecay(0.1f)),
        WITH_MEAN(Adafactor.Config.standard().withBeta1(0.9f).withThreshold(0.5f)),
        WARM_UP(Adafactor.Config.standard().withRate(Rate.WARM_UP)),
        GIVEN(Adafactor.Config.standard().withRate(Rate.GIVEN).withScale(Scale.NONE));

        private final Adafactor.Config config;

        Setting(Adafactor.Config config) {
            this.config = config;
        }
    }

    @ParameterizedTest
    @EnumSource
    void agreesWithDoublePrecision(Setting setting) {
        for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)) {
            agrees(setting.config, dtype);
        }
    }

    private static void agrees(Adafactor.Config config, DType dtype) {
        ModelPlan plan = new ModelPlan();
        plan.declare("a", Initializer.normal(1), 17, 9);
        plan.declare("b", Initializer.normal(1), 33);
        plan.declare("c", Initializer.normal(0.01f), 4, 3, 5);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, dtype, 3);
                Adafactor adafactor = new Adafactor(parameters, config)) {
            Map<String, double[]> first = new HashMap<>();
            parameters.all().forEach(one -> first.put(one.name(), doubles(open.read(one.weight()))));
            // @start region="optimizer"
            for (int step = 0; step < STEPS; step++) {
                gradients(parameters, step); // forward and backward
                adafactor.step(RATE);
            }
            // @end
            for (Parameter one : parameters.all()) {
                RealMatrix expected = stepped(one, first.get(one.name()), config);
                Tensor master = adafactor.state().tensors().getOrDefault(one.name() + ".master", one.weight());
                double[] actual = doubles(open.read(master));
                assertEquals(0, expected.subtract(matrix(one, actual)).getNorm(), 3e-5, one.name() + " " + dtype);
            }
        }
    }

    private static double[] doubles(float... values) {
        double[] result = new double[values.length];
        for (int i = 0; i < values.length; i++) {
            result[i] = values[i];
        }
        return result;
    }

    private static void gradients(Parameters parameters, int step) {
        parameters.completeGradients();
        parameters.all().forEach(parameter -> open.set(parameter.gradient(), gradient(parameter, step)));
    }

    @Test
    void keepsANumberForEachRowAndColumn() {
        ModelPlan plan = new ModelPlan();
        plan.declare("a", Initializer.normal(1), 17, 9);
        plan.declare("b", Initializer.normal(1), 33);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.FLOAT32, 3);
                Adafactor adafactor = new Adafactor(parameters, Adafactor.Config.standard())) {
            Map<String, Tensor> state = adafactor.state().tensors();
            assertEquals(List.of("a.exp_avg_sq_row", "a.exp_avg_sq_col", "b.exp_avg_sq"), List.copyOf(state.keySet()));
            assertArrayEquals(
                    new long[] {17, 9, 33},
                    state.values().stream().mapToLong(Tensor::count).toArray());
        }
    }

    @Test
    void wrongNumbersAreRefused() {
        assertThrown(
                IllegalArgumentException.class,
                "beta1, beta2: expected numbers within [0, 1), got 1.0 and 0.0",
                () -> Adafactor.Config.standard().withBeta1(1));
        assertThrown(
                IllegalArgumentException.class,
                "threshold: expected a positive number, got 0.0",
                () -> Adafactor.Config.standard().withThreshold(0));
    }

    /** A map may have any number, and a place too: neither may reach memory that is not the matrix'. */
    @Test
    void mapsAndPlacesReachNothingElse() {
        Scope scope = open.scope();
        Stream stream = scope.stream();
        var matrix = new AdafactorMatrix(
                zeros(scope, 2, 2),
                zeros(scope, 3),
                zeros(scope, 2),
                zeros(scope, 2),
                zeros(scope, 3),
                zeros(scope, 3),
                zeros(scope, 1));
        Tensor rowMap = scope.tensor(DType.INT32, 2);
        Tensor columnMap = scope.tensor(DType.INT32, 3);
        rowMap.set(stream, Integer.MIN_VALUE, Integer.MAX_VALUE);
        columnMap.set(stream, Integer.MAX_VALUE, -1, 1 << 20);
        var method = new AdafactorStep(0.8f, 1e-30f, 1e-3f, 1, 0, Rate.GIVEN, Scale.OF_WEIGHTS);
        Tensor step = scope.tensor(DType.INT32, 1);
        step.set(stream, 1);
        Tensor one = zeros(scope, 1);
        one.set(stream, 1f);
        Tensor skip = scope.tensor(DType.INT32, 1);
        skip.set(stream, 0);
        AdafactorRange range = range(scope, matrix, new AdafactorRange.Place(0, 3, rowMap, columnMap));
        range.gradient().set(stream, 1f, 2f, 3f, 4f, 5f, 6f);
        AdafactorRanges ranges = AdafactorRanges.of(List.of(range), scope);
        AdafactorMatrices matrices = AdafactorMatrices.of(List.of(matrix), scope);
        method.sums(ranges, step, one, skip, stream);
        method.factors(matrices, step, one, skip, stream);
        method.updates(ranges, step, one, skip, stream);
        method.clip(matrices, step, one, skip, stream);
        method.step(ranges, step, one, skip, stream);
        assertArrayEquals(new float[] {14, 77, 0, 0}, matrix.rowSums().toFloats(stream));
        for (long first : new long[] {1, 6, Long.MAX_VALUE - 5, Long.MAX_VALUE}) {
            assertThrown(
                    IllegalArgumentException.class,
                    "ranges: in range 0 place: expected elements of a matrix of 2 rows and 3 columns, got 6 from "
                            + first + " on in rows of 3",
                    () -> AdafactorRanges.of(
                            List.of(range(scope, matrix, new AdafactorRange.Place(first, 3, null, null))), scope));
        }
    }

    private static Tensor zeros(Scope scope, long... sizes) {
        Tensor made = scope.tensor(DType.FLOAT32, Shape.of(sizes));
        made.zero(scope.stream());
        return made;
    }

    private static AdafactorRange range(Scope scope, AdafactorMatrix matrix, AdafactorRange.Place place) {
        return new AdafactorRange(matrix, place, zeros(scope, 6), zeros(scope, 6), null, null, 0);
    }
}
