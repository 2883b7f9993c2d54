package dev.chagres.recipe;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.DevicesNeeded;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.checkpoint.RunState;
import dev.chagres.io.SafetensorsFile;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.Linear;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.optim.LossScaler;
import dev.chagres.parameter.CounterRandom;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.pass.Pass;
import dev.chagres.sharding.FullySharded;
import dev.chagres.sharding.ZeroStage;
import java.lang.foreign.ValueLayout;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** A step that loss scaling skips because one rank's gradients are not finite changes nothing on any rank. */
@Tag("L0")
@Tag("L2")
class SkippedStepOnRanksTest {
    private static final int TOKENS = 16;
    private static final int SIZE = 32;
    private static final int RANKS = 2;

    @TempDir
    private Path folder;

    /** One rank's part of a product in eight bits, and of a head in FP16. */
    private static final class Training implements AutoCloseable {
        private final Rank rank;
        private final Linear body;
        private final Linear head;
        private final FullySharded strategy;
        private final Quantizers quantizers;
        private final LossScaler scaler;
        private final GradientNorm norm;
        private final AdamW adam;
        private final Pass pass;
        private final Scope inputs;

        Training(Rank rank, ZeroStage stage) {
            this.rank = rank;
            ModelPlan plan = new ModelPlan();
            body = new Linear(SIZE, SIZE, Initializer.normal(0.2f), plan.group("body"));
            head = new Linear(SIZE, SIZE, Initializer.normal(0.2f), plan.group("head"));
            plan.padGroups(RANKS);
            strategy = FullySharded.allocate(plan, DType.FLOAT16, 3, stage, rank.communicator());
            quantizers = Quantizers.allocate(
                    strategy.parameters(), DelayedScaling.standard().withAmaxHistoryLength(3));
            strategy.reduceAmax(quantizers);
            scaler = new LossScaler(
                    strategy.parameters(), LossScaler.Config.standard().withInitialScale(64));
            norm = new GradientNorm(scaler, 1);
            adam = new AdamW(strategy.parameters(), AdamW.Config.standard());
            pass = Pass.training(rank.device());
            pass.autocast(quantizers);
            strategy.follow(pass);
            inputs = rank.device().openScope();
        }

        /** Makes the step {@code number}; {@code spoiled} is one number of the last rank's gradient. */
        void step(int number, float spoiled) {
            float[] values = new float[TOKENS * SIZE];
            float[] gradients = new float[values.length];
            for (int i = 0; i < values.length; i++) {
                values[i] = (float) CounterRandom.normal(number * RANKS + rank.index(), i);
                gradients[i] = (float) CounterRandom.normal(number * RANKS + rank.index() + 1000, i);
            }
            if (rank.index() == RANKS - 1) {
                gradients[9] = spoiled;
            }
            pass.begin();
            Tensor input = pass.scope().tensor(DType.FLOAT16, TOKENS, SIZE);
            Tensor gradient = pass.scope().like(input);
            input.set(rank.device().stream(), values);
            gradient.set(rank.device().stream(), gradients);
            head.forward(body.forward(input, pass), pass);
            body.backward(head.backward(gradient, pass), pass);
            strategy.sumGradients();
            norm.compute();
            adam.step(1e-2f, norm);
        }

        void save(Path file) {
            RunState.of(strategy).optimizer(adam).with(quantizers).save(file, Map.of());
        }

        @Override
        public void close() {
            inputs.close();
            pass.close();
            adam.close();
            strategy.close();
            strategy.parameters().close();
        }
    }

    /** All but the number of steps, which a skipped one counts in. */
    private static Map<String, byte[]> read(Path path) {
        Map<String, byte[]> tensors = new LinkedHashMap<>();
        try (SafetensorsFile file = SafetensorsFile.open(path)) {
            file.entries().forEach((name, entry) -> {
                if (!name.equals("step")) {
                    tensors.put(name, entry.bytes().toArray(ValueLayout.JAVA_BYTE));
                }
            });
        }
        return tensors;
    }

    private static void assertSame(Path expected, Path actual) {
        Map<String, byte[]> values = read(actual);
        assertEquals(read(expected).keySet(), values.keySet());
        read(expected).forEach((name, bytes) -> assertArrayEquals(bytes, values.get(name), name));
    }

    @ParameterizedTest
    @EnumSource(ZeroStage.class)
    void everythingStaysOnEveryRank(ZeroStage stage) {
        DevicesNeeded.assume(RANKS);
        Path before = folder.resolve("before");
        Path skipped = folder.resolve("skipped");
        Path after = folder.resolve("after");
        Path plain = folder.resolve("plain");
        Ranks.local(RANKS).run(rank -> {
            try (Training training = new Training(rank, stage)) {
                training.step(1, 1);
                training.save(before);
                training.step(2, Float.POSITIVE_INFINITY);
                assertEquals(1, training.scaler.skippedSteps());
                training.save(skipped);
                // Another loss scale would round otherwise.
                training.scaler.scale().set(rank.device().stream(), 64f);
                training.step(3, 1);
                training.step(4, 1);
                training.save(after);
            }
            try (Training training = new Training(rank, stage)) {
                training.step(1, 1);
                training.step(3, 1);
                training.step(4, 1);
                training.save(plain);
            }
            return null;
        });
        assertSame(before, skipped);
        assertSame(plain, after);
    }
}
