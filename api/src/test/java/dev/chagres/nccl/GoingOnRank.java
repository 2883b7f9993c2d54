package dev.chagres.nccl;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.launch.Rank;
import dev.chagres.layer.Linear;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.sharding.DataParallel;
import dev.chagres.sharding.DataParallelConfig;
import java.util.Arrays;

/** A rank of data-parallel training that goes on without another one, some steps. */
final class GoingOnRank {
    /** What a rank does wrong, in the midst of a step or not. */
    interface Turn {
        void at(int step, Place place) throws Exception;
    }

    /** Where in a step. */
    enum Place {
        BEFORE,
        IN_BACKWARD,
        BEFORE_THE_UPDATE,
        AFTER
    }

    /** What ranks that went on have in common. */
    record Left(int ranks, long steps, int weights) {}

    private static final int WIDTH = 8;
    private static final int STEPS_AFTER = 3;
    private static final int MOST_STEPS = 1_000_000;

    private final Rank rank;
    private final Stream stream;
    private final Turn turn;
    private final Linear[] layers = new Linear[3];

    GoingOnRank(Rank rank, Turn turn) {
        this.rank = rank;
        this.turn = turn;
        stream = rank.device().stream();
    }

    /** Trains until another rank has failed, and then some steps more. */
    Left run() throws Exception {
        ModelPlan plan = new ModelPlan();
        for (int i = 0; i < layers.length; i++) {
            layers[i] = new Linear(WIDTH, WIDTH, Initializer.normal(0.1f), plan.group("layers." + i));
        }
        DataParallel strategy = null;
        try (Parameters parameters = Parameters.allocate(rank.device(), plan, DType.FLOAT32, 7);
                AdamW optimizer = new AdamW(parameters, AdamW.Config.standard());
                Pass pass = Pass.training(rank.device());
                Scope scope = rank.device().openScope()) {
            strategy = DataParallel.of(
                    parameters,
                    rank.communicator(),
                    DataParallelConfig.standard().withBucketBytes(1));
            strategy.follow(pass);
            GradientNorm norm = new GradientNorm(parameters, 1);
            Tensor input = scope.tensor(DType.FLOAT32, 4, WIDTH);
            Tensor labelled = scope.tensor(DType.INT32, 1);
            long end = MOST_STEPS;
            while (strategy.completedSteps() < end) {
                try {
                    step(strategy, pass, norm, optimizer, input, labelled);
                } catch (RankFailedException failed) {
                    strategy = strategy.shrink(optimizer);
                    end = strategy.completedSteps() + STEPS_AFTER;
                }
            }
            int bits = 0;
            for (Parameter parameter : parameters.all()) {
                bits = 31 * bits + Arrays.hashCode(parameter.weight().toFloats(stream));
            }
            return new Left(strategy.communicator().ranks(), strategy.completedSteps(), bits);
        } finally {
            if (strategy != null) {
                strategy.close();
            }
        }
    }

    private void step(
            DataParallel strategy, Pass pass, GradientNorm norm, AdamW optimizer, Tensor input, Tensor labelled)
            throws Exception {
        int step = (int) strategy.completedSteps();
        turn.at(step, Place.BEFORE);
        float[] values = new float[4 * WIDTH];
        Arrays.fill(values, 0.1f * (step % 7) + strategy.communicator().rank());
        input.set(stream, values);
        labelled.set(stream, 1);
        strategy.sumOverRanks(labelled);
        pass.begin();
        strategy.lastMicroBatch();
        Tensor x = input;
        for (Linear layer : layers) {
            x = layer.forward(x, pass);
        }
        for (int i = layers.length - 1; i >= 0; i--) {
            x = layers[i].backward(x, pass);
            if (i == 1) {
                turn.at(step, Place.IN_BACKWARD);
            }
        }
        strategy.sumGradients();
        norm.compute();
        strategy.awaitGradients();
        turn.at(step, Place.BEFORE_THE_UPDATE);
        optimizer.step(1e-3f, norm);
        turn.at(step, Place.AFTER);
    }
}
