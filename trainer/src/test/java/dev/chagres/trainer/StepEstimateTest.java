package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.MemoryUse;
import dev.chagres.MultiprocessorMargin;
import dev.chagres.batch.Batch;
import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.SequencePacker;
import dev.chagres.batch.StepResult;
import dev.chagres.bindings.Provider;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.transformer.TransformerBody.Recomputation;
import dev.chagres.ops.ProductPlan;
import dev.chagres.optim.Adafactor;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.Lion;
import dev.chagres.optim.Muon;
import dev.chagres.optim.OffloadedConfig;
import dev.chagres.optim.OptimizerConfig;
import dev.chagres.optim.SGD;
import dev.chagres.optim.ScheduleFreeAdamW;
import dev.chagres.pass.ActivationOffload;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Float8CurrentScaling;
import dev.chagres.sharding.FullyShardedConfig;
import dev.chagres.sharding.ZeroStage;
import java.io.BufferedReader;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** The memory that steps are said to take is the memory that they take: to the byte on the reference, near it on GPUs. */
@Tag("L0")
@Tag("L1")
class StepEstimateTest {
    private static final int DRAWN = 100;
    private static final int DRAWN_FOR_GPUS = 48;
    private static final double NEAR = 0.03;
    private static final OptimizerConfig[] OPTIMIZERS = {
        ModelSetup.ADAM,
        ModelSetup.ADAM.withMomentDType(DType.BYTE),
        Lion.Config.standard(),
        Adafactor.Config.standard(),
        new SGD.Config(0.9f, 0.01f),
        ModelSetup.ADAM.withMasters(AdamW.Masters.REMAINDER),
        Muon.Config.standard(),
        ScheduleFreeAdamW.Config.standard(),
        ModelSetup.ADAM.withAverage(0.9f),
        new OffloadedConfig(ModelSetup.ADAM, 1024)
    };

    private final SplittableRandom random = new SplittableRandom(38);

    /** What a GPU needs in each dimension to hold gibibytes; 1 on the reference. */
    private int scale = 1;

    private int devices = Device.count();

    private <T> T one(T[] of) {
        return of[random.nextInt(of.length)];
    }

    private ModelSetup drawn() {
        int heads = scale << random.nextInt(1, 3);
        int context = scale * 16 * random.nextInt(1, 4);
        int microBatches = random.nextInt(1, 3);
        int tokens = microBatches * scale * scale * 16 * random.nextInt(context / scale / 16, context / scale / 16 + 3);
        int headSize = scale > 1 ? 64 : 16 * random.nextInt(1, 3);
        var config = new Esm2Config(scale * random.nextInt(2, 4), heads * headSize, heads, context)
                .withRecomputation(one(Recomputation.values()));
        boolean offloaded = config.recomputation() == Recomputation.LAYERS && random.nextBoolean();
        if (offloaded) { // of fewer layers nothing is copied
            config = new Esm2Config(6, heads * headSize, heads, context).withRecomputation(Recomputation.LAYERS);
        }
        TrainingRecipe recipe = one(TrainingRecipe.values());
        BatchLayout packing = one(BatchLayout.values());
        var shape = new BatchShape(
                packing,
                tokens / context * context * (packing == BatchLayout.PADDED ? 1 : 0)
                        + (packing == BatchLayout.PADDED ? 0 : tokens),
                context,
                packing == BatchLayout.PADDED ? 1 : microBatches);
        RankLayout layout = layout(random.nextInt(8));
        OptimizerConfig optimizer = optimizer(recipe);
        boolean wide = layout.count() > 1 || optimizer instanceof Adafactor.Config || optimizer instanceof Muon.Config;
        DType gradients = wide || random.nextBoolean() ? DType.FLOAT32 : recipe.dtype();
        boolean captured = layout.isCapturable() && random.nextBoolean() && optimizer.isCapturable() && !offloaded;
        return ModelSetup.of(config, shape)
                .with(new ModelSetup.Precision(
                        recipe.dtype(), recipe.quantizedWeight().orElse(null), gradients))
                .with(layout)
                .with(new ModelSetup.Updates(optimizer, 1))
                .with(offloaded ? ActivationOffload.all() : ActivationOffload.none())
                .with(new ModelSetup.Enqueuing(
                        ProductPlan.FIRST,
                        MultiprocessorMargin.NONE,
                        captured ? ModelSetup.Steps.CAPTURED : ModelSetup.Steps.ENQUEUED,
                        0));
    }

    private OptimizerConfig optimizer(TrainingRecipe recipe) {
        OptimizerConfig drawn = one(OPTIMIZERS);
        if (drawn instanceof OffloadedConfig offloaded && scale > 1) {
            return offloaded.updates().offloaded();
        }
        boolean remainders = drawn instanceof AdamW.Config adam && adam.masters() == AdamW.Masters.REMAINDER;
        return remainders && recipe.dtype() != DType.BFLOAT16 ? ModelSetup.ADAM : drawn;
    }

    private RankLayout layout(int kind) {
        MeshShape one = MeshShape.ofOne();
        return switch (devices > 1 ? kind : Integer.MAX_VALUE) {
            case 0 -> RankLayout.of(one.with(MeshDimension.REPLICATE, 2));
            case 1 -> sharded(ZeroStage.ONE);
            case 2 -> sharded(ZeroStage.TWO);
            case 3 -> sharded(ZeroStage.THREE);
            case 4 -> RankLayout.of(one.with(MeshDimension.TENSOR, 2));
            default -> RankLayout.of(one);
        };
    }

    private static RankLayout sharded(ZeroStage stage) {
        return RankLayout.of(MeshShape.ofOne().with(MeshDimension.SHARD, 2)).with(FullyShardedConfig.of(stage));
    }

    /** What steps hold: on the device, and page-locked on the host. */
    private record Held(List<MemoryUse> memory, long hostBytes) {}

    /** Three steps of the real thing on the batch of an estimate. */
    private static Held held(ModelSetup setup) {
        Batch batch = new Batch(setup.shape());
        new SequencePacker(setup.shape(), new StepEstimate.FullSequences(setup.shape())).fill(batch);
        if (setup.layout().count() > 1) {
            try (var training = new RankedTraining(setup, "test", Wording.CALLS, () -> false)) {
                return held(training, batch);
            }
        }
        try (Device device = Device.open();
                ModelTraining training = ModelTraining.of(device, setup)) {
            return held(training, batch);
        }
    }

    private static Held held(Training training, Batch batch) {
        for (int step = 0; step < 3; step++) {
            training.upload(batch);
            training.step(1e-3f);
            training.result(new StepResult());
        }
        return new Held(training.memoryUse(), training.hostBytes());
    }

    /** To the byte on the reference; on GPUs attention asks for workspaces that only they know. */
    @Test
    void isWhatTheAllocatorHandsOut() throws IOException {
        if (Provider.current() == Provider.CUDA) {
            isNearWhatGpusHandOut();
            return;
        }
        List<String> wrong = new ArrayList<>();
        for (int i = 0; i < DRAWN; i++) {
            ModelSetup setup = drawn();
            StepEstimate estimate = StepEstimate.of(setup);
            Held estimated = new Held(estimate.memory(), estimate.hostBytes());
            Held real = held(setup);
            if (!estimated.equals(real)) {
                wrong.add(i + " " + setup + "\n  estimated " + estimated + "\n  held " + real);
            }
        }
        assertTrue(wrong.isEmpty(), () -> wrong.size() + " of " + DRAWN + ": " + String.join("\n", wrong));
    }

    private void isNearWhatGpusHandOut() throws IOException {
        Process counting = new ProcessBuilder(TrainJvm.command(
                        List.of(), List.of("-Xmx2g"), Estimates.class, List.of(Integer.toString(devices))))
                .redirectError(ProcessBuilder.Redirect.INHERIT)
                .start();
        List<String> wrong = new ArrayList<>();
        try (BufferedReader estimates = counting.inputReader()) {
            scale = Estimates.SCALE;
            for (int i = 0; i < DRAWN_FOR_GPUS; i++) {
                ModelSetup setup = drawn();
                double estimated = Double.parseDouble(estimates.readLine());
                double real = held(setup).memory().stream()
                        .mapToLong(MemoryUse::total)
                        .max()
                        .orElseThrow();
                System.out.printf("%.0f MiB estimated, %.0f held: %s%n", estimated / 0x1p20, real / 0x1p20, setup);
                if (Math.abs(real - estimated) > NEAR * real) {
                    wrong.add(i + " " + setup + "\n  estimated " + estimated + "\n  held " + real);
                }
            }
        }
        assertTrue(wrong.isEmpty(), () -> wrong.size() + " of " + DRAWN_FOR_GPUS + ": " + String.join("\n", wrong));
    }

    /** A process that estimates what a GPU is compared with, a line each. */
    static final class Estimates {
        static final int SCALE = 8;

        private Estimates() {}

        public static void main(String[] devices) {
            var drawing = new StepEstimateTest();
            drawing.scale = SCALE;
            drawing.devices = Integer.parseInt(devices[0]);
            for (int i = 0; i < DRAWN_FOR_GPUS; i++) {
                System.out.println(StepEstimate.of(drawing.drawn()).memoryBytes());
            }
        }
    }

    /** What a run counts in its first step, of HFU, is what is estimated, whether steps are captured or not. */
    @Test
    void runsCountTheSameOperations() {
        Assumptions.assumeTrue(Provider.current() == Provider.REFERENCE, "only the reference counts");
        var config = new Esm2Config(2, 32, 2, 32).withRecomputation(Recomputation.LAYERS);
        for (ModelSetup.Steps steps : ModelSetup.Steps.values()) {
            ModelSetup setup = ModelSetup.of(config, new BatchShape(BatchLayout.PACKED, 96, 32, 2))
                    .with(new ModelSetup.Enqueuing(ProductPlan.FIRST, MultiprocessorMargin.NONE, steps, 0));
            Batch batch = new Batch(setup.shape());
            new SequencePacker(setup.shape(), new StepEstimate.FullSequences(setup.shape())).fill(batch);
            try (Device device = Device.open();
                    ModelTraining training = ModelTraining.of(device, setup)) {
                assertEquals(0, training.countedFlops());
                held(training, batch);
                StepEstimate estimate = StepEstimate.of(setup);
                assertEquals(estimate.flops().all(), training.countedFlops(), 1);
                assertTrue(training.countedFlops() > 1.3 * training.flops(batch), steps.toString());
            }
        }
    }

    /** Of 36 layers, 35 inputs of [16384, 2560] lie between layers in BF16: three buffers are left of them, and 32 are on the host. */
    @Test
    void inputsOnTheHostAreNotOnTheDevice() {
        Assumptions.assumeTrue(Provider.current() == Provider.REFERENCE, "only the reference counts");
        Trainer trainer = Trainer.of(
                        new Esm2Config(36, 2560, 40, 1024).withRecomputation(Recomputation.LAYERS),
                        new BatchShape(BatchLayout.PACKED, 16_384, 1024))
                .withDtype(DType.BFLOAT16);
        StepEstimate without = trainer.estimate();
        StepEstimate with = trainer.withOffload(ActivationOffload.all()).estimate();
        long tensor = 16_384L * 2560 * Short.BYTES;
        assertEquals(0, without.hostBytes());
        assertEquals(32 * tensor, with.hostBytes());
        assertEquals(32 * tensor, without.memoryBytes() - with.memoryBytes(), 2 << 20);
    }

    /** Of 2.84 thousand million parameters 36 layers have 36 * 12 * 2560^2 in products, and the head 2560^2. */
    @Test
    void gradientsOfProductsTakeHalf() {
        Assumptions.assumeTrue(Provider.current() == Provider.REFERENCE, "only the reference counts");
        Trainer trainer = Trainer.of(
                        new Esm2Config(36, 2560, 40, 1024), new BatchShape(BatchLayout.PACKED, 16_384, 1024))
                .withDtype(DType.BFLOAT16);
        long wide = gradients(trainer);
        long narrow = gradients(trainer.withProductGradients(DType.BFLOAT16));
        assertEquals(Short.BYTES * (36 * 12 + 1) * 2560L * 2560, wide - narrow, 1 << 20);
    }

    private static long gradients(Trainer trainer) {
        return trainer.estimate().memory().getFirst().of(MemoryUse.Holder.GRADIENTS);
    }

    /** The pass that finds first scales computes in 16 bits, and recomputes norms, so that it keeps no more than the steps after it. */
    @Test
    void calibratingKeepsNoMoreThanAStepInEightBits() {
        Assumptions.assumeTrue(Provider.current() == Provider.REFERENCE, "only the reference counts");
        Trainer trainer = Trainer.of(
                        new Esm2Config(36, 2560, 40, 1024), new BatchShape(BatchLayout.PACKED, 16_384, 1024))
                .withDtype(DType.BFLOAT16);
        long calibrated = activations(trainer.withRecipe(DelayedScaling.standard()));
        long never = activations(trainer.withRecipe(Float8CurrentScaling.standard()));
        assertEquals(never, calibrated, 0.005 * never);
        assertTrue(calibrated < 0.97 * activations(trainer), () -> calibrated + " bytes of activations");
    }

    private static long activations(Trainer trainer) {
        return trainer.estimate().memory().getFirst().of(MemoryUse.Holder.ACTIVATIONS);
    }

    @Test
    void namesThePartsOfALargeModel() {
        Assumptions.assumeTrue(Provider.current() == Provider.REFERENCE, "only the reference counts");
        // @start region="estimate"
        var shape = new BatchShape(BatchLayout.PACKED, 16_384, 1024);
        StepEstimate estimate = Trainer.of(new Esm2Config(36, 2560, 40, 1024), shape)
                .withDtype(DType.BFLOAT16)
                .estimate();
        System.out.println(estimate.memory().getFirst());
        // activations 35,251.0 MiB, optimizer 27,076.6 MiB, gradients 10,831.2 MiB, …
        // @end
        MemoryUse use = estimate.memory().getFirst();
        long hidden = 2560;
        long parameters = 36 * (12 * hidden * hidden + 13 * hidden) + (64 + 2 + hidden + 3) * hidden + 64;
        assertEquals(2.0 * parameters, use.of(MemoryUse.Holder.WEIGHTS), 4e6);
        assertEquals(4.0 * parameters, use.of(MemoryUse.Holder.GRADIENTS), 4e6);
        assertEquals(10.0 * parameters, use.of(MemoryUse.Holder.OPTIMIZER), 4e6);
        assertEquals(estimate.memoryBytes(), use.total());
        assertEquals(16_384, estimate.tokens());
        assertEquals(estimate.flops().all(), estimate.productFlops().get(16) + estimate.attentionFlops(), 1);
    }
}
