package dev.chagres.sharding;

import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.DevicesNeeded;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Provider;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.Linear;
import dev.chagres.ops.Elementwise;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.te.MultiTensor;
import dev.chagres.te.TensorLists;
import java.util.Arrays;
import java.util.List;
import java.util.stream.DoubleStream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** The loss of one's own in docs/passes.md, on one rank and on several that have different numbers of rows, against plain Java. */
@Tag("L0")
@Tag("L2")
class OwnLossTest {
    private static final int IN = 5;
    private static final int OUT = 3;

    // @start region="loss"
    /** {@code loss = sum of (y - target)^2 / n} for y of one shape; n is the number of elements of the whole step. */
    static final class MeanSquaredError implements AutoCloseable {
        private final Tensor difference;
        private final Tensor gradient;
        private final TensorLists differences;
        private final TensorLists scaled;
        private final Tensor norm;
        private final Tensor partials;
        private final Tensor isInfinite;

        MeanSquaredError(Scope scope, DType dtype, long rows, long columns) {
            difference = scope.tensor(DType.FLOAT32, rows, columns);
            gradient = scope.tensor(dtype, rows, columns);
            differences = TensorLists.of(new Tensor[] {difference});
            scaled = TensorLists.of(new Tensor[] {difference}, new Tensor[] {gradient});
            norm = scope.tensor(DType.FLOAT32, 1);
            partials = scope.tensor(DType.FLOAT32, MultiTensor.NORM_PARTIALS);
            isInfinite = scope.tensor(DType.INT32, 1);
        }

        /** Returns the square root of the sum of (y - target)^2, FLOAT32 [1]. The host writes minusTarget, FLOAT32. */
        Tensor forward(Tensor y, Tensor minusTarget, Stream stream) {
            Elementwise.cast(y, difference, stream);
            Elementwise.add(difference, minusTarget, difference, stream);
            MultiTensor.l2norm(isInfinite, differences, partials, norm, stream);
            return norm;
        }

        /** Returns {@code dy = 2 (y - target) / n}. */
        Tensor backward(float n, Stream stream) {
            MultiTensor.scale(isInfinite, scaled, 2 / n, stream);
            return gradient;
        }

        @Override
        public void close() {
            differences.close();
            scaled.close();
        }
    }
    // @end

    private record Result(float loss, float[] gradient, float norm) {}

    /** A step of one rank, which has rows of its own. */
    private static Result step(Rank rank, DType dtype) {
        ModelPlan plan = new ModelPlan();
        Linear model = new Linear(IN, OUT, Initializer.zeros(), plan.group("model"));
        int rows = rows(rank.index());
        float[] inputs = new float[rows * IN];
        float[] minusTargets = new float[rows * OUT];
        for (int i = 0; i < inputs.length; i++) {
            inputs[i] = (float) input(rank.index(), i / IN, i % IN);
        }
        for (int i = 0; i < minusTargets.length; i++) {
            minusTargets[i] = (float) -target(rank.index(), i / OUT, i % OUT);
        }
        try (Parameters parameters = Parameters.allocate(rank.device(), plan, dtype, 42);
                DataParallel strategy = DataParallel.of(parameters, rank.communicator());
                AdamW optimizer = new AdamW(parameters, AdamW.Config.standard());
                MeanSquaredError meanSquaredError = new MeanSquaredError(parameters.scope(), dtype, rows, OUT);
                Pass pass = Pass.training(rank.device())) {
            Stream stream = pass.stream();
            Parameter weight = parameters.get("model.weight");
            float[] weights = new float[OUT * IN];
            for (int i = 0; i < weights.length; i++) {
                weights[i] = (float) weight(i);
            }
            weight.weight().set(stream, weights);
            parameters.changed();
            GradientNorm norm = new GradientNorm(parameters, 1);
            strategy.follow(pass);
            pass.begin();
            Tensor x = pass.scope().tensor(dtype, rows, IN);
            x.set(stream, inputs);
            Tensor minusTarget = pass.scope().tensor(DType.FLOAT32, rows, OUT);
            minusTarget.set(stream, minusTargets);
            // @start region="lossOverRanks"
            Tensor y = model.forward(x, pass);
            Tensor elements = pass.scope().tensor(DType.INT32, 1);
            elements.set(stream, (int) y.count()); // of all micro-batches of this rank
            strategy.sumOverRanks(elements);
            float n = elements.toInts(stream)[0]; // waits; if it never changes, once is enough
            Tensor root = meanSquaredError.forward(y, minusTarget, stream);
            model.backward(meanSquaredError.backward(n, stream), pass);
            strategy.sumGradients();
            norm.compute();
            optimizer.step(1e-3f, norm);
            float r = root.toFloats(stream)[0];
            float part = r * r / n; // the ranks' parts add up to the loss
            // @end
            return new Result(
                    part, weight.gradient().toFloats(stream), norm.norm().toFloats(stream)[0]);
        }
    }

    private static int rows(int rank) {
        return 4 + 3 * rank;
    }

    /** Numbers that BFLOAT16 has. */
    private static double input(int rank, int row, int column) {
        return ((7 * rank + 3 * row + 5 * column) % 11 - 5) / 4.0;
    }

    private static double target(int rank, int row, int column) {
        return ((2 * rank + 5 * row + 3 * column) % 7 - 3) / 2.0;
    }

    private static double weight(int i) {
        return (i % 5 - 2) / 8.0;
    }

    @ParameterizedTest
    @CsvSource({"1, FLOAT32", "2, FLOAT32", "4, FLOAT32", "2, BFLOAT16"})
    void isTheMeanOverAllRanks(int ranks, DType dtype) {
        DevicesNeeded.assume(ranks);
        boolean exact = dtype == DType.FLOAT32 && Provider.current() == Provider.REFERENCE;
        double tolerance = exact ? 1e-6 : dtype == DType.FLOAT32 ? 1e-3 : 1e-2; // products of FP32 are TF32 on GPUs
        List<Result> results = Ranks.local(ranks).run(rank -> step(rank, dtype));

        double loss = 0;
        double[] gradient = new double[OUT * IN];
        double[] ofBias = new double[OUT];
        int n = 0;
        for (int rank = 0; rank < ranks; rank++) {
            n += rows(rank) * OUT;
        }
        for (int rank = 0; rank < ranks; rank++) {
            for (int row = 0; row < rows(rank); row++) {
                for (int o = 0; o < OUT; o++) {
                    double difference = -target(rank, row, o);
                    for (int i = 0; i < IN; i++) {
                        difference += weight(o * IN + i) * input(rank, row, i);
                    }
                    loss += difference * difference / n;
                    ofBias[o] += 2 * difference / n;
                    for (int i = 0; i < IN; i++) {
                        gradient[o * IN + i] += 2 * difference / n * input(rank, row, i);
                    }
                }
            }
        }
        double norm = Math.sqrt(DoubleStream.concat(Arrays.stream(gradient), Arrays.stream(ofBias))
                .map(one -> one * one)
                .sum());
        double got = 0;
        for (Result result : results) {
            got += result.loss;
            assertEquals(norm, result.norm, tolerance * norm, "norm");
            for (int i = 0; i < gradient.length; i++) {
                assertEquals(gradient[i], result.gradient[i], tolerance, "gradient " + i);
            }
        }
        assertEquals(loss, got, tolerance * loss, "loss");
    }
}
