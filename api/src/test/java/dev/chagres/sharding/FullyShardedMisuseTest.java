package dev.chagres.sharding;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.CaptureException;
import dev.chagres.bindings.Provider;
import dev.chagres.checkpoint.RunState;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.Linear;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.CommunicatorConfig;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.nccl.UniqueId;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.optim.ParameterGroup;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.ParameterShard;
import dev.chagres.parameter.ParameterShard.Part;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.LayerHooks;
import dev.chagres.pass.Pass;
import dev.chagres.pass.PassObserver.Direction;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Calls that do not fit are told what to do, and lose nothing. */
@Tag("L0")
@Tag("L2")
class FullyShardedMisuseTest {
    private static final int HIDDEN = 16;

    private final ModelPlan plan = new ModelPlan();
    private final Linear layer = new Linear(HIDDEN, HIDDEN, Initializer.normal(0.1f), plan.group("layer"));

    private static Communicator one(Device device) {
        return Communicator.open(device, UniqueId.create(), 1, 0, CommunicatorConfig.standard());
    }

    private static final class NoObserver implements LayerHooks {
        @Override
        public void begins(Direction direction, Pass pass) {}

        @Override
        public void gradientsWritten(Pass pass) {}

        @Override
        public void ends(Direction direction, Pass pass) {}

        @Override
        public void fails() {}
    }

    private void microBatch(Pass pass) {
        Tensor x = pass.scope().tensor(DType.FLOAT32, 2, HIDDEN);
        x.zero(pass.stream());
        layer.backward(layer.forward(x, pass), pass);
    }

    @Test
    void stepsInAnotherOrder() {
        try (Device device = Device.open();
                Communicator communicator = one(device);
                FullySharded training = FullySharded.allocate(plan, DType.FLOAT32, 1, ZeroStage.ONE, communicator);
                AdamW optimizer = new AdamW(training.parameters(), AdamW.Config.standard());
                Pass pass = Pass.training(device);
                Stream stream = device.openStream();
                Pass other = Pass.training(stream)) {
            assertThrown(
                    IllegalArgumentException.class,
                    "pass: expected one on the parameters' stream, got training pass on stream of device 0",
                    () -> training.follow(other));
            training.follow(pass);
            assertThrown(
                    IllegalStateException.class,
                    "follow: expected a pass that is not followed yet, got training pass on stream of device 0",
                    () -> training.follow(pass));
            assertThrown(
                    IllegalStateException.class,
                    "the pass belongs to ZeRO stage 1 on rank 0 of 1 already; make another with Pass.training",
                    () -> pass.calls().observe(new NoObserver()));
            GradientNorm norm = new GradientNorm(training.parameters(), 1);
            String unsummed =
                    "gradients: expected the sum over 1 ranks, got only this rank's, by which the ranks' weights"
                            + " would diverge; call sumGradients() before the norm and the optimizer's step";
            assertThrown(IllegalStateException.class, unsummed, norm::compute);
            assertThrown(IllegalStateException.class, unsummed, () -> optimizer.step(1));
            pass.begin();
            training.lastMicroBatch();
            microBatch(pass);
            assertThrown(
                    IllegalStateException.class,
                    "gradient of layer.weight: summed over the ranks already, got another backward call; call"
                            + " lastMicroBatch only before the step's last micro-batch, with all its forward calls"
                            + " before its backward calls, and not at all with several passes under way at once",
                    () -> microBatch(pass.begin()));
            pass.begin(); // forgets the gradients: the step can be repeated
            microBatch(pass);
            training.sumGradients();
            assertThrown(
                    IllegalStateException.class,
                    "sumGradients: expected one call a step, got a second one; take the optimizer's step before, or call"
                            + " Parameters.forgetGradients",
                    training::sumGradients);
            assertThrown(
                    IllegalStateException.class,
                    "lastMicroBatch: expected before sumGradients, got it after; take the optimizer's step first",
                    training::lastMicroBatch);
            assertThrown(
                    IllegalStateException.class,
                    "gradient of layer.weight: summed over the ranks already, got another backward call; call"
                            + " sumGradients after the step's last backward call, and the optimizer's step before the next",
                    () -> microBatch(pass.begin()));
            pass.begin();
            microBatch(pass);
            training.sumGradients();
            norm.compute();
            optimizer.step(1e-3f, norm);
            training.close();
            training.close();
            assertThrown(
                    IllegalStateException.class, "the ZeRO stage 1 on rank 0 of 1 is closed", training::sumGradients);
            assertThrown(
                    IllegalStateException.class,
                    "parameter layer.weight has lost its memory: its Parameters are closed, or the strategy that allocated"
                            + " them is; allocate others",
                    () -> microBatch(pass.begin()));
        }
    }

    @Test
    void wholeThingsOfParts() {
        try (Device device = Device.open();
                Communicator communicator = one(device);
                FullySharded training = FullySharded.allocate(plan, DType.FLOAT32, 1, ZeroStage.THREE, communicator);
                AdamW optimizer = new AdamW(training.parameters(), AdamW.Config.standard());
                Pass pass = Pass.training(device)) {
            Parameters parameters = training.parameters();
            assertThrown(
                    IllegalStateException.class,
                    "weight of layer.weight: sharded among 1 ranks, it is gathered only while layers run, and only in"
                            + " a pass that the strategy follows; call strategy.follow(…) for this pass, also for"
                            + " evaluation, or save and load all by RunState.of(strategy)",
                    () -> layer.weight().weight());
            assertThrown(
                    IllegalStateException.class,
                    "weight of layer.weight: sharded among 1 ranks, it is gathered only while layers run, and only in"
                            + " a pass that the strategy follows; call strategy.follow(…) for this pass, also for"
                            + " evaluation, or save and load all by RunState.of(strategy)",
                    () -> microBatch(pass.begin()));
            assertThrown(
                    IllegalStateException.class,
                    "state: expected whole weights, got a rank's parts of them; save and load them with"
                            + " RunState.of(strategy)",
                    parameters::state);
            assertThrown(
                    IllegalStateException.class,
                    "state: expected that of whole weights, got that of a rank's part; save and load it with"
                            + " RunState.of(strategy).optimizer(optimizer)",
                    optimizer::state);
            List<ParameterGroup> groups = List.of(ParameterGroup.of("none", parameter -> false));
            assertThrown(
                    IllegalArgumentException.class,
                    "groups: expected trained parameters in group none that no group before it has, got none",
                    () -> new AdamW(parameters, AdamW.Config.standard(), groups));
            assertThrown(
                    IllegalArgumentException.class,
                    "weight: expected the shape of layer.weight[16, 16], got FLOAT32[1]",
                    () -> parameters
                            .access()
                            .lendWeight(layer.weight(), pass.scope().tensor(DType.FLOAT32, 1)));
            assertEquals(
                    "ZeRO stage 3 on rank 0 of 1: gradients reduce-scattered group by group on their own stream, from"
                            + " memory for two groups of each size; weights gathered group by group on another stream"
                            + " before their layers run, one group ahead",
                    training.explain());
        }
    }

    private static Throwable elsewhere(Executable call) {
        AtomicReference<Throwable> thrown = new AtomicReference<>();
        Thread thread = Thread.ofPlatform().start(() -> {
            try {
                call.execute();
            } catch (Throwable refused) {
                thrown.set(refused);
            }
        });
        while (thread.isAlive()) {
            Thread.onSpinWait();
        }
        return thrown.get();
    }

    /** The ranks' gradients were given back before the thread was refused: later steps had none. */
    @ParameterizedTest
    @EnumSource(ZeroStage.class)
    void callsOfAnotherThreadChangeNothing(ZeroStage stage) {
        try (Device device = Device.open();
                Communicator communicator = one(device);
                FullySharded training = FullySharded.allocate(plan, DType.FLOAT32, 1, stage, communicator);
                AdamW optimizer = new AdamW(training.parameters(), AdamW.Config.standard());
                Pass pass = Pass.training(device)) {
            training.follow(pass);
            for (int step = 0; step < 3; step++) {
                pass.begin();
                for (Executable call : List.<Executable>of(
                        training::sumGradients,
                        training::lastMicroBatch,
                        training::awaitGradients,
                        () -> RunState.of(training).optimizer(optimizer).specs(),
                        training::close)) {
                    assertInstanceOf(WrongThreadException.class, elsewhere(call));
                }
                training.lastMicroBatch();
                microBatch(pass);
                assertInstanceOf(WrongThreadException.class, elsewhere(training::sumGradients));
                training.sumGradients();
                training.parameters().forgetGradients();
                assertInstanceOf(WrongThreadException.class, elsewhere(training::sumGradients));
                training.sumGradients();
                optimizer.step(1e-3f);
            }
        }
    }

    /** Stage 1 keeps memory for whole gradients; in the others another group has it once they are summed, or forgotten. */
    @ParameterizedTest
    @EnumSource(ZeroStage.class)
    void wholeGradientsAreNotReadAfterTheirSum(ZeroStage stage) {
        try (Device device = Device.open();
                Communicator communicator = one(device);
                FullySharded training = FullySharded.allocate(plan, DType.FLOAT32, 1, stage, communicator);
                Pass pass = Pass.training(device)) {
            String refused =
                    "gradient of layer.weight: sharded among ranks, it exists only from a backward call until it is"
                            + " reduced; read this rank's shard in Parameters.gradients()";
            assertThrown(IllegalStateException.class, refused, layer.weight()::gradient);
            training.follow(pass);
            pass.begin();
            training.lastMicroBatch();
            microBatch(pass);
            training.sumGradients();
            if (stage == ZeroStage.ONE) {
                assertEquals(DType.FLOAT32, layer.weight().gradient().dtype());
            } else {
                assertThrown(IllegalStateException.class, refused, layer.weight()::gradient);
            }
            training.parameters().nextStep();
            layer.weight().nextGradient(); // as a backward call that then fails
            assertEquals(HIDDEN, layer.weight().gradient().size(0));
            training.parameters().forgetGradients();
            if (stage == ZeroStage.ONE) {
                assertEquals(HIDDEN, layer.weight().gradient().size(0));
            } else {
                assertThrown(IllegalStateException.class, refused, layer.weight()::gradient);
            }
            microBatch(pass.begin());
            training.sumGradients();
        }
    }

    @ParameterizedTest
    @EnumSource(ZeroStage.class)
    void aStepIsNotCaptured(ZeroStage stage) {
        try (Device device = Device.open();
                Communicator communicator = one(device);
                FullySharded training = FullySharded.allocate(plan, DType.FLOAT32, 1, stage, communicator);
                Pass pass = Pass.training(device)) {
            training.follow(pass);
            microBatch(pass.begin());
            training.sumGradients();
            training.parameters().nextStep();
            microBatch(pass.begin());
            pass.end();
            training.parameters().forgetGradients();
            CaptureException refused =
                    assertThrows(CaptureException.class, () -> device.stream().capture(() -> microBatch(pass.begin())));
            assertTrue(
                    String.valueOf(refused.getMessage())
                            .contains("FullySharded: a step with sharded weights or gradients cannot be captured;"
                                    + " enqueue it, or train with DataParallel"),
                    refused.getMessage());
        }
    }

    /** Nothing was gathered by it, and nothing is released: what others hold stays theirs. */
    @Test
    void aRefusedCaptureLeavesGatheredWeights() {
        ModelPlan own = new ModelPlan();
        Linear[] layers = new Linear[4];
        for (int i = 0; i < layers.length; i++) {
            layers[i] = new Linear(HIDDEN, HIDDEN, Initializer.normal(0.3f), own.group("layers." + i));
        }
        try (Device device = Device.open();
                Communicator communicator = one(device);
                FullySharded training = FullySharded.allocate(own, DType.FLOAT32, 1, ZeroStage.THREE, communicator);
                Pass pass = Pass.evaluation(device);
                Scope scope = device.openScope()) {
            training.follow(pass);
            Stream stream = device.stream();
            Tensor x = scope.tensor(DType.FLOAT32, 1, HIDDEN);
            float[] values = new float[HIDDEN];
            Arrays.fill(values, 1);
            x.set(stream, values);
            float[] expected = layers[1].forward(x, pass.begin()).toFloats(stream);
            var _ = layers[0].forward(x, pass.begin()); // so that the two buffers hold groups 0 and 1
            pass.end();
            assertThrows(CaptureException.class, () -> stream.capture(() -> layers[1].forward(x, pass.begin())));
            assertArrayEquals(expected, layers[1].forward(x, pass.begin()).toFloats(stream));
            assertArrayEquals(expected, layers[1].forward(x, pass.begin()).toFloats(stream));
        }
    }

    @Test
    void shards() {
        assertThrown(
                IllegalArgumentException.class, "index: expected 0 to count - 1, got 2 of 2", () -> new Part(2, 2));
        assertThrown(
                IllegalArgumentException.class,
                "updated: expected a part of weights, Part[index=1, count=2], got Part[index=1, count=4]",
                () -> new ParameterShard(new Part(1, 4), new Part(1, 2)));
        assertThrown(
                IllegalArgumentException.class,
                "updated: expected a part of weights, Part[index=0, count=2], got Part[index=0, count=3]",
                () -> new ParameterShard(new Part(0, 3), new Part(0, 2)));
        ParameterShard second = new ParameterShard(new Part(3, 4), new Part(1, 2));
        try (Device device = Device.open()) {
            assertThrown(
                    IllegalArgumentException.class,
                    "plan: expected one padded for 4 ranks, got 1; call plan.padGroups(4)",
                    () -> Parameters.allocate(device, plan, DType.FLOAT32, 1, second));
        }
    }

    @Test
    void otherSeedsAreRefused() {
        DevicesNeeded.assume(2);
        RankFailedException failure = assertThrows(
                RankFailedException.class,
                () -> Ranks.local(2).each(rank -> {
                    ModelPlan own = new ModelPlan();
                    new Linear(HIDDEN, HIDDEN, Initializer.normal(0.1f), own.group("layer"));
                    FullySharded.allocate(own, DType.FLOAT32, rank.index(), ZeroStage.TWO, rank.communicator());
                }));
        String text = String.valueOf(failure.getCause().getMessage());
        assertEquals("seed: expected the same on all ranks, got 1 on rank 1 and 0 on rank 0", text);
    }

    /** On each rank one micro-batch more than on the one before. */
    private static RankFailedException unequal(Consumer<ModelPlan> declared) {
        CommunicatorConfig config = CommunicatorConfig.standard()
                .withTimeout(Duration.ofSeconds(Provider.current() == Provider.REFERENCE ? 2 : 8));
        return assertThrows(
                RankFailedException.class,
                () -> Ranks.local(2).withConfig(config).each(rank -> {
                    ModelPlan own = new ModelPlan();
                    Linear linear = new Linear(HIDDEN, HIDDEN, Initializer.normal(0.1f), own.group("layer"));
                    declared.accept(own);
                    try (FullySharded training =
                                    FullySharded.allocate(own, DType.FLOAT32, 1, ZeroStage.THREE, rank.communicator());
                            Pass pass = Pass.training(rank.device())) {
                        training.follow(pass);
                        for (int i = 0; i <= rank.index(); i++) {
                            pass.begin();
                            Tensor x = pass.scope().tensor(DType.FLOAT32, 2, HIDDEN);
                            x.zero(pass.stream());
                            linear.backward(linear.forward(x, pass), pass);
                        }
                        training.sumGradients();
                    }
                }));
    }

    @Test
    void aRankThatAloneEvaluatesIsToldThatAllDo() {
        DevicesNeeded.assume(2);
        RankFailedException failure = assertThrows(
                RankFailedException.class,
                () -> Ranks.local(2).each(rank -> {
                    ModelPlan own = new ModelPlan();
                    Linear linear = new Linear(HIDDEN, HIDDEN, Initializer.normal(0.1f), own.group("layer"));
                    try (FullySharded training =
                                    FullySharded.allocate(own, DType.FLOAT32, 1, ZeroStage.THREE, rank.communicator());
                            Pass evaluation = Pass.evaluation(rank.device())) {
                        training.follow(evaluation);
                        if (rank.index() == 0) {
                            evaluation.begin();
                            Tensor x = evaluation.scope().tensor(DType.FLOAT32, 2, HIDDEN);
                            x.zero(evaluation.stream());
                            linear.forward(x, evaluation);
                        }
                    }
                }));
        String text = String.valueOf(failure.getMessage());
        assertTrue(text.contains("all ranks must call the same layers, in evaluation too"), text);
    }

    @Test
    void otherNumbersOfMicroBatchesAreNamed() {
        DevicesNeeded.assume(2);
        String text = String.valueOf(unequal(own -> {}).getMessage());
        assertTrue(
                text.matches(
                        "(?s).*did not come; in ZeRO stage 3 all ranks must call the same layers, in evaluation too,"
                                + " and compute equally many micro-batches in a step; rank [01] has completed 1:"
                                + " compare the other ranks; let a rank without sequences compute one token without a"
                                + " label \\(see Strategy.needsEqualMicroBatches\\)"),
                text);
        // Nothing is summed of frozen weights, so that both ranks come to the end of the step.
        Throwable cause = unequal(ModelPlan::freeze).getCause();
        assertEquals(
                "sumGradients: expected equally many micro-batches on all ranks, which gather weights from each"
                        + " other, got 2 on rank 1 and 1 on rank 0; let a rank without sequences compute one token without a"
                        + " label (see Strategy.needsEqualMicroBatches)",
                cause.getMessage());
    }
}
