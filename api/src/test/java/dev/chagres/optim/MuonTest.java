package dev.chagres.optim;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.DevicesNeeded;
import dev.chagres.Shape;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.launch.Ranks;
import dev.chagres.optim.Muon.Adjustment;
import dev.chagres.optim.SGD.Momentum;
import dev.chagres.parallel.ParameterSplit;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import java.util.List;
import java.util.SplittableRandom;
import org.apache.commons.math3.linear.BlockRealMatrix;
import org.apache.commons.math3.linear.RealMatrix;
import org.apache.commons.math3.linear.SingularValueDecomposition;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Steps of {@code Muon} against double precision. */
@Tag("L0")
@Tag("L1")
class MuonTest {
    private static final float RATE = 1e-2f;
    private static final int STEPS = 4;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static RealMatrix gradient(Parameter parameter, int step) {
        SplittableRandom random =
                new SplittableRandom(31L * step + parameter.name().hashCode());
        int columns = (int) parameter.shape().size(1);
        RealMatrix made = new BlockRealMatrix((int) parameter.shape().count() / columns, columns);
        for (int i = 0; i < made.getRowDimension(); i++) {
            for (int j = 0; j < columns; j++) {
                made.setEntry(i, j, (float) random.nextGaussian());
            }
        }
        return made;
    }

    private static RealMatrix orthogonal(RealMatrix u) {
        boolean isTall = u.getRowDimension() > u.getColumnDimension();
        RealMatrix x = isTall ? u.transpose() : u;
        x = x.scalarMultiply(1 / x.getFrobeniusNorm());
        for (int i = 0; i < 5; i++) {
            RealMatrix a = x.multiply(x.transpose());
            RealMatrix b = a.scalarMultiply(-4.775).add(a.multiply(a).scalarMultiply(2.0315));
            x = x.scalarMultiply(3.4445).add(b.multiply(x));
        }
        return isTall ? x.transpose() : x;
    }

    private static RealMatrix stepped(Parameter parameter, RealMatrix first, Muon.Config config) {
        double rows = first.getRowDimension();
        double columns = first.getColumnDimension();
        double adjusted = config.adjustment() == Adjustment.ORIGINAL
                ? Math.sqrt(Math.max(1, rows / columns))
                : 0.2 * Math.sqrt(Math.max(rows, columns));
        double kept = config.momentum();
        RealMatrix weight = first;
        RealMatrix mean = first.scalarMultiply(0);
        for (int step = 0; step < STEPS; step++) {
            RealMatrix g = gradient(parameter, step);
            mean = mean.scalarMultiply(kept).add(g.scalarMultiply(1 - kept));
            RealMatrix u = config.kind() == Momentum.NESTEROV
                    ? mean.scalarMultiply(kept).add(g.scalarMultiply(1 - kept))
                    : mean;
            RealMatrix update = orthogonal(u).scalarMultiply(adjusted).add(weight.scalarMultiply(config.weightDecay()));
            weight = weight.subtract(update.scalarMultiply(RATE));
        }
        return weight;
    }

    private static RealMatrix matrix(Parameter parameter) {
        int columns = (int) parameter.shape().size(1);
        float[] values = open.read(parameter.weight());
        RealMatrix made = new BlockRealMatrix(values.length / columns, columns);
        for (int i = 0; i < values.length; i++) {
            made.setEntry(i / columns, i % columns, values[i]);
        }
        return made;
    }

    private static void gradients(Parameters parameters, int step) {
        parameters.completeGradients();
        for (Parameter one : parameters.all()) {
            if (one.shape().rank() == 2) {
                open.set(one.gradient(), gradient(one, step));
            }
        }
    }

    @ParameterizedTest
    @EnumSource
    void agreesWithDoublePrecision(Adjustment adjustment) {
        for (Momentum kind : Momentum.values()) {
            Muon.Config config =
                    Muon.Config.standard().withAdjustment(adjustment).withKind(kind);
            ModelPlan plan = new ModelPlan();
            plan.declare("wide", Initializer.normal(1), 17, 60);
            plan.declare("tall", Initializer.normal(1), 70, 9);
            plan.declare("bias", Initializer.normal(1), 33);
            plan.declare("square", Initializer.normal(1), 24, 24);
            try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.FLOAT32, 3);
                    Muon muon = new Muon(parameters, config)) {
                List<Parameter> matrices = parameters.all().stream()
                        .filter(one -> one.shape().rank() == 2)
                        .toList();
                List<RealMatrix> first = matrices.stream().map(MuonTest::matrix).toList();
                // @start region="optimizer"
                for (int step = 0; step < STEPS; step++) {
                    gradients(parameters, step); // forward and backward
                    muon.step(RATE);
                }
                // @end
                for (int i = 0; i < first.size(); i++) {
                    RealMatrix expected = stepped(matrices.get(i), first.get(i), config);
                    double error = matrix(matrices.get(i)).subtract(expected).getFrobeniusNorm();
                    // Of FP32; TF32 products have 1e-3, which steps of 0.01 make smaller.
                    assertEquals(
                            0,
                            error / expected.getFrobeniusNorm(),
                            1e-4,
                            matrices.get(i).name());
                }
            }
        }
    }

    /** Of one step without decay: the singular values of the update are around 1, those of the gradient are not. */
    @Test
    void updatesAreNearlyOrthogonal() {
        Muon.Config config =
                Muon.Config.standard().withAdjustment(Adjustment.ORIGINAL).withWeightDecay(0);
        ModelPlan plan = new ModelPlan();
        plan.declare("a", Initializer.zeros(), 16, 40);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.FLOAT32, 3);
                Muon muon = new Muon(parameters, config)) {
            gradients(parameters, 0);
            muon.step(1);
            double[] values = new SingularValueDecomposition(matrix(parameters.get("a"))).getSingularValues();
            for (double value : values) {
                assertEquals(1, value, 0.35);
            }
        }
    }

    /** Embeddings and heads are AdamW's: the first step moves each weight by the rate. */
    @Test
    void adamUpdatesWhatIsExcluded() {
        ModelPlan plan = new ModelPlan();
        plan.declare("embedding", Initializer.zeros(), 8, 4);
        plan.declare("hidden", Initializer.zeros(), 8, 4);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.FLOAT32, 3);
                Muon muon = new Muon(parameters, Muon.Config.standard())) {
            gradients(parameters, 0);
            muon.step(RATE);
            for (float value : open.read(parameters.get("embedding").weight())) {
                assertEquals(RATE, Math.abs(value), 1e-5);
            }
        }
    }

    @Test
    void matricesThatRanksSplitUnevenlyAreRefused() {
        DevicesNeeded.assume(2);
        Ranks.local(2).run(rank -> {
            ModelPlan plan = new ModelPlan(TensorParallel.of(rank.communicator()));
            ParameterSplit split = new ParameterSplit(new Shape(3, 4), 0, List.of(3L), rank.index(), 2);
            plan.declare("a", Initializer.zeros(), split);
            try (Parameters parameters = Parameters.allocate(rank.device(), plan, DType.FLOAT32, 3)) {
                assertThrown(
                        IllegalArgumentException.class,
                        "parameters: expected matrices that tensor-parallel ranks split evenly, got a [3, 4] among 2 ranks;"
                                + " name it in Muon.Config.withExcluded, and AdamW updates it",
                        () -> new Muon(parameters, Muon.Config.standard()));
            }
            return rank.index();
        });
    }

    @Test
    void wrongNumbersAreRefused() {
        assertThrown(
                IllegalArgumentException.class,
                "momentum: expected a number above 0 and below 1, got 0.0",
                () -> Muon.Config.standard().withMomentum(0));
        assertThrown(
                IllegalArgumentException.class,
                "others: expected moments of FLOAT32, got BYTE",
                () -> Muon.Config.standard().withOthers(AdamW.Config.standard().withMomentDType(DType.BYTE)));
    }
}
